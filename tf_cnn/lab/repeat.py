"""--repeat=N: runs the same command N times, each in a new process. Does not import TensorFlow."""

import itertools
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from models.registry import MODELS
from tf_cnn.cluster.environments import check_alone, remove_cluster_variables
from tf_cnn.lab.configurations import Configuration
from tf_cnn.lab.measure import Laboratory, Outcome, describe_outcome, succeeded
from tf_cnn.lab.original_logs import Run
from tf_cnn.lab.rows import Row
from tf_cnn.lab.runs import settings_of
from tf_cnn.lab.sentence import answer, make_notes
from tf_cnn.plan.outputs import field_values
from tf_cnn.plan.params import Params
from tf_cnn.results.console import BANNER_END, BANNER_START, Console, format_total
from tf_cnn.results.document import Result
from tf_cnn.results.file_names import fill_fields, names_in_order, numbered_path
from tf_cnn.results.ratios import MIN_RUNS
from tf_cnn.results.result_file import write_new
from tf_cnn.system.documents import as_json
from tf_cnn.system.errors import RunError, UsageError, plural
from tf_cnn.system.place import PROGRAM
from tf_cnn.system.signals import SIGNALS


def run_repeats(argv: Sequence[str], params: Params, console: Console) -> int:
    """Makes the runs of --repeat, prints their total, and returns the exit code: 1 if a run failed.

    The total is all images over all seconds of the complete runs. The banner of the first run and
    the warnings of all runs go to standard error. Raises RunError if no run succeeded, or if a
    result cannot be written.
    """
    count, outcomes, paths = params.results.repeat, list[Outcome](), list[str]()
    words = [*PROGRAM, *argv, '--repeat=1', '--result_file=-']
    shape = f'1*{params.devices.num_gpus or 1}'
    runs = Configuration('repeat', words, given_flags=dict(params.given_flags), shape=shape)
    check_alone(os.environ, f'--repeat={count}', console.warning)
    environment = remove_cluster_variables(os.environ)
    with tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-') as path, SIGNALS.storing():
        laboratory = Laboratory(Path(path), environment)
        laboratory.create_or_resume([runs])
        try:
            for _, number, outcome, _ in laboratory.measure(
                [runs], count, lambda _: console.phase(f'Run {len(outcomes) + 1} of {count}')
            ):
                outcomes.append(outcome)
                if number == 1 and (banner := _read_banner(laboratory.logs / 'repeat.1.log')):
                    console.note(banner)
                console.note(f'run {number} of {count}: {describe_outcome(outcome)}')
                if params.results.result_file and isinstance(outcome, Result):
                    paths.append(_write_result(outcome, params, number, console))
        except (KeyboardInterrupt, RunError):
            # RunError: a result could not be written, to the temporary folder or to --result_file.
            if any(map(succeeded, outcomes)):
                console.note(f'stopped after {len(outcomes)} of {plural(count, "run")}')
                _print_summary(outcomes, console)
            raise
    if not any(map(succeeded, outcomes)):
        raise RunError(f'--repeat={count}: no run succeeded; {outcomes[0].reason}')
    _print_summary(outcomes, console)
    if paths:
        console.note(f'results: {paths[0]} to {paths[-1]}')
    return int(not all(map(succeeded, outcomes)))


def result_paths(params: Params) -> list[str]:
    """Returns the paths of the runs' results.

    Empty without --result_file, and if the model is unknown: then the run reports the error.
    """
    if not params.results.result_file:
        return []
    try:
        model = MODELS.find_model(params.run.model, params.data.data_name)
    except UsageError:
        return []
    batch_size = params.run.batch_size or model.batch_size
    path = _result_path(params, model.name, batch_size, f'1*{params.devices.num_gpus or 1}')
    return [*itertools.islice(names_in_order(path), params.results.repeat)]


def _print_summary(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints the total, and what `compare` says about these runs as the repeats of one setting."""
    runs, rows = list[Run](), list[Row]()
    for number, outcome in enumerate(outcomes, 1):
        outcome.source = f'run {number}'
        if isinstance(outcome, Result) and outcome.is_complete:
            runs.append(outcome)
        else:
            rows.append(Row(label=outcome.source, remark=f'left out: {outcome.reason}'))
    rows.insert(0, Row(runs=tuple(runs), facts=settings_of(runs[0])))
    console.result(format_total(rows[0].rate))
    console.note(answer(rows))
    if len(runs) < MIN_RUNS:
        console.note(f'an interval needs {MIN_RUNS} runs or more: --repeat={MIN_RUNS}')
    for note in make_notes(rows):
        console.note(note)


def _read_banner(log: Path) -> str | None:
    text = log.read_text(encoding='utf-8', errors='replace')
    banner = re.search(
        f'^{re.escape(BANNER_START)}.*?^{re.escape(BANNER_END)}$', text, re.MULTILINE | re.DOTALL
    )
    return banner and banner[0]


def _write_result(result: Result, params: Params, number: int, console: Console) -> str:
    """Returns the path of the written file."""
    path = _result_path(params, result.model.name, result.run.batch_size, result.shape)
    first = next(names_in_order(path, number))
    try:
        target = write_new(json.dumps(as_json(result)), names_in_order(path, number))
    except OSError as error:
        raise RunError(f'--result_file={first}: it cannot be written ({error.strerror})') from error
    if target != first:
        console.note(f'{first} exists, so the result goes to {target}')
    return target


def _result_path(params: Params, model: str, batch_size: int, shape: str) -> str:
    """Returns the path of the results, with {run} in it."""
    values = field_values(params, model=model, batch_size=batch_size, shape=shape)
    return fill_fields(numbered_path(params.results.result_file or ''), values)
