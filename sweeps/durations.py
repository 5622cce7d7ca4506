"""How long runs took, and how long those that are left will take."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from results.document import Failure, Record


def format_seconds(seconds: float) -> str:
    """A duration for people: '7 s', '2 min 10 s', '1 h 5 min'."""
    whole = round(seconds)
    if whole < 60:
        return f'{whole} s'
    if whole < 3600:
        return f'{whole // 60} min {whole % 60} s' if whole % 60 else f'{whole // 60} min'
    minutes = round(seconds / 60)
    return f'{minutes // 60} h {minutes % 60} min' if minutes % 60 else f'{minutes // 60} h'


def seconds_of(outcome: Record | Failure) -> float | None:
    """How long a run took from its start to its end; None if its document does not say."""
    document = outcome.document
    if isinstance(outcome, Failure):
        seconds = document.get('seconds')
        return float(seconds) if isinstance(seconds, int | float) else None
    try:
        start, end = (
            datetime.fromisoformat(str(document[key]).replace('Z', '+00:00')) for key in ('started_at', 'ended_at')
        )
    except (KeyError, ValueError):
        return None
    return (end - start).total_seconds()


def seconds_left(ids: Iterable[str], known: Mapping[str, Sequence[float]]) -> float | None:
    """The seconds that runs of these configurations will take; None if no run is known.

    Args:
      ids: the configuration of each run that is left. known: the seconds of runs by configuration; a configuration
        without any takes as long as all others on average.
    """
    every = [seconds for several in known.values() for seconds in several]
    if not every:
        return None
    overall = sum(every) / len(every)
    means = {id_: sum(several) / len(several) for id_, several in known.items() if several}
    return sum(means.get(id_, overall) for id_ in ids)
