"""The package `tf_cnn_benchmarks` of an installation, which holds the whole program below this one name.

Modules of the program have plain names, such as `errors`, so their folder is put on sys.path only when the program is
used: by the command (`main`), or by Python code that uses a name in __all__. Importing this package imports neither the
program nor TensorFlow.

    from tf_cnn_benchmarks import BenchmarkCNN, make_params

    BenchmarkCNN(make_params(model='lenet', num_batches=50)).run()
"""

import importlib
import importlib.metadata
import runpy
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
# An editable installation uses the checkout itself.
PROGRAM = _HERE / 'program' if (_HERE / 'program').is_dir() else _HERE.parent

# The names in tf_cnn/commands/for_python.py, which cannot be imported before the program's folder is on sys.path.
__all__ = [
    'BenchmarkCNN',
    'BenchmarkError',
    'RunError',
    'UsageError',
    'VariableMgr',
    'VariableMgrCollectiveAllReduce',
    'VariableMgrDistributedAllReduce',
    'VariableMgrDistributedFetchFromPS',
    'VariableMgrDistributedFetchFromStagedPS',
    'VariableMgrDistributedReplicated',
    'VariableMgrHorovod',
    'VariableMgrIndependent',
    'VariableMgrLocalFetchFromPS',
    'VariableMgrLocalFetchFromStagedPS',
    'VariableMgrLocalRelaxedReplicated',
    'VariableMgrLocalReplicated',
    'main',
    'make_params',
    'register_model',
    'register_variable_mgr',
]


def main() -> None:
    """Runs the command as `python tf_cnn_benchmarks.py` does, with this process's arguments; raises SystemExit."""
    runpy.run_path(str(PROGRAM / 'tf_cnn_benchmarks.py'), run_name='__main__')


def __getattr__(name: str) -> Any:
    if name == '__version__':
        return importlib.metadata.version('tf_cnn_benchmarks')
    if name in __all__:
        _put_program_first()
        return importlib.import_module('tf_cnn.commands.for_python').find(name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, '__version__'})


def _put_program_first() -> None:
    """Puts the folder of the program first on sys.path; ImportError if another module has a name that it needs."""
    folder = str(PROGRAM)
    for path in sorted(PROGRAM.iterdir()):
        if path.suffix != '.py' and not (path / '__init__.py').is_file():
            continue
        loaded = sys.modules.get(path.stem)
        file = getattr(loaded, '__file__', None)
        if loaded is None or path.stem in ('setup', __name__):
            continue
        if file is None or not Path(file).resolve().is_relative_to(PROGRAM):
            raise ImportError(
                f'tf_cnn_benchmarks has a module {path.stem!r}, but another one is imported under this name, from '
                f'{file or "a folder"}; import BenchmarkCNN in a process that does not use that one'
            )
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
