"""The flags about data: which images a run uses, and how they are preprocessed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, flag
from tf_cnn.inputs.data_sets import DATA_NAMES, RECORDS
from tf_cnn.inputs.preprocessors import DEFAULT, PREPROCESSORS
from tf_cnn.params.rules import IN_EVAL, SYNTHETIC, RunContext, ignored_in_forward_only

if TYPE_CHECKING:
    from tf_cnn.params.table import Params


_NOT_AUGMENTED = ignored_in_forward_only('--forward_only does not augment images')
_NO_PHOTOGRAPHS = IgnoredWhen(
    lambda p, run: not run.has_records, 'it is about photographs in records'
)
_PLAIN = IgnoredWhen(
    lambda p, run: PREPROCESSORS[p.input_preprocessor].is_plain,
    '--input_preprocessor decides how images are resized, and changes no colours',
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DataFlags:
    """The part of Params about data."""

    GROUP: ClassVar[str] = 'Data'

    data_dir: str | None = flag(
        None,
        'Folder of TFRecord shards, or of the files of CIFAR-10 or MNIST; by default images are '
        'synthetic.',
        is_path=True,
        common=True,
        inside=(
            '*-of-*',
            '*-ubyte*',
            '*_batch*',
            'batches.meta*',
            'labels.txt',
            'dataset.json',
            '*.npy',
        ),
        not_in_exchange=True,
    )
    data_name: str | None = flag(
        None,
        'The data set; by default the one found in --data_dir, else the first of the model. '
        f'{RECORDS} is a folder that the subcommand records made; it defines the '
        f'classes.',
        choices=DATA_NAMES,
        common=True,
    )
    augmentation: str | None = flag(
        None,
        'Random changes of training images. resized_crop: a random part of random shape, resized, '
        'and flips. padded_crop: a shift by up to 4 pixels, and flips. none: no change. By default '
        'padded_crop for cifar10, none for mnist, else resized_crop.',
        choices=('resized_crop', 'padded_crop', 'none'),
        original=NEW,
        ignored=(SYNTHETIC,),
    )
    distortions: bool = flag(
        False,
        'Change the colours of training images at random.',
        ignored=(IN_EVAL, _NOT_AUGMENTED, SYNTHETIC, _PLAIN),
    )
    distort_color_in_yiq: bool = flag(
        True,
        'With --distortions: change saturation and hue in YIQ, where all changes of colour '
        'are one matrix product. If false, change them in HSV, which takes several times as long.',
        ignored=(
            IN_EVAL,
            _NOT_AUGMENTED,
            SYNTHETIC,
            _PLAIN,
            IgnoredWhen(lambda p, run: not p.distortions, 'only --distortions changes colours'),
        ),
    )
    resize_method: str = flag(
        'bilinear',
        'Interpolation for resizing images to the size of the model; round_robin alternates '
        'between the other methods.',
        choices=('nearest', 'bilinear', 'bicubic', 'area', 'round_robin'),
        original='there resizing samples the corners of pixels, here their centres',
        ignored=(SYNTHETIC, _PLAIN),
    )
    scaled_decode: bool = flag(
        False,
        'Let the JPEG decoder scale photographs to a half, quarter or eighth, but not below the '
        'size of the model; resizing does the rest. Photographs of several megapixels decode '
        'faster, and pixels change slightly.',
        original=NEW,
        ignored=(SYNTHETIC, _NO_PHOTOGRAPHS),
    )
    input_preprocessor: str = flag(
        DEFAULT,
        f'How the images of records are preprocessed. '
        f'{"; ".join(f"{row.name}: {row.summary}" for row in PREPROCESSORS.values())}.',
        choices=tuple(PREPROCESSORS),
        ignored=(SYNTHETIC, _NO_PHOTOGRAPHS),
    )
    ml_perf: bool = flag(
        False,
        'Normalise the images of records by the rules of MLPerf: subtract the mean colour of '
        'ImageNet, without scaling.',
        ignored=(
            SYNTHETIC,
            _NO_PHOTOGRAPHS,
            IgnoredWhen(
                lambda p, run: p.input_preprocessor != DEFAULT,
                '--input_preprocessor normalises images in the same way',
            ),
        ),
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    if params.data_name == RECORDS and params.data_dir is None:
        yield (
            f'--data_name={RECORDS}: the data folder defines the classes; add --data_dir=DIR, or '
            'remove --data_name'
        )
