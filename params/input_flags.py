"""The flags about how records become batches on the device, and the rules between them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import format_flag
from inputs.catalog import (
    DEVICE,
    FEED_DICT,
    PIPELINES,
    PIPELINES_OF_ARRAYS,
    PIPELINES_OF_SYNTHETIC,
    RECORD_INPUT,
    TF_DATA,
    record_pipeline,
)
from inputs.stages import STAGES
from inputs.tf_data_settings import TfDataSettings
from params.rules import Idle, Rule, RunFacts, RunRule
from params.spec import NEW, flag

if TYPE_CHECKING:
    from params.table import Params

_DEFAULTS = TfDataSettings()


def chosen_pipeline(params: 'Params') -> str:
    """The name of the pipeline for records, and for other images if the pipeline reads those."""
    return record_pipeline(params.input_pipeline, deterministic=params.deterministic).name


_SYNTHETIC = Idle(lambda p, run: p.data_dir is None, 'images are synthetic without --data_dir')
_VALIDATION = Idle(lambda p, run: p.eval, '--eval reads each validation image once, in the order of the files')
_ARRAYS = Idle(lambda p, run: not run.has_records, 'it is about records, and --data_dir contains none of them')
_TF_DATA = (
    _SYNTHETIC,
    _VALIDATION,
    _ARRAYS,
    Idle(lambda p, run: chosen_pipeline(p) != TF_DATA, f'it acts with --input_pipeline={TF_DATA} only'),
)


def _other_than(reason: Idle, *pipelines: str) -> Idle:
    """Explicitly passing the default pipeline does not count as a request; those given have an effect all the same."""
    idle = set(PIPELINES) - {RECORD_INPUT, *pipelines}
    return Idle(lambda p, run: p.input_pipeline in idle and reason.when(p, run), reason.reason)


_CHOICE = (
    _other_than(_SYNTHETIC, *PIPELINES_OF_SYNTHETIC),
    _other_than(_VALIDATION),
    _other_than(_ARRAYS, *PIPELINES_OF_ARRAYS),
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class InputFlags:
    """The part of Params about the input pipeline."""

    GROUP: ClassVar[str] = 'Input pipeline'

    input_pipeline: str | None = flag(
        None,
        f'How images become batches. {RECORD_INPUT}: records are read by the operation RecordInput. {TF_DATA}: records '
        f'are read by tf.data. {DEVICE}: each device holds all images and gathers its batches from them. {FEED_DICT}: '
        'Python draws each batch, and the call of the session takes it along. The last two read the whole data set '
        f'into memory before the first step; {FEED_DICT} also feeds synthetic images. By default {RECORD_INPUT} for '
        f'records, {TF_DATA} with --deterministic. --use_datasets is an older name for {TF_DATA}.',
        choices=PIPELINES,
        original=NEW,
        idle=_CHOICE,
    )
    input_only: str | None = flag(
        None,
        'Run the input pipeline alone, without the model, up to this stage, and print a table of the stages. '
        f'{"; ".join(f"{name}: {does}" for name, does in STAGES.items())}.',
        choices=tuple(STAGES),
        common=True,
        original=NEW,
        not_in_exchange=True,
    )
    datasets_use_prefetch: bool = flag(
        True, f'With {TF_DATA}: prepare batches ahead, see the next flag.', idle=_TF_DATA
    )
    datasets_prefetch_buffer_size: int = flag(
        _DEFAULTS.prefetched_batches,
        f'With {TF_DATA}: how many batches are prepared ahead, besides those that wait for each device.',
        lower_bound=1,
        unit='batches',
        idle=(
            *_TF_DATA,
            Idle(lambda p, run: not p.datasets_use_prefetch, '--nodatasets_use_prefetch prepares no batches ahead'),
        ),
    )
    multi_device_iterator_max_buffer_size: int = flag(
        _DEFAULTS.batches_per_device,
        f'With {TF_DATA}: how many batches wait in host memory for each device.',
        lower_bound=1,
        unit='batches',
        idle=_TF_DATA,
    )
    datasets_parallel_interleave_cycle_length: int | None = flag(
        None,
        f'With {TF_DATA}: how many shards are read at the same time; by default {_DEFAULTS.cycle_length}.',
        lower_bound=1,
        unit='shards',
        idle=_TF_DATA,
    )
    datasets_parallel_interleave_prefetch: int | None = flag(
        None,
        f'With {TF_DATA}: how many further shards are opened ahead; by default tf.data decides.',
        lower_bound=1,
        unit='shards',
        idle=_TF_DATA,
    )
    datasets_sloppy_parallel_interleave: bool = flag(
        False,
        f'With {TF_DATA}: do not wait for the shard whose turn it is, so that the order of records depends on timing.',
        idle=_TF_DATA,
    )
    datasets_use_caching: bool = flag(
        False,
        f'With {TF_DATA}: keep all records, as they are in the shards, in memory after their first reading.',
        idle=(
            *_TF_DATA,
            Idle(
                lambda p, run: p.datasets_repeat_cached_sample, '--datasets_repeat_cached_sample reads one record only'
            ),
        ),
    )
    datasets_repeat_cached_sample: bool = flag(
        False, f'With {TF_DATA}: use the first record for every image, to measure input without reading.', idle=_TF_DATA
    )
    datasets_num_private_threads: int | None = flag(
        None,
        f'With {TF_DATA}: the number of its own threads; by default it shares those of TensorFlow.',
        lower_bound=1,
        unit='threads',
        idle=_TF_DATA,
    )


def tf_data_settings(params: 'Params') -> TfDataSettings:
    return TfDataSettings(
        cycle_length=params.datasets_parallel_interleave_cycle_length or _DEFAULTS.cycle_length,
        sloppy=params.datasets_sloppy_parallel_interleave,
        prefetched_shards=params.datasets_parallel_interleave_prefetch,
        caches=params.datasets_use_caching,
        repeats_one=params.datasets_repeat_cached_sample,
        prefetched_batches=params.datasets_prefetch_buffer_size if params.datasets_use_prefetch else 0,
        batches_per_device=params.multi_device_iterator_max_buffer_size,
        private_threads=params.datasets_num_private_threads,
    )


def _reads_records(params: 'Params', run: RunFacts) -> bool:
    return params.data_dir is not None and run.has_records and not params.eval


def _the_order_of_records_is_deterministic(params: 'Params', run: RunFacts) -> str | None:
    if not (params.deterministic and _reads_records(params, run)):
        return None
    if not record_pipeline(params.input_pipeline, deterministic=True).repeatable:
        return (
            f'{params.written("input_pipeline")} clashes with --deterministic: the order of its records depends on '
            f'timing; write --input_pipeline={TF_DATA}'
        )
    if params.datasets_sloppy_parallel_interleave:
        return (
            '--datasets_sloppy_parallel_interleave clashes with --deterministic: the order of records then depends on '
            'timing; leave one out'
        )
    return None


def _only_an_input_is_measured(params: 'Params') -> str | None:
    if params.input_only is None:
        return None
    written = format_flag('input_only', params.input_only)
    if params.eval:
        return f'{written} clashes with --eval: validation images are read in another way; leave one out'
    if params.evaluates_in_training:
        return f'{written} clashes with --eval_during_training_*: there is no model to evaluate; leave one out'
    if params.data_dir is None:
        return f'{written}: without --data_dir images are synthetic and stay on the device; add --data_dir=DIR'
    return None


def _an_input_is_measured_alone(params: 'Params', run: RunFacts) -> str | None:
    if params.input_only is None or run.alone:
        return None
    return (
        f'{format_flag("input_only", params.input_only)}: the workers of a cluster have pipelines of their own, '
        'which are measured in one process; leave the other tasks out'
    )


def keeps_images_in_memory(params: 'Params') -> bool:
    """Whether the images of --data_dir are read into memory in the model's size before the first step."""
    return (
        params.data_dir is not None
        and not params.eval
        and record_pipeline(params.input_pipeline, deterministic=False).in_memory
    )


def _fed_steps_are_single(params: 'Params') -> str | None:
    if params.input_pipeline != FEED_DICT or params.steps_per_run == 1 or params.eval or params.input_only:
        return None
    return (
        f'{format_flag("input_pipeline", FEED_DICT)} clashes with '
        f'{format_flag("steps_per_run", params.steps_per_run)}: each '
        f'step gets its batch from Python; leave one out, or write --input_pipeline={DEVICE}'
    )


def _images_in_memory_do_not_change(params: 'Params') -> str | None:
    if not (keeps_images_in_memory(params) and params.trains):
        return None
    written = format_flag('input_pipeline', params.input_pipeline)
    if params.distortions:
        return f'{written} clashes with --distortions: it shifts and flips images only; leave one out'
    if params.augmentation == 'resized_crop':
        return (
            f'{written} clashes with --augmentation=resized_crop: it keeps each image in one size, and cuts no other '
            'parts out of the photograph; write --augmentation=padded_crop or none'
        )
    return None


RULES: tuple[Rule, ...] = (_fed_steps_are_single, _images_in_memory_do_not_change, _only_an_input_is_measured)
RUN_RULES: tuple[RunRule, ...] = (_the_order_of_records_is_deterministic, _an_input_is_measured_alone)
