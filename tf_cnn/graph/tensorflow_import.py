"""Imports TensorFlow late, and in half the time. Any module may import this one.

`import tensorflow` imports Keras to register its optimizers for SavedModels, and Keras imports
SciPy, scikit-learn and matplotlib if they are installed; meanwhile the garbage collector examines
the loaded modules, none of them garbage. If Keras cannot be imported, TensorFlow goes on, and tries
again when Keras is first used. So Keras is only deferred: a network in a --model_file gets it with
`import keras` and with `tf.keras`, as usual.
"""

import contextlib
import gc
import importlib
import os
import re
import resource
import sys
import warnings
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from tf_cnn.system.errors import UsageError

# Memory limits of a process, and the bytes of each that TensorFlow needs to start (measured with 2
# cores and no GPU). With less it crashes in native code.
_MEMORY_LIMITS = (
    ('ulimit -v', resource.RLIMIT_AS, 2_000_000_000),
    ('ulimit -d', resource.RLIMIT_DATA, 400_000_000),
)
# Variables with flags. TensorFlow reads them at its first session or compilation, and ends the
# process, without Python, if it does not know a flag.
_FLAG_VARIABLES = ('TF_XLA_FLAGS', 'XLA_FLAGS', 'TF_JITRT_FLAGS')
_FATAL_LINE = re.compile(r'^F\d{4} .*?\] (.*)$', re.MULTILINE)


def memory_limits() -> dict[str, bool]:
    """Returns the limits of this process, as in 'ulimit -v 4000000', and whether TensorFlow can
    start with each.
    """
    limits = {}
    for command, number, least in _MEMORY_LIMITS:
        limit = resource.getrlimit(number)[0]
        if limit != resource.RLIM_INFINITY:
            limits[f'{command} {limit >> 10}'] = limit >= least
    return limits


class _KerasDeferrer(MetaPathFinder, Loader):
    """Refuses to load Keras, but locates it, since TensorFlow adds Keras's folder to its path."""

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname) if fullname == 'keras' else None
        if spec:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError('it is imported when it is first used', name=module.__name__)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def import_tensorflow() -> None:
    """Imports TensorFlow without Keras, unless TensorFlow or Keras is loaded already.

    Afterwards the garbage collector ignores all loaded modules, and takes less time between steps.

    Raises:
      UsageError: TensorFlow refuses the flags in an environment variable.
    """
    if 'tensorflow' in sys.modules or 'keras' in sys.modules:
        return
    finder = _KerasDeferrer()
    sys.meta_path.insert(0, finder)
    with without_garbage_collection():
        try:
            importlib.import_module('tensorflow.compat.v1')
        except ImportError as error:
            if error.name != 'keras':
                raise
        finally:
            sys.meta_path.remove(finder)
        # Imports it again only if this TensorFlow does not go on without Keras.
        importlib.import_module('tensorflow.compat.v1')
        gc.freeze()
    if flags := {name: os.environ[name] for name in _FLAG_VARIABLES if os.environ.get(name)}:
        _check_flags(flags)


def _check_flags(flags: dict[str, str]) -> None:
    """Raises UsageError if TensorFlow ends a copy of this process for the flags in variables."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python warns of the thread that waits for signals; the copy does not need it.
        warnings.simplefilter('ignore', DeprecationWarning)
        pid = os.fork()
    if not pid:
        try:
            os.dup2(writer, 2)
            _compile()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, errors='replace') as output:
        fatal_line = _FATAL_LINE.search(output.read())
    os.waitpid(pid, 0)
    if fatal_line:
        names = [name for name in flags if re.search(rf'\b{name}\b', fatal_line[1])]
        settings = ', '.join(f'{name}={flags[name]}' for name in names or flags)
        raise UsageError(
            f'{settings}: TensorFlow refuses these flags ({fatal_line[1]}); correct or unset the '
            'environment variable'
        )


def _compile() -> None:
    tf = sys.modules['tensorflow'].compat.v1
    config = tf.ConfigProto(device_count={'GPU': 0})
    config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_2
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        value = tf.placeholder(tf.float32, [2])
        with tf.xla.experimental.jit_scope():
            result = tf.exp(value) * value + value
        session.run(result, {value: [1.0, 2.0]})
