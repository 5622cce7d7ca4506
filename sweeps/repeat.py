"""--repeat=N: one run, N times, each in a process of its own. Without TensorFlow."""

import datetime
import json
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.environments import without_clusters
from cluster.signals import Interrupts
from errors import RunError, counted
from params import Params
from params.results import fill
from reporting.console import Console, format_total
from reporting.intervals import mean_rate, rate_interval
from reporting.record import Record, write_document
from reporting.statistics import modified_z_scores, throughput
from sweeps.folder import Outcome
from sweeps.runner import Starter, run_repeats

# A run is an outlier beyond this modified z-score: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, 3.3.
_OUTLIER_SCORE = 3.5
# With fewer runs the median and the MAD say too little about what is usual.
_MIN_RUNS_FOR_OUTLIERS = 5


def repeat(argv: Sequence[str], params: Params, console: Console, starter: Starter | None = None) -> int:
    """Makes the runs that --repeat asks for, and prints their total; returns the exit code, 1 if a run failed.

    The total is the images of all runs over the seconds of all.

    Args:
      argv: the flags of the run. params: what they say, checked for a run of one process.
      starter: how processes are started; by default this program, without the variables that describe a cluster.

    Raises:
      RunError: no run ended well, or a result cannot be written.
    """
    path = params.result_file

    def note(number: int, outcome: Outcome) -> None:
        place = f'run {number} of {params.repeat}'
        if isinstance(outcome, Record):
            console.note(f'{place}: {outcome.images_per_second:.2f} images/sec')
            if path:
                _keep(outcome, path, number)
        else:
            console.note(f'{place} failed: {outcome.reason}')
        if number < params.repeat:
            console.phase(f'Run {number + 1} of {params.repeat}')

    console.phase(f'Run 1 of {params.repeat}')
    with tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks_') as folder, Interrupts().listening():
        starter = starter or Starter(environment=without_clusters(os.environ))
        outcomes = run_repeats([*argv, '--repeat=1'], params.repeat, Path(folder), note, starter)
    records = [outcome for outcome in outcomes if isinstance(outcome, Record) and outcome.is_complete]
    if not records:
        raise RunError(f'--repeat={params.repeat}: no run ended well; {outcomes[0].reason}')
    sums = [record.document['throughput'] for record in records]
    images, seconds = (sum(each[key] for each in sums) for key in ('images', 'wall_seconds'))
    console.result(format_total(throughput(images, seconds)))
    for line in summarize_runs([record.images_per_second for record in records]):
        console.note(line)
    num_failed = len(outcomes) - len(records)
    if num_failed:
        console.warning(f'{num_failed} of {counted(len(outcomes), "run")} failed; the total is that of the others')
    return int(bool(num_failed))


def summarize_runs(rates: Sequence[float]) -> list[str]:
    """What to know about the rates of repeated runs, in images/sec: the interval of their mean, and outliers."""
    lines = []
    if len(rates) > 1:
        low, high = rate_interval(rates)
        mean = mean_rate(rates)
        lines.append(
            f'mean of {counted(len(rates), "run")}: {mean:.2f} images/sec, 95 % interval {low:.2f} to {high:.2f} '
            f'(+/- {100 * (high - low) / (high + low):.1f} %)'
        )
    if len(rates) >= _MIN_RUNS_FOR_OUTLIERS:
        scores = modified_z_scores(rates)
        far = [
            f'run {number} ({rate:.2f})'
            for number, (rate, score) in enumerate(zip(rates, scores, strict=True), 1)
            if abs(score) > _OUTLIER_SCORE
        ]
        if far:
            lines.append(f'far from the others: {", ".join(far)}; something disturbed the machine, or changed on it')
    return lines


def _keep(record: Record, path: str, number: int) -> None:
    """Copies a result to where --result_file says."""
    now = datetime.datetime.now()
    values: dict[str, Any] = {
        **record.flags,
        'batch_size': record.run['batch_size'],
        'shape': record.shape,
        'hostname': socket.gethostname(),
        'date': f'{now:%Y-%m-%d}',
        'time': f'{now:%H%M%S}',
        'run': number,
    }
    target = fill(_numbered(path, number), values)
    try:
        write_document(json.dumps(record.document), target)
    except OSError as error:
        raise RunError(f'--result_file={target}: it cannot be written ({error.strerror})') from error


def _numbered(path: str, number: int) -> str:
    """The path of one run: if it does not say where the number goes, that is before the last dot."""
    if '{run}' in path:
        return path
    name = Path(path)
    return str(name.with_name(f'{name.stem}.{number}{name.suffix}'))
