"""Imports TensorFlow in half the time, for a process that runs nothing but a benchmark.

`import tensorflow` spends much of its time on two things that a run does not need. At its end TensorFlow imports Keras,
and Keras imports what it finds of SciPy, scikit-learn and matplotlib, so that Keras's optimizers are registered for
SavedModels of Keras. And Python's garbage collector looks again and again at the modules that have been loaded, of
which none becomes garbage.

TensorFlow goes on without Keras if it cannot be imported, and imports it when it is first used (`tf.keras`). So Keras
is only put off: a network in a --model_file gets it with `import keras` and with `tf.keras`, as ever.
"""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType


class _PutOffError(ImportError):
    """Keras is imported later."""


class _RefusingLoader(Loader):
    """In place of the loader of a module that is put off."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        del spec
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise _PutOffError(f'{module.__name__} is imported when it is first used', name=module.__name__)


class _KerasLater(MetaPathFinder):
    """Refuses the import of Keras that `tensorflow/__init__.py` itself asks for; all other imports are as ever."""

    def __init__(self) -> None:
        self._is_looking = False

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Called by Python before it imports a module."""
        if fullname != 'keras' or self._is_looking or not _is_asked_by_tensorflow():
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec:
            spec.loader = _RefusingLoader()
        return spec


def _is_asked_by_tensorflow() -> bool:
    """Whether the import that is going on is a line of `tensorflow/__init__.py`."""
    frame: FrameType | None = sys._getframe(2)
    while frame and _belongs_to_importlib(frame):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get('__name__') == 'tensorflow'


def _belongs_to_importlib(frame: FrameType) -> bool:
    return str(frame.f_globals.get('__name__')).partition('.')[0] in ('importlib', '_frozen_importlib')


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Within the block Python's garbage collector does not look for cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_tensorflow() -> None:
    """Imports TensorFlow without Keras, unless TensorFlow or Keras is loaded already.

    From then on the garbage collector passes over all modules, so that it takes less of the time between steps.
    """
    if 'tensorflow' in sys.modules or 'keras' in sys.modules:
        return
    finder = _KerasLater()
    sys.meta_path.insert(0, finder)
    with without_collecting():
        try:
            importlib.import_module('tensorflow.compat.v1')
        except _PutOffError:
            # A TensorFlow that does not go on without Keras.
            sys.meta_path.remove(finder)
            importlib.import_module('tensorflow.compat.v1')
        finally:
            if finder in sys.meta_path:
                sys.meta_path.remove(finder)
        gc.freeze()
