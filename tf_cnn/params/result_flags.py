"""The flags about results: where they are written, how often a run is repeated, and what else is
measured.
"""

import dataclasses
import datetime
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, Output, flag
from tf_cnn.params.rules import IN_EVAL, NO_MODEL, RunContext

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

# The value of --result_file that stands for standard output.
STDOUT = '-'
# A field of a path, which the value of a flag or another fact of the run replaces.
FIELD = re.compile(r'\{(\w*)\}')
# The field for the number of a run, and those with which the program chooses the name of a file.
RUN_FIELD = '{run}'
_CHOSEN = ('{date}', '{time}', RUN_FIELD)
# The fields that are not flags.
_OTHER_FIELDS = ('shape', 'hostname', 'date', 'time', 'run')


def fill_fields(path: str, values: Mapping[str, Any]) -> str:
    """Replaces the fields of a path by their values. A slash in a value, as in a --data_dir,
    becomes an underscore.
    """
    return FIELD.sub(lambda field: str(values[field[1]]).replace('/', '_'), path)


def numbered_path(path: str, values: Mapping[str, Any]) -> str | None:
    """Returns the path with {run} in it, for more names, if the program chooses the name; None if
    the user wrote it.
    """
    if not any(field in path for field in _CHOSEN):
        return None
    filled = fill_fields(path, {**values, 'run': RUN_FIELD})
    # Without a field for it, the number goes before the last dot.
    return (
        filled
        if RUN_FIELD in filled
        else str(Path(filled).with_suffix(f'.{RUN_FIELD}{Path(filled).suffix}'))
    )


def field_values(
    params: 'Params', *, model: str, batch_size: int, shape: object, run: int | str = 1
) -> dict[str, Any]:
    """Returns all fields that a path may have, by name; `model` is the full name, `run` the number
    of the repeat.
    """
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
    PROPERTIES: ClassVar[Mapping[str, Any]] = {'original': NEW, 'setting': False}

    result_file: str | None = flag(
        None,
        'File for the result as JSON (docs/results.md); - is standard output, on which nothing '
        'else is printed then. Flags in braces are replaced by their values, as in '
        '{model}-{batch_size}.json; so are {shape}, {hostname}, {date}, {time} and {run}, the '
        'number of a run. With one of these three no file is replaced: a name that is not free '
        'gets the next free number.',
        common=True,
        output=Output.CHIEF_FILE,
        in_sweep='the sweep keeps each result in its folder',
    )
    benchmark_log_dir: str | None = flag(
        None,
        'Folder for benchmark_run.log and metric.log, in the format of the benchmark logger '
        "of TensorFlow's official "
        'models; created if missing.',
        original=None,
        output=Output.CHIEF_FOLDER,
    )
    benchmark_test_id: str | None = flag(
        None,
        'The test_id in benchmark_run.log, for people who read it.',
        original=None,
        ignored=(
            IgnoredWhen(
                lambda p, run: p.benchmark_log_dir is None, 'only --benchmark_log_dir uses it'
            ),
        ),
    )
    repeat: int = flag(
        1,
        'Runs, each in processes of its own; the total is that of all.',
        lower_bound=1,
        unit='runs',
        common=True,
        in_sweep='write --repeats=3, in a file repeats = 3',
        not_in_cluster='it is for runs of one process; repeat a cluster with sweep --repeats',
    )
    target_seconds: float | None = flag(
        None,
        'Take timed steps for this long; use it instead of --num_batches. Workers that train '
        'together take as many as take about this long at the pace of their warm-up.',
        lower_bound=0.001,
        unit='seconds',
        shared_by_workers=True,
        ignored=(IN_EVAL,),
    )
    wait_for_idle: float | None = flag(
        None,
        'Before the run, wait until other processes hardly use the cores, but at most this long. '
        'The time counts in nothing.',
        lower_bound=1,
        unit='seconds',
        not_in_cluster='the other tasks of a cluster would wait for this one',
    )
    measure_peak: bool = flag(
        False,
        'After the steps, measure large matrix products on the same devices, and print the share '
        'reached.',
        ignored=(
            NO_MODEL,
            IN_EVAL,
            IgnoredWhen(
                lambda p, run: not run.is_single_process,
                'the workers of a cluster would disturb each other; measure the peak in one '
                'process',
            ),
        ),
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    # The table imports this module.
    from tf_cnn.params.table import SPECS, output_flags

    for field in FIELD.findall(params.result_file or ''):
        if field not in _OTHER_FIELDS and field not in SPECS:
            yield (
                f'{params.flag_text("result_file")}: {{{field}}} is no flag; write one of the '
                f'flags, or one of {", ".join(f"{{{fact}}}" for fact in _OTHER_FIELDS)}'
            )
        elif field not in _OTHER_FIELDS and getattr(params, field) is None:
            yield (
                f'{params.flag_text("result_file")}: {{{field}}} has no value, since --{field} is '
                f'not given; use --{field}=VALUE, or remove {{{field}}}'
            )
    if params.repeat > 1:
        if params.result_file == STDOUT:
            yield params.conflict('result_file', 'repeat', 'each run has a result; write a file')
        if params.eval:
            yield params.conflict(
                'repeat', 'eval', 'it repeats the measurement of steps; leave it out'
            )
        for name in output_flags(*(kind for kind in Output if kind is not Output.CHIEF_FILE)):
            if getattr(params, name) and not params.eval:
                yield params.conflict('repeat', name, 'all runs would write there; leave one out')
    if params.target_seconds is None:
        return
    for name in ('num_batches', 'num_epochs'):
        if getattr(params, name) is not None:
            yield params.conflict(
                'target_seconds', name, 'both set the length of the run; leave one out'
            )
    if run and not run.is_single_process and not params.num_warmup_batches and not params.eval:
        yield params.conflict(
            'target_seconds',
            'num_warmup_batches',
            'workers that train together agree on a number of steps by the pace of their warm-up; '
            'write --num_warmup_batches=1 or more',
        )
