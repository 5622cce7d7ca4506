"""The flags about results: output files, repeats, and additional measurements."""

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
# A field of a path. The value of a flag or another property of the run replaces it.
FIELD = re.compile(r'\{(\w*)\}')
# The field for the number of a run, and all fields that let the program choose a free name.
RUN_FIELD = '{run}'
_CHOSEN = ('{date}', '{time}', RUN_FIELD)
# The fields that are not flags.
_OTHER_FIELDS = ('shape', 'hostname', 'date', 'time', 'run')


def fill_fields(path: str, values: Mapping[str, Any]) -> str:
    """Replaces the fields of a path by their values. A slash in a value becomes an underscore."""
    return FIELD.sub(lambda field: str(values[field[1]]).replace('/', '_'), path)


def numbered_path(path: str, values: Mapping[str, Any]) -> str | None:
    """Returns the path with {run} in it, to find a free name; None if the user chose the name."""
    if not any(field in path for field in _CHOSEN):
        return None
    filled = fill_fields(path, {**values, 'run': RUN_FIELD})
    # Without a {run} field, the number goes before the last dot.
    return (
        filled
        if RUN_FIELD in filled
        else str(Path(filled).with_suffix(f'.{RUN_FIELD}{Path(filled).suffix}'))
    )


def field_values(
    params: 'Params', *, model: str, batch_size: int, shape: object, run: int | str = 1
) -> dict[str, Any]:
    """Returns the values of all fields of a path, by name.

    model: the full name. run: the number of the repeat.
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
        'File for the result as JSON (docs/results.md); with - the result is the only text on '
        'standard output. Flags in braces are replaced by their values, as in '
        '{model}-{batch_size}.json; so are {shape}, {hostname}, {date}, {time} and {run}, the '
        'number of a run. With {date}, {time} or {run} no file is replaced: if the name is taken, '
        'it gets the next free number.',
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
        'Number of runs, each in a new process; the total covers all runs.',
        lower_bound=1,
        unit='runs',
        common=True,
        in_sweep='use --repeats=3, or repeats = 3 in a file',
        not_in_cluster='it is for runs of one process; repeat a cluster with sweep --repeats',
    )
    target_seconds: float | None = flag(
        None,
        'Duration of the timed steps, instead of --num_batches. Synchronous workers derive a '
        'number of steps from the pace of their warm-up.',
        lower_bound=0.001,
        unit='seconds',
        shared_by_workers=True,
        ignored=(IN_EVAL,),
    )
    wait_for_idle: float | None = flag(
        None,
        'Before the run, wait at most this long until other processes hardly use the cores. The '
        'result does not include this time.',
        lower_bound=1,
        unit='seconds',
        not_in_cluster='the other tasks of a cluster would wait for this one',
    )
    measure_peak: bool = flag(
        False,
        'After the steps, measure large matrix products on the same devices, and print the share '
        'of this peak that the steps reached.',
        ignored=(
            NO_MODEL,
            IN_EVAL,
            IgnoredWhen(
                lambda p, run: not run.is_single_process,
                'the workers of a cluster would slow each other down; measure the peak in one '
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
                f'{params.flag_text("result_file")}: unknown field {{{field}}}; use the name of a '
                f'flag, or one of {", ".join(f"{{{fact}}}" for fact in _OTHER_FIELDS)}'
            )
        elif field not in _OTHER_FIELDS and getattr(params, field) is None:
            yield (
                f'{params.flag_text("result_file")}: {{{field}}} has no value, since --{field} is '
                f'not set; use --{field}=VALUE, or remove {{{field}}}'
            )
    if params.repeat > 1:
        if params.result_file == STDOUT:
            yield params.conflict('result_file', 'repeat', 'each run has a result; use a file')
        if params.eval:
            yield params.conflict(
                'repeat', 'eval', 'it repeats the measurement of steps; remove it'
            )
        for name in output_flags(*(kind for kind in Output if kind is not Output.CHIEF_FILE)):
            if getattr(params, name) and not params.eval:
                yield params.conflict('repeat', name, 'all runs would write there; remove one')
    if params.target_seconds is None:
        return
    for name in ('num_batches', 'num_epochs'):
        if getattr(params, name) is not None:
            yield params.conflict(
                'target_seconds', name, 'both set the length of the run; remove one'
            )
    if run and not run.is_single_process and not params.num_warmup_batches and not params.eval:
        yield params.conflict(
            'target_seconds',
            'num_warmup_batches',
            'synchronous workers derive the number of steps from the pace of their warm-up; '
            'use --num_warmup_batches=1 or more',
        )
