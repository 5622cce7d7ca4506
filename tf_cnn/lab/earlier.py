"""Holds each row against the last runs of the same setting on the same machine, for --against."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from tf_cnn.lab.original_logs import Run, documents
from tf_cnn.lab.rows import Against, Reference, Row
from tf_cnn.lab.runs import flag_differences, machine_differences, repeat_key, workload_differences
from tf_cnn.lab.sentence import AS_BEFORE
from tf_cnn.lab.sides import read_side
from tf_cnn.results.advice import is_short
from tf_cnn.results.document import Result
from tf_cnn.results.ratios import MIN_RUNS, Ratio
from tf_cnn.results.statistics import spread
from tf_cnn.results.tables import abbreviate
from tf_cnn.system.errors import plural

# Only the last runs count, so that the median follows a machine that has changed.
MAX_RUNS = 10
# The memory layout of a process or the room temperature causes smaller differences.
_MIN_TOLERANCE = 0.02
# A larger tolerance would find no regressions.
_MAX_TOLERANCE = 0.5
# The tolerance as a multiple of the runs' spread, by the number of runs. In 400,000 simulated
# series of each length, one in 20 equal runs (normally distributed) exceeded it. The spread of 3
# runs is often far too small.
SPREAD_MULTIPLES = {3: 22.0, 4: 6.6, 5: 6.0, 6: 4.2, 7: 4.1, 8: 3.5, 9: 3.4, 10: 3.0}
NO_RUN = 'no run before this one'
# Differences that no reader would change; of the others at most three are named.
_MINOR = ('versions.', 'program.', 'cpu_features')


def expected_throughput(
    rates: Sequence[float],
) -> tuple[float | None, tuple[float, float] | None]:
    """Returns the median of the last earlier rates, and the (low, high) that count as unchanged:
    None if they are too few or differ too much.
    """
    rates = rates[-MAX_RUNS:]
    if len(rates) < MIN_RUNS:
        return None, None
    median = statistics.median(rates)
    tolerance = max(_MIN_TOLERANCE, SPREAD_MULTIPLES[len(rates)] * spread(rates))
    if tolerance > _MAX_TOLERANCE:
        return median, None
    return median, (median * (1 - tolerance), median * (1 + tolerance))


def earlier(folder: str) -> Against:
    """Holds each row against the median of the last runs before it, with a tolerance.

    An earlier run counts if it is complete, of the same setting and machine under the same limits,
    and not short; its versions may differ. The tolerance becomes the interval of the ratio.
    """
    side = read_side(folder)
    usable = [
        (repeat_key(run, across_versions=True), run)
        for run in sorted(side.runs, key=lambda run: str(run.started_at))
        if run.is_complete and run.images_per_second > 0
        if not any(map(is_short, documents([run])))
    ]

    def hold(rows: Sequence[Row]) -> Iterator[Row]:
        # A run that cannot be read may be one that counts.
        for source, reason, flags in side.missing:
            if flags is None:
                yield Row(label=source, remark=f'left out: {reason}', is_missing=True)
        for row in rows:
            ids, start = {run.id for run in row.runs}, min(str(run.started_at) for run in row.runs)

            before = [
                (key, run)
                for key, run in usable
                if run.id not in ids and str(run.started_at) <= start
            ]
            keys = {
                repeat_key(run, across_versions=True)
                for run in (row.first, _without_data_sha256(row.first))
            }
            compared = [run for key, run in before if key in keys]
            median, expected = expected_throughput([run.images_per_second for run in compared])
            if median is None:
                count = (
                    f'too few runs before: {len(compared)} of {MIN_RUNS}' if compared else NO_RUN
                )
                reasons = _explain(row.first, [run for key, run in before if key not in keys])
                yield replace(row, remark=row.remark or f'{count}{reasons}')
                continue
            compared = compared[-MAX_RUNS:]
            interval = (row.rate / expected[1], row.rate / expected[0]) if expected else None
            ratio = Ratio(
                row.rate / median, interval, row.estimate.is_short, is_unsteady=not expected
            )
            name = f'the {len(compared)} runs before'
            yield replace(
                row, reference=Reference(name, median, compared, same=AS_BEFORE), ratio=ratio
            )

    return hold


def _without_data_sha256(run: Run) -> Run:
    """Returns the run as an older version of this program, which knew data by its path."""
    if not isinstance(run, Result):
        return run
    return msgspec.structs.replace(run, run=msgspec.structs.replace(run.run, data_sha256=None))


def _explain(run: Run, others: Sequence[Run]) -> str:
    """Says for which difference most of the nearest earlier runs were left out."""
    counts: Counter[str] = Counter()
    for other in others:
        names = {
            *workload_differences(other, run),
            *flag_differences([other, run]),
            *machine_differences([other, run]),
        }
        names = {name for name in names if not name.startswith(_MINOR)}
        counts[abbreviate(sorted(names))] += 1
    if not counts:
        return ''
    reasons = [f'{count} with another {names}' for names, count in counts.most_common(3)]
    return f'; {plural(len(others), "earlier run")} left out: {", ".join(reasons)}'
