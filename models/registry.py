"""All models of this process: built-in models, and models that users register. Does not import
TensorFlow.
"""

import fnmatch
from collections.abc import Iterable
from dataclasses import replace

from models.catalog import read_catalog
from models.model_spec import BatchNorm, Build, ModelSpec, Network
from tf_cnn.inputs.data_sets import DATA_SETS, RECORDS
from tf_cnn.system.errors import UsageError, format_flag, join_with_or, similar_names
from tf_cnn.system.user_file import UserFile, running_file

# Models of the original program that this program leaves out: they do not classify images.
NOT_CLASSIFIERS = {
    'ssd300': 'it detects objects',
    'ncf': 'it recommends',
    'deepspeech2': 'it recognises speech',
}
_NUMBERS = ('image_size', 'batch_size', 'learning_rate')
# How many names an error suggests for an unknown model.
_SUGGESTIONS = 3


class Registry:
    """Models by name and data set."""

    def __init__(self, rows: Iterable[ModelSpec]) -> None:
        self._rows: list[ModelSpec] = []
        self.register(*rows)

    def register(self, *rows: ModelSpec) -> None:
        """Adds models. All rows of a model are added in one call; its first row has its default
        data set.

        Raises ValueError if a name is taken or a value is invalid.
        """
        taken_names = {row.name for row in self._rows} | {*NOT_CLASSIFIERS}
        for row in rows:
            if row.name in taken_names:
                raise ValueError(
                    f'{row.name}: there is already a model of this name; choose another name'
                )
            if row.data_set not in DATA_SETS:
                raise ValueError(
                    f'data_set={row.data_set!r}: there is no such data set; use '
                    f'{", ".join(DATA_SETS)}'
                )
            for field_name in _NUMBERS:
                if not (value := getattr(row, field_name)) > 0:
                    raise ValueError(f'{field_name}={value}: it must be above 0')
        self._rows += rows

    def unregister(self, *names: str) -> None:
        self._rows = [row for row in self._rows if row.name not in names]

    def list_models(self, pattern: str = '*') -> list[str]:
        """Returns the names that match a pattern with shell wildcards, sorted."""
        return list(dict.fromkeys(model.name for model in self.list_specs(pattern)))

    def list_specs(self, pattern: str = '*') -> list[ModelSpec]:
        """Returns the rows of the models that list_models names."""
        rows = sorted(self._rows, key=lambda row: row.name)
        return [model for model in rows if fnmatch.fnmatchcase(model.name, pattern)]

    def find_model(
        self, name: str, data_set: str | None = None, source: str | None = None
    ) -> ModelSpec:
        """Returns the row of a model for a data set, by default for the model's default data set.

        Every model trains on a folder made by `records`, with the settings of its default data set.

        Args:
          source: the data set and where it comes from, for errors; None if it comes from
            --data_name.

        Raises UsageError if there is no such row.
        """
        flag = format_flag('model', name)
        if name in NOT_CLASSIFIERS:
            raise UsageError(
                f'{flag}: {NOT_CLASSIFIERS[name]}; this program has image classifiers only'
            )
        rows = [row for row in self._rows if row.name == name]
        if not rows:
            suggestions = similar_names(name, (row.name for row in self._rows), _SUGGESTIONS)
            hint = f'did you mean {join_with_or(suggestions)}? The' if suggestions else 'the'
            raise UsageError(
                f'{flag}: there is no such model; {hint} subcommand models lists all '
                f'{len(self.list_models())}, and --model_file=FILE adds yours'
            )
        for row in rows:
            if data_set in (None, row.data_set):
                return row
        if data_set == RECORDS:
            return replace(rows[0], data_set=RECORDS)
        if source:
            names = dict.fromkeys(row.name for row in self.list_specs() if row.data_set == data_set)
            raise UsageError(
                f'{flag}: it is not defined for {source}; models for this data set: '
                f'{", ".join(names)}'
            )
        sets = ' or '.join(row.data_set for row in rows)
        raise UsageError(
            f'{flag}: it is not defined for --data_name={data_set}; use --data_name={sets}'
        )


MODELS = Registry(read_catalog())


def register_model(
    name: str,
    build: Build,
    *,
    data_set: str = 'imagenet',
    image_size: int = 224,
    batch_size: int = 32,
    learning_rate: float = 0.005,
    batch_norm: BatchNorm | None = None,
) -> None:
    """Adds a model for --model=name, for the data set imagenet, cifar10 or mnist, and for folders
    made by `records`.

    A model with 'resnet' in its name counts as a residual network: --resnet_base_lr applies to it.

    Args:
      build: (cnn, images, num_classes) -> logits [N, num_classes], or (logits, logits of an
        auxiliary head or None). cnn is a models.layers.LayerBuilder, which makes every layer;
        images are [N, H, W, C], or [N, C, H, W] with --data_format=NCHW, in [-1, 1] unless
        --input_preprocessor or --ml_perf says otherwise, float32 or the 16-bit type of --use_fp16.
      image_size: height and width of the images in pixels.
      batch_size: the default of --batch_size.
      learning_rate: the default of --init_learning_rate.
      batch_norm: by default models.layers.BatchNorm().

    Raises ValueError or TypeError if there is already a model of this name, or a value is invalid.
    """
    network = Network(build, batch_norm=batch_norm or BatchNorm(), file=running_file())
    MODELS.register(ModelSpec(name, data_set, image_size, batch_size, learning_rate, network))


def load_model_file(path: str) -> None:
    """Runs a Python file that calls register_model, unless MODELS has its models already.

    Raises UsageError if the file cannot be read, fails (the message names its line) or registers no
    model. MODELS is unchanged then, so that the corrected file can be loaded.
    """
    file, models = UserFile.read('model_file', path), MODELS.list_specs()
    if any(row.network.file and row.network.file.path == file.path for row in models):
        return
    names_before = {row.name for row in models}
    try:
        file.run()
    except UsageError:
        MODELS.unregister(*{*MODELS.list_models()} - names_before)
        raise
    if names_before == {*MODELS.list_models()}:
        raise UsageError(f'{file.flag_text}: it registers no model; call register_model in it')
