"""The flags about results: where they are written, how often a run is repeated, and what else is measured."""

import dataclasses
import datetime
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from errors import format_flag
from params.rules import NO_MODEL, TAKES_NO_STEPS, Idle, Rule, RunFacts, RunRule
from params.spec import NEW, Output, flag

if TYPE_CHECKING:
    from params.table import Params

# The value of --result_file that stands for standard output.
STDOUT = '-'
# A field of a path, which the value of a flag or another fact of the run replaces.
FIELD = re.compile(r'\{(\w*)\}')
# The fields that are not flags.
FACTS = ('shape', 'hostname', 'date', 'time', 'run')


def fill(path: str, values: Mapping[str, Any]) -> str:
    """Replaces the fields of a path by their values. A slash in a value, as in a --data_dir, becomes an underscore."""
    return FIELD.sub(lambda field: str(values[field[1]]).replace('/', '_'), path)


def field_values(params: 'Params', *, model: str, batch_size: int, shape: object, run: int = 1) -> dict[str, Any]:
    """Returns all fields that a path may have, by name; `model` is the full name, `run` the number of the repeat."""
    now = datetime.datetime.now()
    return {
        **{field.name: getattr(params, field.name) for field in dataclasses.fields(params)},
        'model': model,
        'batch_size': batch_size,
        'shape': str(shape),
        'hostname': socket.gethostname(),
        'date': f'{now:%Y-%m-%d}',
        'time': f'{now:%H%M%S}',
        'run': run,
    }


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ResultFlags:
    """The part of Params about results."""

    GROUP: ClassVar[str] = 'Results'

    result_file: str | None = flag(
        None,
        'File for the result as JSON (docs/results.md); - is standard output, on which nothing else is printed then. '
        'Flags in braces are replaced by their values, as in {model}-{batch_size}.json; so are {shape}, {hostname}, '
        '{date}, {time} and, with --repeat, {run}.',
        is_path=True,
        common=True,
        original=NEW,
        output=Output.CHIEF_FILE,
        setting=False,
        in_sweep='the sweep keeps each result in its folder',
    )
    benchmark_log_dir: str | None = flag(
        None,
        "Folder for benchmark_run.log and metric.log, in the format of the benchmark logger of TensorFlow's official "
        'models; created if missing.',
        is_path=True,
        output=Output.CHIEF_FOLDER,
        inside=('benchmark_run.log', 'metric.log'),
        setting=False,
    )
    benchmark_test_id: str | None = flag(
        None,
        'The test_id in benchmark_run.log, for people who read it.',
        setting=False,
        idle=(Idle(lambda p, run: p.benchmark_log_dir is None, 'only --benchmark_log_dir uses it'),),
    )
    repeat: int = flag(
        1,
        'Runs, each in processes of its own; the total is that of all.',
        lower_bound=1,
        unit='runs',
        common=True,
        original=NEW,
        setting=False,
        in_sweep='write repeats = 3',
    )
    target_seconds: float | None = flag(
        None,
        'Take timed steps for this long; use it instead of --num_batches. Workers that train together take as many as '
        'take about this long at the pace of their warm-up.',
        lower_bound=0.001,
        unit='seconds',
        original=NEW,
        agreed=True,
        setting=False,
        idle=(TAKES_NO_STEPS,),
    )
    wait_for_idle: float | None = flag(
        None,
        'Before the run, wait until other processes hardly use the cores, but at most this long. The time counts in '
        'nothing.',
        lower_bound=1,
        unit='seconds',
        original=NEW,
        setting=False,
    )
    measure_peak: bool = flag(
        False,
        'After the steps, measure large matrix products on the same devices, and print the share reached.',
        original=NEW,
        setting=False,
        idle=(
            NO_MODEL,
            TAKES_NO_STEPS,
            Idle(
                lambda p, run: not run.alone,
                'the workers of a cluster would disturb each other; measure the peak in one process',
            ),
        ),
    )


def _fields_are_known(params: 'Params') -> str | None:
    # The table imports this module.
    from params.table import SPECS

    for field in FIELD.findall(params.result_file or ''):
        if field not in FACTS and field not in SPECS:
            return (
                f'{format_flag("result_file", params.result_file)}: {{{field}}} is no flag; write one of the flags, '
                f'or one of {", ".join(f"{{{fact}}}" for fact in FACTS)}'
            )
    return None


def _a_repeated_result_is_a_file(params: 'Params') -> str | None:
    if params.repeat > 1 and params.result_file == STDOUT:
        return f'--result_file=- clashes with --repeat={params.repeat}: each run has a result; write a file'
    return None


def _repeats_do_not_meet_in_a_file(params: 'Params') -> str | None:
    if params.repeat == 1:
        return None
    written = f'--repeat={params.repeat}'
    if params.eval:
        return f'{written} clashes with --eval: it repeats the measurement of steps; leave it out'
    # The table imports this module.
    from params.table import outputs_that_are

    for name in outputs_that_are(*(kind for kind in Output if kind is not Output.CHIEF_FILE)):
        if value := getattr(params, name):
            return f'{written} clashes with {format_flag(name, value)}: all runs would write there; leave one out'
    return None


def _the_end_is_given_once(params: 'Params') -> str | None:
    if params.target_seconds is None:
        return None
    for name in ('num_batches', 'num_epochs'):
        if (value := getattr(params, name)) is not None:
            return (
                f'{format_flag("target_seconds", params.target_seconds)} clashes with {format_flag(name, value)}: '
                'both set the length of the run; leave one out'
            )
    return None


def _workers_have_a_pace(params: 'Params', run: RunFacts) -> str | None:
    if params.target_seconds is None or params.num_warmup_batches or run.alone or params.eval:
        return None
    return (
        f'{format_flag("target_seconds", params.target_seconds)} clashes with --num_warmup_batches=0: workers that '
        'train together agree on a number of steps by the pace of their warm-up; write --num_warmup_batches=1 or more'
    )


def _a_cluster_is_repeated_by_a_sweep(params: 'Params', run: RunFacts) -> str | None:
    if params.repeat == 1 or run.alone:
        return None
    return f'--repeat={params.repeat}: it is for runs of one process; repeat a cluster with sweep --repeats'


def _a_cluster_does_not_wait(params: 'Params', run: RunFacts) -> str | None:
    if params.wait_for_idle is None or run.alone:
        return None
    return (
        f'{format_flag("wait_for_idle", f"{params.wait_for_idle:g}")}: it is for runs of one process, since the other '
        'tasks of a cluster would wait for this one; leave it out'
    )


RULES: tuple[Rule, ...] = (
    _fields_are_known,
    _a_repeated_result_is_a_file,
    _repeats_do_not_meet_in_a_file,
    _the_end_is_given_once,
)
RUN_RULES: tuple[RunRule, ...] = (_workers_have_a_pace, _a_cluster_is_repeated_by_a_sweep, _a_cluster_does_not_wait)
