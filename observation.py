"""What is written of a run for people to look into it, by its settings: traces, profiles, summaries."""

from collections.abc import Callable

from errors import UsageError
from flag_rules import numbers_of
from flag_spec import spelled
from params import Params
from reporting.result import StepValues
from step_graph import StepGraph
from training.instruments import StepProfiler, StepTracer, SummaryWriter
from training.step_loop import Step


def make_tracer(params: Params) -> StepTracer:
    """What looks into the last warm-up step."""
    return StepTracer(
        params.trace_file, params.use_chrome_trace_format, params.tfprof_file, params.partitioned_graph_file_prefix
    )


def make_profiler(params: Params, num_batches: int, *, is_chief: bool, warn: Callable[[str], None]) -> StepProfiler:
    """What profiles timed steps, of which there are num_batches. Of the chief alone: processes of one machine would
    write the same file.

    Raises:
      UsageError: --profile_steps asks for more steps than there are.
    """
    if params.profile_steps is None or params.profile_dir is None or not is_chief:
        return StepProfiler('', None)
    written = spelled('profile_steps', params.profile_steps)
    first, last = numbers_of(params.profile_steps, int)
    if last > num_batches:
        raise UsageError(f'{written}: there are {num_batches} timed steps; profile some of these')
    warn(f'{written}: these timed steps run under the profiler, so the rate is lower than it would be without')
    return StepProfiler(params.profile_dir, (first, last))


def make_summaries(
    params: Params, built: StepGraph, *, is_chief: bool, warn: Callable[[str], None]
) -> SummaryWriter | None:
    """What writes summaries of timed steps, if any are to be written. Of the chief alone: the curves of all workers
    would be one. Adds its ops to the current graph."""
    if not is_chief or params.train_dir is None or not params.save_summaries_steps or not params.summary_verbosity:
        return None
    if params.summary_verbosity >= 3:
        warn(
            f'--summary_verbosity={params.summary_verbosity}: every {params.save_summaries_steps}th step computes '
            'the histograms of its gradients in its timed seconds, so the rate is lower than it would be without'
        )
    return SummaryWriter(
        params.train_dir, params.save_summaries_steps, params.summary_verbosity, built.variables, built.gradients
    )


def scalars_of(step: Step[StepValues], params: Params, num_images: int) -> dict[str, float]:
    """What the summary of a step of so many images says of it; images_per_second as the line of that step alone."""
    values = {
        params.loss_type_to_report: step.values.loss,
        'images_per_second': num_images / step.seconds,
        'learning_rate': step.values.learning_rate,
        'top_1_accuracy': step.values.top_1,
        'top_5_accuracy': step.values.top_5,
    }
    return {name: value for name, value in values.items() if value is not None}
