"""Models that people add from files of their own. Does not import TensorFlow; such a file may."""

import contextlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_sets import DATA_SETS
from errors import BenchmarkError, UsageError
from flag_spec import spelled
from models.catalog import ModelFacts, add_model, remove_model

if TYPE_CHECKING:
    from models.layers import BatchNorm, LayerBuilder

Build = Callable[['LayerBuilder', Any, int], Any]


@dataclass(frozen=True)
class RegisteredNetwork:
    """What register_model was given of a network; file is the one of --model_file that it comes from, if any.

    Raises:
      UsageError: it fails, or does not return what register_model asks for.
    """

    name: str
    build: Build
    batch_norm: 'BatchNorm | None'
    file: str | None

    def __call__(self, cnn: 'LayerBuilder', images: Any, num_classes: int) -> Any:
        with _told_of(self.file) if self.file else contextlib.nullcontext():
            built = self.build(cnn, images, num_classes)
        logits, *others = built if isinstance(built, tuple) else (built,)
        for head in (logits, *(other for other in others if other is not None)):
            shape = getattr(head, 'shape', None)
            if len(others) > 1 or shape is None or shape.rank != 2 or shape.as_list()[1] != num_classes:
                found = type(head).__name__ if shape is None else f'{len(others) + 1} of shape {shape}'
                raise UsageError(
                    f'{spelled("model", self.name)}: its network returns {found}; it must return logits [N, '
                    f'{num_classes}], or these and those of an auxiliary head'
                )
        return built


_networks: dict[str, RegisteredNetwork] = {}
# The files that were loaded; the last one while it is.
_loaded: set[Path] = set()
_loading: list[str] = []


def register_model(
    name: str,
    build: Build,
    *,
    data_set: str = 'imagenet',
    image_size: int = 224,
    batch_size: int = 32,
    learning_rate: float = 0.005,
    batch_norm: 'BatchNorm | None' = None,
) -> None:
    """Adds a model, which --model=name then finds.

    Args:
      build: (cnn, images, num_classes) -> logits [N, num_classes] float32, or (logits, logits of an auxiliary head or
        None). cnn is a models.layers.LayerBuilder, which makes every layer; images are [N, H, W, C], or [N, C, H, W]
        with --data_format=NCHW, float32 in [-1, 1].
      data_set: imagenet, cifar10 or mnist. On a folder made by the word records every model trains.
      image_size: height and width of the images in pixels.
      batch_size: the default of --batch_size. learning_rate: that of --init_learning_rate.
      batch_norm: the settings of its batch normalisation; by default models.layers.BatchNorm().

    Raises:
      ValueError: there is a model of this name, or a value makes no sense.
    """
    if data_set not in DATA_SETS:
        raise ValueError(f'data_set={data_set!r}: there is no such data set; write {", ".join(DATA_SETS)}')
    for what, value in (('image_size', image_size), ('batch_size', batch_size), ('learning_rate', learning_rate)):
        if not value > 0:
            raise ValueError(f'{what}={value}: it must be above 0')
    add_model(ModelFacts(name, data_set, image_size, batch_size, learning_rate))
    _networks[name] = RegisteredNetwork(name, build, batch_norm, _loading[-1] if _loading else None)


def registered_network(name: str) -> RegisteredNetwork:
    """The network of a model that was registered. Raises KeyError if none was."""
    return _networks[name]


def is_registered(name: str) -> bool:
    """Whether a model is one that register_model added."""
    return name in _networks


def load_model_file(path: str) -> None:
    """Runs a Python file, which calls register_model, once in this process. What it prints goes to standard error.

    Modules beside the file can be imported by it, as if it were run by itself.

    Raises:
      UsageError: it cannot be read, or it fails; the line names the file and its line. It registers no model.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f'{spelled("model_file", path)}: there is no such file; write the path of a Python file')
    if (resolved := file.resolve()) in _loaded:
        return
    before = set(_networks)
    loader = SourceFileLoader(f'model_file_{len(_loaded)}', str(resolved))
    module = types.ModuleType(loader.name)
    module.__file__ = loader.path
    if str(resolved.parent) not in sys.path:
        sys.path.append(str(resolved.parent))
    _loading.append(path)
    try:
        with _told_of(path), contextlib.redirect_stdout(sys.stderr):
            loader.exec_module(module)
    except UsageError:
        # So that the file can be loaded again when it is mended.
        for name in set(_networks) - before:
            remove_model(name)
            del _networks[name]
        raise
    finally:
        _loading.pop()
    if before == set(_networks):
        raise UsageError(f'{spelled("model_file", path)}: it registers no model; let it call register_model')
    _loaded.add(resolved)


@contextlib.contextmanager
def _told_of(path: str) -> Iterator[None]:
    """What fails within is told in one line, with the line of the file at which it failed."""
    try:
        yield
    except BenchmarkError:
        raise
    except (Exception, SystemExit) as error:
        file = str(Path(path).resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        reason = ' '.join(str(error).split())
        if isinstance(error, SyntaxError) and error.filename == file:
            lines, reason = [error.lineno], error.msg
        place = f', line {lines[-1]}' if lines else ''
        raise UsageError(f'{spelled("model_file", path)}{place}: {type(error).__name__}: {reason}') from error
