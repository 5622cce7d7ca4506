"""The flags about the input pipeline, which turns records into batches on the device."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, flag
from tf_cnn.inputs.catalog import (
    ARRAY_PIPELINES,
    DEVICE,
    FEED_DICT,
    PIPELINES,
    RECORD_INPUT,
    SYNTHETIC_PIPELINES,
    TF_DATA,
    record_pipeline_row,
)
from tf_cnn.inputs.pipeline_stages import STAGES
from tf_cnn.inputs.tf_data_settings import TfDataSettings
from tf_cnn.params.rules import SYNTHETIC, RunContext

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

_DEFAULTS = TfDataSettings()


def record_pipeline_name(params: 'Params') -> str:
    """Returns the name of the pipeline for records, and for other images if it reads them."""
    return record_pipeline_row(params.input_pipeline, deterministic=params.deterministic).name


_VALIDATION = IgnoredWhen(
    lambda p, run: p.eval, '--eval reads each validation image once, in the order of the files'
)
_ARRAYS = IgnoredWhen(
    lambda p, run: not run.has_records, 'it is for records, and --data_dir contains none'
)
_TF_DATA = (
    SYNTHETIC,
    _VALIDATION,
    _ARRAYS,
    IgnoredWhen(
        lambda p, run: record_pipeline_name(p) != TF_DATA,
        f'only --input_pipeline={TF_DATA} uses it',
    ),
)


def _tf_data_flag(default: Any, help: str, *idle: IgnoredWhen, **facts: Any) -> Any:
    return flag(default, f'With {TF_DATA}: {help}', ignored=(*_TF_DATA, *idle), **facts)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class InputFlags:
    """The part of Params about the input pipeline."""

    GROUP: ClassVar[str] = 'Input pipeline'

    input_pipeline: str | None = flag(
        None,
        f'How images become batches. {RECORD_INPUT}: the operation RecordInput reads records. '
        f'{TF_DATA}: tf.data reads records. {DEVICE}: each device holds all images. '
        f'{FEED_DICT}: Python feeds each batch, synthetic images too. See docs/data.md. By default '
        f'{RECORD_INPUT}, or {TF_DATA} with --deterministic.',
        choices=PIPELINES,
        original=NEW,
        ignored=(
            IgnoredWhen(
                lambda p, run: p.data_dir is None and p.input_pipeline not in SYNTHETIC_PIPELINES,
                SYNTHETIC.reason,
            ),
            _VALIDATION,
            IgnoredWhen(
                lambda p, run: not run.has_records and p.input_pipeline not in ARRAY_PIPELINES,
                _ARRAYS.reason,
            ),
        ),
    )
    input_only: str | None = flag(
        None,
        'Run the input pipeline alone, without the model, up to this stage, and print a table of '
        f'the stages. {"; ".join(f"{name}: {does}" for name, does in STAGES.items())}.',
        choices=tuple(STAGES),
        common=True,
        original=NEW,
        not_in_cluster='each worker of a cluster has a separate pipeline; measure it '
        'in one process',
        not_in_exchange=True,
    )
    datasets_use_prefetch: bool = _tf_data_flag(
        True, 'prepare batches ahead, see --datasets_prefetch_buffer_size.'
    )
    datasets_prefetch_buffer_size: int = _tf_data_flag(
        _DEFAULTS.prefetched_batches,
        'the number of batches prepared ahead, in addition to the batches that wait for each '
        'device.',
        IgnoredWhen(
            lambda p, run: not p.datasets_use_prefetch,
            '--nodatasets_use_prefetch prepares no batches ahead',
        ),
        lower_bound=1,
        unit='batches',
    )
    multi_device_iterator_max_buffer_size: int = _tf_data_flag(
        _DEFAULTS.batches_per_device,
        'the number of batches that wait in host memory for each device.',
        lower_bound=1,
        unit='batches',
    )
    datasets_parallel_interleave_cycle_length: int | None = _tf_data_flag(
        None,
        f'the number of shards read at the same time; by default {_DEFAULTS.cycle_length}.',
        lower_bound=1,
        unit='shards',
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
        IgnoredWhen(
            lambda p, run: p.datasets_repeat_cached_sample,
            '--datasets_repeat_cached_sample reads one record only',
        ),
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


def tf_data_settings(params: 'Params') -> TfDataSettings:
    return TfDataSettings(
        cycle_length=params.datasets_parallel_interleave_cycle_length or _DEFAULTS.cycle_length,
        sloppy=params.datasets_sloppy_parallel_interleave,
        prefetched_shards=params.datasets_parallel_interleave_prefetch,
        caches_records=params.datasets_use_caching,
        repeats_first_record=params.datasets_repeat_cached_sample,
        prefetched_batches=params.datasets_prefetch_buffer_size
        if params.datasets_use_prefetch
        else 0,
        batches_per_device=params.multi_device_iterator_max_buffer_size,
        private_threads=params.datasets_num_private_threads,
    )


def keeps_images_in_memory(params: 'Params') -> bool:
    """Whether the images of --data_dir are read into memory in the model's size before the first
    step.
    """
    return (
        params.data_dir is not None
        and not params.eval
        and record_pipeline_row(params.input_pipeline, deterministic=False).in_memory
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    reads_records = params.data_dir is not None and run and run.has_records and not params.eval
    if params.deterministic and reads_records:
        if not record_pipeline_row(params.input_pipeline, deterministic=True).repeatable:
            yield params.conflict(
                'input_pipeline',
                'deterministic',
                f'the order of its records depends on timing; use --input_pipeline={TF_DATA}',
            )
        elif params.datasets_sloppy_parallel_interleave:
            yield params.conflict(
                'datasets_sloppy_parallel_interleave',
                'deterministic',
                'the order of records then depends on timing; remove one',
            )
    if params.input_only:
        if params.eval:
            yield params.conflict(
                'input_only', 'eval', 'validation images are read differently; remove one'
            )
        elif params.data_dir is None:
            yield (
                f'{params.flag_text("input_only")}: without --data_dir images are synthetic and '
                'stay on the device; add --data_dir=DIR'
            )
        elif params.evaluates_in_training:
            yield (
                f'{params.flag_text("input_only")} conflicts with --eval_during_training_*: there '
                'is no model to evaluate; remove one'
            )
    elif params.input_pipeline == FEED_DICT and params.steps_per_run > 1 and not params.eval:
        yield params.conflict(
            'input_pipeline',
            'steps_per_run',
            f'each step gets its batch from Python; remove one, or use --input_pipeline={DEVICE}',
        )
    if keeps_images_in_memory(params) and params.trains:
        if params.distortions:
            yield params.conflict(
                'input_pipeline', 'distortions', 'it shifts and flips images only; remove one'
            )
        if params.augmentation == 'resized_crop':
            yield params.conflict(
                'input_pipeline',
                'augmentation',
                'it keeps each image in one size, and cuts no other parts out of the photograph; '
                'use --augmentation=padded_crop or none',
            )
