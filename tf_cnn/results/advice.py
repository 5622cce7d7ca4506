"""Warns about the numbers of a run, and says what to do. Does not import TensorFlow.

A warning names a cause for which the same run would measure something else next time, or measures
less than the machine can do. Other runs get no warning: tests/results/test_advice.py limits false
alarms to a few in a thousand.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_cnn.graph.onednn import ONEDNN_VARIABLE
from tf_cnn.params.table import SPECS
from tf_cnn.results.document import Result
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.statistics import (
    MAD_TO_STANDARD_DEVIATION,
    OUTLIER_DEVIATIONS,
    drift_deviations,
    mad,
    outliers,
    spread,
)
from tf_cnn.system.errors import format_flag, plural

# A shorter run measures what the machine did in these moments: of 4 equal runs of 0.1 to 0.2 s, all
# were called slower.
SHORT_SECONDS = 2.0
# The relative standard error of a standard deviation is 1/√(2(n-1)): 16 % with 20 steps, 24 % with
# 10. With fewer steps, neither an interval around the rate nor the spread, outliers and drift of
# this module mean much.
MIN_STEPS = 20
# A first step that still allocates, tunes or fills queues takes a multiple of the other steps;
# noise does not.
SLOW_FIRST_STEP = 1.5
# On a quiet virtual machine with two cores, outliers cost 1 to 8 % of the time of LeNet's steps of
# 10 ms, and the steps spread by 2 to 8 %, in 43 of 43 runs.
OUTLIER_SHARE = 0.10
SPREAD_SHARE = 0.20
# Together these give a false alarm in fewer than 1 of 100 runs whose steps spread by 2 to 10 % with
# an autocorrelation of 0.5, and find every change by 8 % in 100 steps that spread by 2 %
# (simulated, 4000 runs each).
DRIFT_SHARE = 0.03
DRIFT_DEVIATIONS = 5.0
# With so much waiting the run no longer measures the step: a machine twice as fast would be at most
# 1.8 times as fast.
INPUT_SHARE = 0.10
BETWEEN_SHARE = 0.10
# The share of the usable cores that other programs may take; beyond it, threads of the step wait
# for a core.
LOADED_SHARE = 0.10
# The share of time in which the host ran something else on the cores of this virtual machine.
STEAL_SHARE = 0.02
# The share of the run's seconds in which the quota of the control group stopped threads (summed
# over cores).
THROTTLED_SHARE = 0.01
DEFAULT_WARMUP = 10
# The mark of doubtful results in tables.
_DOUBTFUL = '!'
LONGER = '--target_seconds=10'
# The codes of warnings that name what disturbed a run, and of those that show that something did,
# with what tables call them.
_CAUSES = {
    'machine_loaded': 'other programs',
    'steal': 'other virtual machines',
    'cpu_quota': 'CPU quota',
    'thermal_throttling': 'heat',
}
_SYMPTOMS = {'outliers': 'outliers', 'spread': 'spread', 'drift': 'drift'}
_DISTURBED = _CAUSES | _SYMPTOMS
_SHORT = {'too_short': 'too short'}
# The warnings that doubts() sums up.
SUMMED_UP = frozenset(_DISTURBED | _SHORT)
# The share of the cores that a cause took.
_SHARES = {'machine_loaded': 'other_cpu_share', 'steal': 'steal_share'}
# The flags that make a cause of time between steps rarer.
_BETWEEN = {
    'printing': '--display_every',
    'summary': '--save_summaries_steps',
    'checkpoint': '--save_model_secs or --save_model_steps',
}


def advise(result: Result) -> list[WarningRow]:
    """Returns the warnings about a run: objects with a stable `code` and a sentence `text` with
    figures and advice.

    Args:
      result: a result; its own warnings are not read. Unknown values lead to no warning.
    """
    facts = _Facts(result)
    found = {code: text for code, find in ADVICE.items() if (text := find(facts))}
    # One line for one disturbance: its cause, or else the first symptom. A run that is too short
    # shows none.
    symptoms = [code for code in ('slow_first_step', *_SYMPTOMS) if code in found]
    for code in symptoms[0 if found.keys() & {'too_short', *_CAUSES} else 1 :]:
        del found[code]
    return [WarningRow(code, text) for code, text in found.items()]


def is_short(result: Result) -> bool:
    """Whether the timed steps took so little time that their rate supports no verdict."""
    return 0 < float(result.step_seconds().sum()) < SHORT_SECONDS


def doubtful_codes(result: Result) -> list[str]:
    """Returns the codes of the warnings that make the rate of a run doubtful: it was disturbed, or
    is too short.
    """
    codes = {warning.code for warning in result.warnings}
    return [*(code for code in _DISTURBED if code in codes), *(_SHORT if is_short(result) else ())]


def mark(results: Iterable[Result]) -> str:
    """Returns the mark that tables put before the rate of these runs if one of them is doubtful,
    else ''.
    """
    return f'{_DOUBTFUL} ' if any(map(doubtful_codes, results)) else ''


def count_doubtful(results: Sequence[Result]) -> str:
    """Formats how many of these runs are doubtful, and why: '1 of 3: drift', or 'drift' for a
    single run.

    Returns '' if none is doubtful.
    """
    doubtful = [codes for codes in map(doubtful_codes, results) if codes]
    counts = Counter(code for codes in doubtful for code in codes)
    names = _DISTURBED | _SHORT
    is_plain = all(count == len(doubtful) for count in counts.values())
    reasons = [
        names[code] if is_plain else f'{names[code]} ({counts[code]})'
        for code in names
        if code in counts
    ]
    how_many = f'{len(doubtful)} of {len(results)}: ' if doubtful and len(results) > 1 else ''
    return how_many + ', '.join(reasons)


def doubts(results: Sequence[Result]) -> list[str]:
    """Returns the lines below a table of these runs: how many of them are doubtful, and by what."""
    lines = []
    if disturbed := [result for result in results if {*doubtful_codes(result)} & {*_DISTURBED}]:
        reasons = []
        for code, name in _DISTURBED.items():
            if found := [result for result in disturbed if code in doubtful_codes(result)]:
                shares = [
                    dict[str, Any](result.disturbance).get(_SHARES.get(code, '')) or 0.0
                    for result in found
                ]
                most = f', up to {_percent(max(shares))} of the cores' if max(shares) else ''
                reasons.append(f'{name} ({plural(len(found), "run")}{most})')
        lines.append(
            f'{_DOUBTFUL} {_of_runs(disturbed, results)} disturbed: {", ".join(reasons)}; measure '
            'on an idle machine'
        )
    if short := [result for result in results if is_short(result)]:
        # What helps all of them.
        remedy = _to_measure_longer(min(short, key=lambda result: not result.is_complete))
        lines.append(
            f'{_DOUBTFUL} {_of_runs(short, results)} too short, with less than '
            f'{SHORT_SECONDS:.0f} s of timed steps: {remedy}'
        )
    return lines


def _of_runs(found: Sequence[Result], results: Sequence[Result]) -> str:
    return f'{len(found)} of {plural(len(results), "run")} {"was" if len(found) == 1 else "were"}'


class _Facts:
    """A result, and values derived from it that several warnings need."""

    def __init__(self, result: Result) -> None:
        self.result = result
        # Of the timed steps of the chief, [num_steps] float64.
        self.seconds = result.step_seconds()
        self.num_slow = _slow_start(self.seconds)
        # The steps after the slow ones; empty if they are too few to estimate their noise.
        later = self.seconds[self.num_slow :]
        self.later = later if later.size >= MIN_STEPS else later[:0]
        # Which of the latter may be slow because of this program, which wrote a checkpoint or the
        # like.
        self.beside_own_work = result.beside_own_work()[self.num_slow :][: self.later.size]


def _slow_start(seconds: NDArray[np.float64]) -> int:
    """How many of the first steps are slow beyond noise."""
    if seconds.size < 4:
        return 0
    middle = float(np.median(seconds))
    limit = max(
        SLOW_FIRST_STEP * middle,
        middle + OUTLIER_DEVIATIONS * MAD_TO_STANDARD_DEVIATION * mad(seconds),
    )
    return int(np.argmin(seconds > limit))


def _first_step(facts: _Facts) -> str | None:
    if not (num_slow := facts.num_slow):
        return None
    ratio, warmup = (
        facts.seconds[:num_slow].max() / np.median(facts.seconds),
        facts.result.run.num_warmup,
    )
    return (
        f'the first timed steps took up to {ratio:.1f} times the median: the warm-up of '
        f'{plural(warmup, "step")} was too short; write '
        f'--num_warmup_batches={max(DEFAULT_WARMUP, 2 * warmup, warmup + num_slow)}'
    )


def _outliers(facts: _Facts) -> str | None:
    seconds = facts.later
    found = seconds[outliers(seconds) & ~facts.beside_own_work]
    middle = float(np.median(seconds)) if seconds.size else 0.0
    lost = float((found - middle).sum())
    if lost <= OUTLIER_SHARE * seconds.sum():
        return None
    (usual, slowest), unit = times(middle, float(found.max()))
    return (
        f'{plural(found.size, "outlier")} among {plural(seconds.size, "timed step")} took up to '
        f'{slowest} {unit}, where the median is {usual}, and lost '
        f'{_percent(lost / seconds.sum())} of the time; repeat the run (--repeat=5) before you '
        'compare it'
    )


def _spread(facts: _Facts) -> str | None:
    seconds = facts.later
    if not seconds.size or not (found := spread(seconds)) > SPREAD_SHARE:
        return None
    (low, high), unit = times(*np.percentile(seconds, (5, 95)).tolist())
    return (
        f'the steps spread by {_percent(found)} of their median (nine in ten took {low} to {high} '
        f'{unit}): repeat the run (--repeat=5) before you compare it'
    )


def _drift(facts: _Facts) -> str | None:
    seconds = facts.later
    if not seconds.size:
        return None
    half = seconds.size // 2
    change = float(seconds[:half].mean() / seconds[half:].mean() - 1)
    deviations = abs(drift_deviations(facts.result.means_of_runs(seconds)))
    if math.isnan(deviations) or deviations <= DRIFT_DEVIATIONS or abs(change) <= DRIFT_SHARE:
        return None
    word, cause = (
        ('faster', 'was not warmed up')
        if change > 0
        else ('slower', 'heats up or fills its memory')
    )
    return (
        f'the second half of the timed steps was {_percent(abs(change))} {word} than the first, '
        f'beyond noise: the machine {cause}; write a larger --num_warmup_batches and --num_batches'
    )


def _too_short(facts: _Facts) -> str | None:
    if not is_short(facts.result):
        return None
    seconds = _seconds(float(facts.seconds.sum()))
    remedy = _to_measure_longer(facts.result)
    return f'the timed steps took {seconds}, too short a time to compare their rate; {remedy}'


def _to_measure_longer(result: Result, flags: str = LONGER) -> str:
    # The flags of a run that was stopped may be long enough.
    return (
        f'write {flags}'
        if result.is_complete
        else 'measure again, and let the run take all of its steps'
    )


def _few_steps(facts: _Facts) -> str | None:
    if not 0 < facts.seconds.size < MIN_STEPS or is_short(facts.result):
        return None
    return (
        f'only {plural(facts.seconds.size, "timed step")}, too few for the noise of the rate to '
        'be known; '
        + _to_measure_longer(
            facts.result, f'--num_batches={MIN_STEPS} or more, or a longer --target_seconds'
        )
    )


def _loss(facts: _Facts) -> str | None:
    if facts.result.run.role in ('input-only', 'exchange-only'):
        # The run computes no loss.
        return None
    for worker in facts.result.workers:
        losses = worker.steps.loss
        bad = [
            index for index, loss in enumerate(losses) if loss is None or not math.isfinite(loss)
        ]
        if bad:
            return (
                f'the loss of {worker.task or "the run"} was no finite number in {len(bad)} of '
                f'{plural(len(losses), "step")}, first in step '
                f'{worker.steps.global_step[bad[0]]}, so this is the speed of no real training; '
                'write a smaller --init_learning_rate, or check the weights and the images'
            )
    return None


def _input(facts: _Facts) -> str | None:
    share, waited = facts.result.input.wait_share, facts.result.input.wait_seconds
    if share is None or waited is None or share <= INPUT_SHARE:
        return None
    return (
        f'the steps waited {_percent(share)} of their time ({_seconds(waited)}) for images: the '
        'input is the bottleneck, not the model; use faster storage, more cores or smaller '
        'images, or --data_dir left out to measure the model alone'
    )


def _between(facts: _Facts) -> str | None:
    wall, by_cause = facts.result.throughput.wall_seconds, spent_between(facts.result)
    total = math.fsum(by_cause.values())
    if not wall or total <= BETWEEN_SHARE * wall:
        return None
    cause, most = next(iter(by_cause.items()))
    remedy = f'; write a larger {_BETWEEN[cause]}' if cause in _BETWEEN else ''
    return (
        f'{_percent(total / wall)} of the time ({_seconds(total)}) passed between the steps, '
        f'{_seconds(most)} of it with {cause} work{remedy}'
    )


def spent_between(result: Result) -> dict[str, float]:
    """Returns the seconds between timed steps by cause, the largest first, without evaluations (not
    in the total).
    """
    spent = result.throughput.between_seconds.items()
    in_total = [(name, seconds) for name, seconds in spent if seconds and name != 'evaluation']
    return dict(sorted(in_total, key=lambda entry: -entry[1]))


def _loaded(facts: _Facts) -> str | None:
    share = facts.result.disturbance.get('other_cpu_share')
    if share is None or share <= LOADED_SHARE:
        return None
    return (
        f'other processes used {_percent(share)} of the cores that this one may use; close them, '
        'or give the run cores of its own (taskset), and measure again'
    )


def _steal(facts: _Facts) -> str | None:
    share = facts.result.disturbance.get('steal_share')
    if share is None or share <= STEAL_SHARE:
        return None
    return (
        f'the host took {_percent(share)} of the time of the cores of this virtual machine for '
        'others (steal); measure on a machine with dedicated cores, or repeat the run at several '
        'times of the day'
    )


def _throttled(facts: _Facts) -> str | None:
    found = facts.result.disturbance
    stopped, seconds = found.get('cgroup_throttled_seconds'), found.get('seconds')
    if not stopped or not seconds or stopped <= THROTTLED_SHARE * seconds:
        return None
    return (
        f'the CPU quota of the container (cgroup) stopped threads for {_seconds(stopped)} in '
        f'{_seconds(seconds)}; raise the quota, or write a smaller --num_intra_threads'
    )


def _thermal(facts: _Facts) -> str | None:
    times = facts.result.disturbance.get('thermal_throttles')
    if not times:
        return None
    return (
        f'the CPU slowed down {plural(times, "time")} because it was too hot; improve the '
        'cooling, and measure again'
    )


def _cores(facts: _Facts) -> str | None:
    machine = facts.result.machine
    num_cores, affinity, quota = machine['num_cores'], machine['affinity'], machine['cgroup_cpus']
    usable = known_cores(machine)
    if usable is None:
        return None
    asked = machine['threads']['intra_op'] or 0
    is_by_affinity = quota is None or (affinity and len(affinity) <= quota)
    reason = 'its affinity' if is_by_affinity else 'the CPU quota of its cgroup'
    if asked > usable:
        return (
            f'{plural(asked, "thread")} of an operation share {usable:.3g} of '
            f'{plural(num_cores or asked, "core")}: {reason} allows this process no more; write '
            f'--num_intra_threads={max(1, math.floor(usable))}, or allow more cores'
        )
    # The launcher gives the tasks of a cluster on one machine separate cores on purpose.
    if num_cores and usable < num_cores and not (is_by_affinity and facts.result.cluster.tasks):
        return (
            f'the process may use only {usable:.3g} of the {plural(num_cores, "core")} of this '
            f'machine, because of {reason}; compare it only with runs of as many'
        )
    return None


def known_cores(machine: Mapping[str, Any]) -> float | None:
    """Returns the cores that the process may use, by its affinity or its cgroup's quota; None if
    neither is known.
    """
    limits = [len(machine['affinity'])] if machine.get('affinity') else []
    limits += [machine['cgroup_cpus']] if machine.get('cgroup_cpus') else []
    return min(limits, default=None)


def _governor(facts: _Facts) -> str | None:
    governor = facts.result.machine['governor']
    if not governor or 'powersave' not in governor:
        return None
    return (
        f'the frequency governor of the CPU is {governor}, which may clock it below what it can '
        'do; set it to performance (cpupower frequency-set --governor performance)'
    )


def _onednn(facts: _Facts) -> str | None:
    result = facts.result
    run = result.run
    is_chosen = result.command.flags.get('onednn') is not None or ONEDNN_VARIABLE in (
        result.environment or {}
    )
    if (
        run.onednn is not False
        or is_chosen
        or run.device != 'cpu'
        or run.role not in ('training', 'forward-only')
    ):
        return None
    if result.cluster.tasks:
        # The flags of one task of a cluster mean nothing to a process alone.
        words = [
            format_flag(name, value)
            for name, value in (('model', result.model.name), ('batch_size', run.batch_size))
        ]
    else:
        words = [
            text
            for name, text in result.given.items()
            if name in SPECS
            and name != 'repeat'
            and not SPECS[name].output
            and not SPECS[name].names_process
        ]
    both = ' '.join(
        f'--run={shlex.quote(shlex.join([*words, format_flag("onednn", value)]))}'
        for value in ('false', 'true')
    )
    return (
        'TensorFlow leaves oneDNN off on this processor, and steps may be much faster with it; '
        f'measure both: tf_cnn_benchmarks.py compare {both}'
    )


def _percent(share: float) -> str:
    return f'{100 * share:.2g} %' if share < 0.995 else f'{100 * share:.0f} %'


def times(*seconds: float) -> tuple[list[str], str]:
    """Formats times with four digits in one unit, which the first one decides: ms below 10 s, else
    s.
    """
    factor, unit = (1e3, 'ms') if seconds[0] < 10 else (1.0, 's')
    return [f'{float(f"{factor * one:.4g}"):g}' for one in seconds], unit


def _seconds(seconds: float) -> str:
    return f'{seconds:.3g} s' if seconds < 100 else f'{seconds:.0f} s'


# By code: the function that returns the warning's text, or None.
ADVICE: Mapping[str, Callable[[_Facts], str | None]] = {
    'loss_not_finite': _loss,
    'slow_first_step': _first_step,
    'too_short': _too_short,
    'few_steps': _few_steps,
    'outliers': _outliers,
    'spread': _spread,
    'drift': _drift,
    'input_bound': _input,
    'between_steps': _between,
    'machine_loaded': _loaded,
    'steal': _steal,
    'cpu_quota': _throttled,
    'thermal_throttling': _thermal,
    'fewer_cores': _cores,
    'powersave': _governor,
    'onednn_off': _onednn,
}
