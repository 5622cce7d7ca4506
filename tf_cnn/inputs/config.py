"""The flags about data and the input pipeline. Does not import TensorFlow."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tf_cnn.flags.spec import (
    IN_EVAL,
    IN_FORWARD_ONLY,
    NEW,
    NO_COMPUTING,
    SYNTHETIC,
    Note,
    flag,
    specs_of,
)
from tf_cnn.inputs.catalog import (
    ARRAY_PIPELINES,
    DEFAULT,
    DEVICE,
    FEED_DICT,
    PIPELINES,
    PREPROCESSORS,
    RECORD_INPUT,
    SYNTHETIC_PIPELINES,
    TF_DATA,
    InputRow,
    record_pipeline_row,
)
from tf_cnn.inputs.data_sets import DATA_NAMES, RECORDS
from tf_cnn.inputs.pipeline_stages import STAGES

if TYPE_CHECKING:
    from tf_cnn.plan.params import Params, RuleContext
    from tf_cnn.plan.workload import Context


@dataclass(frozen=True)
class DataConfig:
    """Which images a run uses, and how they are preprocessed."""

    GROUP: ClassVar[str] = 'Data'

    data_dir: str | None = flag(
        None,
        'Folder of TFRecord shards, or of the files of CIFAR-10 or MNIST; by default images are '
        'synthetic.',
        is_path=True,
        common=True,
    )
    data_name: str | None = flag(
        None,
        'The data set; by default the one found in --data_dir, else the first of the model. '
        f'{RECORDS} is a folder that the subcommand records made; it defines the '
        'classes.',
        choices=DATA_NAMES,
        common=True,
        chosen=True,
    )
    augmentation: str | None = flag(
        None,
        'Random changes of training images. resized_crop: a random part of random shape, resized, '
        'and flips. padded_crop: a shift by up to 4 pixels, and flips. none: no change. By default '
        'padded_crop for cifar10, none for mnist, else resized_crop.',
        choices=('resized_crop', 'padded_crop', 'none'),
        original=NEW,
        chosen=True,
        ignored=(SYNTHETIC,),
    )
    distortions: bool = flag(
        False,
        'Change the colours of training images at random.',
        ignored=(IN_EVAL, IN_FORWARD_ONLY, SYNTHETIC),
    )
    distort_color_in_yiq: bool = flag(
        True,
        'With --distortions: change saturation and hue in YIQ, where all changes of colour '
        'are one matrix product. If false, change them in HSV, which takes several times as long.',
        ignored=(IN_EVAL, IN_FORWARD_ONLY, SYNTHETIC),
    )
    resize_method: str = flag(
        'bilinear',
        'Interpolation for resizing images to the size of the model; round_robin alternates '
        'between the other methods.',
        choices=('nearest', 'bilinear', 'bicubic', 'area', 'round_robin'),
        original='there resizing samples the corners of pixels, here their centres',
        ignored=(SYNTHETIC,),
    )
    scaled_decode: bool = flag(
        False,
        'Let the JPEG decoder scale photographs to a half, quarter or eighth, but not below the '
        'size of the model; resizing does the rest. Photographs of several megapixels decode '
        'faster, and pixels change slightly.',
        original=NEW,
        ignored=(SYNTHETIC,),
    )
    input_preprocessor: str = flag(
        DEFAULT,
        f'How the images of records are preprocessed. '
        f'{"; ".join(f"{row.name}: {row.summary}" for row in PREPROCESSORS.values())}.',
        choices=tuple(PREPROCESSORS),
        ignored=(SYNTHETIC,),
    )
    ml_perf: bool = flag(
        False,
        'Normalise the images of records by the rules of MLPerf: subtract the mean colour of '
        'ImageNet, without scaling.',
        ignored=(SYNTHETIC,),
    )

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        return replace(
            self,
            data_name=context.data.data_set.name,
            augmentation=context.data.augmentation,
        )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        if self.data_name == RECORDS and self.data_dir is None:
            yield (
                f'--data_name={RECORDS}: the data folder defines the classes; add --data_dir=DIR, '
                'or remove --data_name'
            )
        if PREPROCESSORS[self.input_preprocessor].is_plain and rules.has_records:
            reason = '--input_preprocessor decides how images are resized, and changes no colours'
            yield ('distortions', 'distort_color_in_yiq', 'resize_method'), reason
        if not self.distortions:
            yield ('distort_color_in_yiq',), 'only --distortions changes colours'
        if not rules.has_records:
            names = ('scaled_decode', 'input_preprocessor', 'ml_perf')
            yield names, 'it is about photographs in records'
        if self.input_preprocessor != DEFAULT:
            yield ('ml_perf',), '--input_preprocessor normalises images in the same way'


_CYCLE_LENGTH = 16
_OF_ALL_PIPELINES = ('input_pipeline', 'input_only')


def _tf_data_flag(default: Any, help: str, **properties: Any) -> Any:
    return flag(default, f'With {TF_DATA}: {help}', ignored=(SYNTHETIC,), **properties)


@dataclass(frozen=True)
class PipelineConfig:
    """The input pipeline, which turns images into batches on the devices."""

    GROUP: ClassVar[str] = 'Input pipeline'

    input_pipeline: str | None = flag(
        None,
        f'How images become batches. {RECORD_INPUT}: the operation RecordInput reads records. '
        f'{TF_DATA}: tf.data reads records. {DEVICE}: each device holds all images. '
        f'{FEED_DICT}: Python feeds each batch, synthetic images too. See docs/data.md. By default '
        f'{RECORD_INPUT}, or {TF_DATA} with --deterministic.',
        choices=PIPELINES,
        original=NEW,
        chosen=True,
        ignored=(NO_COMPUTING,),
    )
    input_only: str | None = flag(
        None,
        'Run the input pipeline alone, without the model, up to this stage, and print a table of '
        f'the stages. {"; ".join(f"{name}: {does}" for name, does in STAGES.items())}.',
        choices=tuple(STAGES),
        common=True,
        original=NEW,
    )
    datasets_use_prefetch: bool = _tf_data_flag(
        True, 'prepare batches ahead, see --datasets_prefetch_buffer_size.'
    )
    datasets_prefetch_buffer_size: int = _tf_data_flag(
        1,
        'the number of batches prepared ahead, in addition to the batches that wait for each '
        'device.',
        lower_bound=1,
        unit='batches',
    )
    multi_device_iterator_max_buffer_size: int = _tf_data_flag(
        1,
        'the number of batches that wait in host memory for each device.',
        lower_bound=1,
        unit='batches',
    )
    datasets_parallel_interleave_cycle_length: int | None = _tf_data_flag(
        None,
        f'the number of shards read at the same time; by default {_CYCLE_LENGTH}.',
        lower_bound=1,
        unit='shards',
        chosen=True,
    )
    datasets_parallel_interleave_prefetch: int | None = _tf_data_flag(
        None,
        'the number of further shards opened ahead; by default tf.data decides.',
        lower_bound=1,
        unit='shards',
    )
    datasets_sloppy_parallel_interleave: bool = _tf_data_flag(
        False,
        'do not wait for the next shard in turn, so that the order of records depends on timing.',
    )
    datasets_use_caching: bool = _tf_data_flag(
        False,
        'keep all undecoded records in memory after reading them once.',
    )
    datasets_repeat_cached_sample: bool = _tf_data_flag(
        False, 'use the first record for every image, to measure input without reading.'
    )
    datasets_num_private_threads: int | None = _tf_data_flag(
        None,
        'the number of private threads; by default it shares the threads of TensorFlow.',
        lower_bound=1,
        unit='threads',
    )

    def row(self, params: 'Params') -> InputRow:
        """Returns the pipeline for records. It also reads other images, if it can."""
        return record_pipeline_row(self.input_pipeline, deterministic=params.run.deterministic)

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        return replace(
            self,
            input_pipeline=context.data.input_row.name,
            datasets_parallel_interleave_cycle_length=self.cycle_length,
        )

    @property
    def cycle_length(self) -> int:
        """How many shards tf.data reads at the same time."""
        return self.datasets_parallel_interleave_cycle_length or _CYCLE_LENGTH

    @property
    def prefetched_batches(self) -> int:
        return self.datasets_prefetch_buffer_size if self.datasets_use_prefetch else 0

    def keeps_images_in_memory(self, params: 'Params') -> bool:
        """Whether the images of --data_dir are read into memory in the model's size before the
        first step.
        """
        return (
            params.data.data_dir is not None
            and not params.evaluation.eval
            and self.row(params).in_memory
        )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        evaluates = params.evaluation.eval
        of_tf_data = tuple(name for name in specs_of(type(self)) if name not in _OF_ALL_PIPELINES)
        if params.data.data_dir is None and self.input_pipeline not in SYNTHETIC_PIPELINES:
            yield ('input_pipeline',), SYNTHETIC
        if evaluates:
            reason = '--eval reads each validation image once, in the order of the files'
            yield ('input_pipeline', *of_tf_data), reason
        if not rules.has_records:
            reason = 'it is for records, and --data_dir contains none'
            yield of_tf_data, reason
            if self.input_pipeline not in ARRAY_PIPELINES:
                yield ('input_pipeline',), reason
        if self.row(params).name != TF_DATA:
            yield of_tf_data, f'only --input_pipeline={TF_DATA} uses it'
        if not self.datasets_use_prefetch:
            reason = '--nodatasets_use_prefetch prepares no batches ahead'
            yield ('datasets_prefetch_buffer_size',), reason
        if self.datasets_repeat_cached_sample:
            reason = '--datasets_repeat_cached_sample reads one record only'
            yield ('datasets_use_caching',), reason
        reads_records = params.data.data_dir is not None and rules.has_records
        if params.run.deterministic and reads_records and not evaluates:
            if not self.row(params).repeatable:
                yield params.conflict(
                    'input_pipeline',
                    'deterministic',
                    f'the order of its records depends on timing; use --input_pipeline={TF_DATA}',
                )
            elif self.datasets_sloppy_parallel_interleave:
                yield params.conflict(
                    'datasets_sloppy_parallel_interleave',
                    'deterministic',
                    'the order of records then depends on timing; remove one',
                )
        if self.input_only:
            yield from self._input_only_problems(params)
        elif (
            self.input_pipeline == FEED_DICT
            and params.run.steps_per_run > 1
            and not (evaluates or params.run.exchange_only)
        ):
            yield params.conflict(
                'input_pipeline',
                'steps_per_run',
                'each step gets its batch from Python; remove one, or use '
                f'--input_pipeline={DEVICE}',
            )
        if self.keeps_images_in_memory(params) and params.trains:
            if params.data.distortions:
                yield params.conflict(
                    'input_pipeline', 'distortions', 'it shifts and flips images only; remove one'
                )
            if params.data.augmentation == 'resized_crop':
                yield params.conflict(
                    'input_pipeline',
                    'augmentation',
                    'it keeps each image in one size, and cuts no other parts out of the '
                    'photograph; use --augmentation=padded_crop or none',
                )
        if self.input_only and not rules.is_single_process:
            yield (
                f'{params.flag_text("input_only")}: each worker of a cluster has a separate '
                'pipeline; measure it in one process; remove it'
            )

    def _input_only_problems(self, params: 'Params') -> Iterator[str]:
        if params.evaluation.eval:
            yield params.conflict(
                'input_only', 'eval', 'validation images are read differently; remove one'
            )
        elif params.data.data_dir is None:
            yield (
                f'{params.flag_text("input_only")}: without --data_dir images are synthetic and '
                'stay on the device; add --data_dir=DIR'
            )
        elif params.evaluates_in_training:
            yield (
                f'{params.flag_text("input_only")} conflicts with --eval_during_training_*: there '
                'is no model to evaluate; remove one'
            )
