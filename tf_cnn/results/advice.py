"""Warns about the numbers of a run, and says what to do. Does not import TensorFlow.

A warning names a cause that would change the measurement next time, or that makes the run slower
than the machine could be. Other runs get no warning: tests/results/test_advice.py limits false
alarms to a few in a thousand.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tf_cnn.graph.onednn import ONEDNN_VARIABLE
from tf_cnn.results.document import AnyResult, CommandResult, Result
from tf_cnn.results.ratios import MIN_RUNS, Ratio, compare, compare_with_others, estimate_runs
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.statistics import (
    MAD_TO_STANDARD_DEVIATION,
    OUTLIER_DEVIATIONS,
    drift,
    drift_deviations,
    mad,
    outliers,
    spread,
)
from tf_cnn.results.tables import abbreviate
from tf_cnn.system.errors import format_flag, plural

Owner = TypeVar('Owner')

# A shorter run measures the machine's momentary load: four equal runs of 0.1 to 0.2 s were all
# called slower.
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
# Together these give a false alarm in fewer than 1 of 100 runs when steps spread by 2 to 10 % with
# an autocorrelation of 0.5. They find every change by 8 % in 100 steps that spread by 2 %
# (simulated, 4000 runs each).
DRIFT_SHARE = 0.03
DRIFT_DEVIATIONS = 5.0
# With more waiting, the run no longer measures the step: a machine twice as fast would show at most
# 1.8 times the rate.
INPUT_SHARE = 0.10
BETWEEN_SHARE = 0.10
# The share of the usable cores that other programs may take; beyond it, threads of the step wait
# for a core.
LOADED_SHARE = 0.10
# The share of time that the host gave to other virtual machines on the cores of this one.
STEAL_SHARE = 0.02
# The share of the run's seconds that threads stood still because of the control group's quota
# (summed over cores).
THROTTLED_SHARE = 0.01
# The share of samples, one a second, in which a GPU may be slowed down by heat or by its hardware.
GPU_SLOWDOWN_SHARE = 0.05
# The share of samples in which a lowered power limit may hold the clock of a GPU down.
GPU_POWER_SHARE = 0.5
# A worker must compute longer than the others by more than this: their steps alone take a second.
SLOW_WORKER = 1.1
DEFAULT_WARMUP = 10
# The mark of doubtful results in tables.
DOUBT_MARK = '!'
LONGER_RUN_FLAG = '--target_seconds=10'
# The warning codes for causes and for symptoms of noise, with their names in tables.
_CAUSES = {
    'machine_loaded': 'other programs',
    'steal': 'other VMs',
    'cpu_quota': 'CPU quota',
    'thermal_throttling': 'heat',
    'gpu_lost': 'lost GPUs',
    'gpu_slowdown': 'slowed GPUs',
    'gpu_shared': 'other programs on the GPUs',
}
# What is asked of the machine of each worker.
_OF_MACHINES = (*_CAUSES, 'gpu_power_limit', 'fewer_cores', 'powersave')
_SYMPTOMS = {'outliers': 'outliers', 'spread': 'spread', 'drift': 'drift'}
_NOISE = _CAUSES | _SYMPTOMS
_SHORT = {'too_short': 'too short'}
# The codes that noise_warnings() counts.
SUMMARIZED_CODES = frozenset(_NOISE | _SHORT)
# The field of the noise section with the share of the cores that a cause took.
_SHARE_FIELDS = {'machine_loaded': 'other_cpu_share', 'steal': 'steal_share'}
# With these drivers, both in their active mode, powersave lets the clock follow the load. With all
# others it sets the lowest frequency. Linux, Documentation/admin-guide/pm/: Active Mode in
# intel_pstate.rst and amd-pstate.rst, Generic Scaling Governors in cpufreq.rst.
_ACTIVE_DRIVERS = frozenset(('intel_pstate', 'amd-pstate-epp'))
# The values of energy_performance_preference that favour low power (intel_pstate.rst, Energy vs
# Performance Hints).
_SAVING_PREFERENCES = frozenset(('power', 'balance_power'))
# The flags that make each kind of pause between steps rarer.
_PAUSE_FLAGS = {
    'printing': '--display_every',
    'summary': '--save_summaries_steps',
    'checkpoint': '--save_model_secs or --save_model_steps',
}


def find_warnings(result: AnyResult, rerun_flags: Sequence[str] = ()) -> list[WarningRow]:
    """Returns the warnings about a run: a stable `code`, and a sentence `text` with figures and
    advice.

    Args:
      result: a result; `result.warnings` is not read. Unknown values lead to no warning.
      rerun_flags: the flags that measure this setting again in one process; with them, advice has
        whole commands.
    """
    # The advice on causes of noise reads only what a CommandResult has, too.
    codes = ADVICE if isinstance(result, Result) else _CAUSES
    analysis = _Analysis(cast(Result, result), rerun_flags)
    texts = {code: text for code in codes if (text := ADVICE[code](analysis))}
    if isinstance(result, Result) and len(result.workers) > 1:
        texts |= _warnings_of_machines(result)
    # Noise gets one warning: its cause, or else its first symptom. A run that is too short gets
    # none.
    symptoms = [code for code in ('slow_first_step', *_SYMPTOMS) if code in texts]
    for code in symptoms[0 if texts.keys() & {'too_short', *_CAUSES} else 1 :]:
        del texts[code]
    return [WarningRow(code, text) for code, text in texts.items()]


def _warnings_of_machines(result: Result) -> dict[str, str]:
    """Returns what disturbs or limits the machine of any worker, by code: the text of the worker
    that it disturbs most, and the names of the others.
    """
    analyses = {
        worker.name: _Analysis(replace(result, machine=worker.machine, noise=worker.noise))
        for worker in result.workers
        if worker.machine
    }
    texts = {}
    for code in _OF_MACHINES:
        field = _SHARE_FIELDS.get(code, '')
        affected = {
            name: (text, dict[str, Any](analysis.result.noise).get(field) or 0.0)
            for name, analysis in analyses.items()
            if (text := ADVICE[code](analysis))
        }
        if affected:
            worst, *others = sorted(affected, key=lambda name: -affected[name][1])
            also = f', also {abbreviate(others)}' if others else ''
            texts[code] = f'{worst}{also}: {affected[worst][0]}'
    return texts


def group_warnings(
    warnings_of: Iterable[tuple[Owner, Iterable[WarningRow]]],
) -> list[tuple[WarningRow, list[Owner], bool]]:
    """Returns (first warning, owners, whether all have its text) of each kind of warning.

    Owners are what has the warnings: runs or rows. Warnings of one code are one kind, except for
    the code `settings`: there it is the flags and the advice, without numbers and lists of them,
    such as ports.
    """
    kinds: dict[tuple[str, str], list[tuple[WarningRow, Owner]]] = {}
    for owner, warnings in warnings_of:
        for warning in warnings:
            advice = re.findall(r'--\w+|[^;]+$', re.sub(r'[\d,:]', '', warning.text))
            kind = warning.code, str(advice) if warning.code == 'settings' else ''
            owned = kinds.setdefault(kind, [])
            if not owned or owned[-1][1] is not owner:
                owned.append((warning, owner))
    return [
        (
            owned[0][0],
            [owner for _, owner in owned],
            len({warning.text for warning, _ in owned}) == 1,
        )
        for owned in kinds.values()
    ]


def is_short(result: AnyResult) -> bool:
    """Whether the timed steps took so little time that their rate supports no verdict."""
    return 0 < float(result.step_seconds().sum()) < SHORT_SECONDS


def doubtful_codes(result: AnyResult) -> list[str]:
    """Returns the codes of the warnings that make the rate of a run doubtful: it was disturbed, or
    is too short.
    """
    codes = {warning.code for warning in result.warnings}
    return [*(code for code in _NOISE if code in codes), *(_SHORT if is_short(result) else ())]


def doubt_mark(results: Iterable[AnyResult]) -> str:
    """Returns the mark that tables put before the rate of these runs if one of them is doubtful,
    else ''.
    """
    return f'{DOUBT_MARK} ' if any(map(doubtful_codes, results)) else ''


def format_doubtful(results: Sequence[AnyResult]) -> str:
    """Formats how many of these runs are doubtful, and why: '1 of 3: drift', or 'drift' for a
    single run.

    Returns '' if none is doubtful.
    """
    doubtful = [codes for codes in map(doubtful_codes, results) if codes]
    counts = Counter(code for codes in doubtful for code in codes)
    names = _NOISE | _SHORT
    is_plain = all(count == len(doubtful) for count in counts.values())
    reasons = [
        names[code] if is_plain else f'{names[code]} ({counts[code]})'
        for code in names
        if code in counts
    ]
    how_many = f'{len(doubtful)} of {len(results)}: ' if doubtful and len(results) > 1 else ''
    return how_many + ', '.join(reasons)


def doubtful_note(results: Sequence[AnyResult]) -> str:
    """Returns the end of a sentence about these runs: '; 2 of 3 runs are doubtful', or ''."""
    number = sum(bool(doubtful_codes(result)) for result in results)
    verb = 'is' if number == 1 else 'are'
    return f'; {number} of {plural(len(results), "run")} {verb} doubtful' if number else ''


def noise_warnings(results: Sequence[AnyResult]) -> list[str]:
    """Returns the notes below a table of these runs: how many are doubtful, and why."""
    lines = []
    if disturbed := [result for result in results if {*doubtful_codes(result)} & {*_NOISE}]:
        reasons = []
        for code, name in _NOISE.items():
            if affected := [result for result in disturbed if code in doubtful_codes(result)]:
                shares = [
                    dict[str, Any](noise).get(_SHARE_FIELDS.get(code, '')) or 0.0
                    for result in affected
                    for noise in result.noises
                ]
                largest_share = (
                    f', up to {_format_percent(max(shares))} of the cores' if max(shares) else ''
                )
                reasons.append(f'{name} ({plural(len(affected), "run")}{largest_share})')
        lines.append(
            f'{DOUBT_MARK} {_format_count(disturbed, results)} disturbed: {", ".join(reasons)}; '
            'measure on an idle machine'
        )
    if short := [result for result in results if is_short(result)]:
        # A remedy that helps all of these runs.
        remedy = _how_to_measure_longer(min(short, key=lambda result: not result.is_complete))
        lines.append(
            f'{DOUBT_MARK} {_format_count(short, results)} too short, with less than '
            f'{SHORT_SECONDS:.0f} s of timed steps: {remedy}'
        )
    return lines


def _format_count(selected: Sequence[AnyResult], results: Sequence[AnyResult]) -> str:
    return (
        f'{len(selected)} of {plural(len(results), "run")} '
        f'{"was" if len(selected) == 1 else "were"}'
    )


class _Analysis:
    """A result, and values derived from it that several warnings need."""

    def __init__(self, result: Result, rerun_flags: Sequence[str] = ()) -> None:
        self.result = result
        self.rerun_flags = rerun_flags
        # Seconds of the chief's timed steps, [num_steps] float64.
        self.step_seconds = result.step_seconds()
        self.num_slow_first_steps = _count_slow_first_steps(self.step_seconds)
        # The steps after the slow ones; empty if they are too few to estimate their noise.
        later = self.step_seconds[self.num_slow_first_steps :]
        self.steady_seconds = later if later.size >= MIN_STEPS else later[:0]


def _count_slow_first_steps(seconds: NDArray[np.float64]) -> int:
    """Returns how many of the first steps are slower than noise explains."""
    if seconds.size < 4:
        return 0
    middle = float(np.median(seconds))
    limit = max(
        SLOW_FIRST_STEP * middle,
        middle + OUTLIER_DEVIATIONS * MAD_TO_STANDARD_DEVIATION * mad(seconds),
    )
    return int(np.argmin(seconds > limit))


def _first_step(analysis: _Analysis) -> str | None:
    if not (num_slow := analysis.num_slow_first_steps):
        return None
    ratio, warmup = (
        analysis.step_seconds[:num_slow].max() / np.median(analysis.step_seconds),
        analysis.result.run.num_warmup,
    )
    return (
        f'the first timed steps took up to {ratio:.1f} times the median: the warm-up of '
        f'{plural(warmup, "step")} was too short; use '
        f'--num_warmup_batches={max(DEFAULT_WARMUP, 2 * warmup, warmup + num_slow)}'
    )


def _outliers(analysis: _Analysis) -> str | None:
    seconds = analysis.steady_seconds
    # Steps that a pause of this program, such as a checkpoint, may have slowed down.
    is_next_to_pause = analysis.result.is_next_to_pause()[analysis.num_slow_first_steps :]
    outlier_seconds = seconds[outliers(seconds) & ~is_next_to_pause[: seconds.size]]
    middle = float(np.median(seconds)) if seconds.size else 0.0
    lost = float((outlier_seconds - middle).sum())
    if lost <= OUTLIER_SHARE * seconds.sum():
        return None
    (usual, slowest), unit = format_times(middle, float(outlier_seconds.max()))
    return (
        f'{plural(outlier_seconds.size, "outlier")} among {plural(seconds.size, "timed step")} '
        f'took up to {slowest} {unit}, where the median is {usual}, and lost '
        f'{_format_percent(lost / seconds.sum())} of the time; repeat the run (--repeat=5) before '
        'you compare it'
    )


def _spread(analysis: _Analysis) -> str | None:
    seconds = analysis.steady_seconds
    if not seconds.size or not (share := spread(seconds)) > SPREAD_SHARE:
        return None
    (low, high), unit = format_times(*np.percentile(seconds, (5, 95)).tolist())
    return (
        f'the steps spread by {_format_percent(share)} of their median (nine in ten took {low} to '
        f'{high} {unit}): repeat the run (--repeat=5) before you compare it'
    )


def _drift(analysis: _Analysis) -> str | None:
    change = drift(analysis.steady_seconds) or 0.0
    seconds = analysis.result.mean_seconds_per_call(analysis.steady_seconds)
    # The deviations are nan if there are few steps.
    if abs(change) <= DRIFT_SHARE or not abs(drift_deviations(seconds)) > DRIFT_DEVIATIONS:
        return None
    word, cause = (
        ('faster', 'was not warmed up')
        if change > 0
        else ('slower', 'heats up or fills its memory')
    )
    return (
        f'the second half of the timed steps was {_format_percent(abs(change))} {word} than the '
        f'first, beyond noise: the machine {cause}; use a larger --num_warmup_batches and '
        '--num_batches'
    )


def _too_short(analysis: _Analysis) -> str | None:
    if not is_short(analysis.result):
        return None
    seconds = _format_seconds(float(analysis.step_seconds.sum()))
    remedy = _how_to_measure_longer(analysis.result)
    return f'the timed steps took {seconds}, too short a time to compare their rate; {remedy}'


def _how_to_measure_longer(result: AnyResult, flags: str = LONGER_RUN_FLAG) -> str:
    if isinstance(result, CommandResult):
        return 'let the command measure for a longer time'
    # A run that was stopped early may have had flags for enough steps.
    return (
        f'use {flags}'
        if result.is_complete
        else 'measure again, and let the run take all of its steps'
    )


def _few_steps(analysis: _Analysis) -> str | None:
    if not 0 < analysis.step_seconds.size < MIN_STEPS or is_short(analysis.result):
        return None
    return (
        f'only {plural(analysis.step_seconds.size, "timed step")}, too few for the noise of the '
        'rate to be known; '
        + _how_to_measure_longer(
            analysis.result, f'--num_batches={MIN_STEPS} or more, or a longer --target_seconds'
        )
    )


def _loss(analysis: _Analysis) -> str | None:
    if analysis.result.run.role in ('input-only', 'exchange-only'):
        # The run computes no loss.
        return None
    for worker in analysis.result.workers:
        losses = worker.steps.loss
        bad = [
            index for index, loss in enumerate(losses) if loss is None or not math.isfinite(loss)
        ]
        if bad:
            return (
                f'the loss of {worker.task or "the run"} was not a finite number in {len(bad)} of '
                f'{plural(len(losses), "step")}, first in step '
                f'{worker.steps.global_step[bad[0]]}, so this is not the speed of real training; '
                'use a smaller --init_learning_rate, or check the weights and the images'
            )
    return None


def _input(analysis: _Analysis) -> str | None:
    share, waited = analysis.result.input.wait_share, analysis.result.input.wait_seconds
    if share is None or waited is None or share <= INPUT_SHARE:
        return None
    limit = (
        'the input is the bottleneck, not the model'
        if share > 0.5
        else 'the rate depends on the input, too'
    )
    return (
        f'the steps waited {_format_percent(share)} of their time ({_format_seconds(waited)}) for '
        f'images: {limit}; use faster storage, more cores or smaller images, or remove --data_dir '
        'to measure the model alone'
    )


def _pauses(analysis: _Analysis) -> str | None:
    wall, by_cause = analysis.result.throughput.wall_seconds, pause_seconds(analysis.result)
    total = math.fsum(by_cause.values())
    if not wall or total <= BETWEEN_SHARE * wall:
        return None
    cause, most = next(iter(by_cause.items()))
    remedy = f'; use a larger {_PAUSE_FLAGS[cause]}' if cause in _PAUSE_FLAGS else ''
    return (
        f'{_format_percent(total / wall)} of the time ({_format_seconds(total)}) passed between '
        f'the steps, {_format_seconds(most)} of it with {cause} work{remedy}'
    )


def pause_seconds(result: Result) -> dict[str, float]:
    """Returns the seconds between timed steps by cause, the largest first; evaluations are not in
    the total.
    """
    spent = result.throughput.between_seconds.items()
    in_total = [(name, seconds) for name, seconds in spent if seconds and name != 'evaluation']
    return dict(sorted(in_total, key=lambda entry: -entry[1]))


def _other_processes(analysis: _Analysis) -> str | None:
    share = analysis.result.noise.get('other_cpu_share')
    if share is None or share <= LOADED_SHARE:
        return None
    return (
        f'other processes used {_format_percent(share)} of the cores that this one may use; close '
        'them, or give the run separate cores (taskset), and measure again'
    )


def _steal(analysis: _Analysis) -> str | None:
    share = analysis.result.noise.get('steal_share')
    if share is None or share <= STEAL_SHARE:
        return None
    return (
        f'the host took {_format_percent(share)} of the time of the cores of this virtual machine '
        'for other machines (steal); measure on a machine with dedicated cores, or repeat the run '
        'at several times of the day'
    )


def _cpu_quota(analysis: _Analysis) -> str | None:
    noise = analysis.result.noise
    stopped, seconds = noise.get('cgroup_throttled_seconds'), noise.get('seconds')
    if not stopped or not seconds or stopped <= THROTTLED_SHARE * seconds:
        return None
    return (
        f'the CPU quota of the container (cgroup) stopped threads for {_format_seconds(stopped)} '
        f'in {_format_seconds(seconds)}; raise the quota, or use a smaller --num_intra_threads'
    )


def compare_workers(result: Result) -> dict[str, Ratio]:
    """Returns the rate of each worker alone over the rate of the others, by the method for hosts;
    of two workers, the ratio of the slower one. Empty if there is too little to compare.
    """
    rates = {
        name: 1 / np.array(alone.step_seconds)
        for name, alone in result.steps_alone.items()
        if len(alone.steps) >= MIN_RUNS
    }
    estimates = {
        name: estimate_runs(values, result.steps_alone[name].steps)
        for name, values in rates.items()
    }
    if len(rates) > 2:
        medians = [float(np.median(values)) for values in rates.values()]
        ratios = compare_with_others([*estimates.values()], medians)
        return {name: ratio for name, (ratio, _) in zip(rates, ratios, strict=True)}
    slow, *fast = sorted(rates, key=lambda name: estimates[name].images_per_second) or ['']
    return {slow: compare(estimates[fast[0]], estimates[slow])} if fast else {}


def _slow_worker(analysis: _Analysis) -> str | None:
    slow = {
        name: ratio.value
        for name, ratio in compare_workers(analysis.result).items()
        if ratio.interval and ratio.interval[1] < 1 / SLOW_WORKER
    }
    if not slow or is_short(analysis.result):
        return None
    slowest, *others = sorted(slow, key=lambda name: slow[name])
    also = f'; so does {abbreviate(others)}' if others else ''
    return (
        f'{slowest} computes {1 / slow[slowest]:.2g} times as long as the others: it holds every '
        f'step back{also}; look for the cause there (other programs, heat, a quota), or measure '
        'without it'
    )


def _thermal(analysis: _Analysis) -> str | None:
    num_throttles = analysis.result.noise.get('thermal_throttles')
    if not num_throttles:
        return None
    return (
        f'the CPU slowed down {plural(num_throttles, "time")} because it was too hot; improve the '
        'cooling, and measure again'
    )


def _gpu_lost(analysis: _Analysis) -> str | None:
    num_lost = analysis.result.noise.get('gpus_lost')
    if not num_lost:
        return None
    return (
        f'the driver lost {plural(num_lost, "GPU")} during the steps; the kernel log says why '
        '(dmesg, Xid), and the machine needs a reboot, or the GPU a reset (nvidia-smi --gpu-reset)'
    )


def _gpu_slowdown(analysis: _Analysis) -> str | None:
    noise = analysis.result.noise
    heat, hardware = noise.get('gpu_heat_share') or 0.0, noise.get('gpu_hardware_slowdown_share')
    share = max(heat, hardware or 0.0)
    if share <= GPU_SLOWDOWN_SHARE:
        return None
    lowest = noise.get('gpu_lowest_clock_share')
    clock = f', to {_format_percent(lowest)} of its maximum clock' if lowest is not None else ''
    if heat < share:
        return (
            f'the hardware of a GPU slowed it down {_format_percent(share)} of the time{clock}, '
            'and not for heat; check its power supply (nvidia-smi -q -d PERFORMANCE has the '
            'reason), and measure again'
        )
    celsius = noise.get('gpu_max_celsius')
    degrees = f' (up to {celsius:.0f} °C)' if celsius is not None else ''
    return (
        f'a GPU slowed down {_format_percent(share)} of the time because it was too hot'
        f'{degrees}{clock}; improve the cooling, and measure again'
    )


def _gpu_shared(analysis: _Analysis) -> str | None:
    num_others = analysis.result.noise.get('gpu_other_processes')
    if not num_others:
        return None
    return (
        f'{plural(num_others, "process", "es")} of other programs had a GPU of this run open; '
        'close them (nvidia-smi lists them), or choose other GPUs (--gpu_indices), and measure '
        'again'
    )


def _gpu_power(analysis: _Analysis) -> str | None:
    noise = analysis.result.noise
    share, clock = noise.get('gpu_power_cap_share'), noise.get('gpu_clock_share')
    if share is None or clock is None or share < GPU_POWER_SHARE:
        return None
    gpus: Sequence[Mapping[str, Any]] = analysis.result.machine['gpus']
    # Under its default limit, a GPU that is busy is often at this limit.
    for gpu in gpus:
        limit, default = gpu.get('power_limit_watts'), gpu.get('default_power_limit_watts')
        if limit and default and limit < default:
            return (
                f'the power limit of a GPU, {limit:g} W instead of the default {default:g} W, held '
                f'its clock down {_format_percent(share)} of the time (the median clock is '
                f'{_format_percent(clock)} of its maximum); raise it (nvidia-smi --power-limit), '
                'or compare only with runs under this limit'
            )
    return None


def _cores(analysis: _Analysis) -> str | None:
    machine = analysis.result.machine
    num_cores, affinity, quota = machine['num_cores'], machine['affinity'], machine['cgroup_cpus']
    usable = num_usable_cores(machine)
    if usable is None:
        return None
    num_threads = machine['threads']['intra_op'] or 0
    is_by_affinity = quota is None or (affinity and len(affinity) <= quota)
    reason = 'its affinity' if is_by_affinity else 'the CPU quota of its cgroup'
    if num_threads > usable:
        return (
            f'{plural(num_threads, "thread")} of an operation share {usable:.3g} of '
            f'{plural(num_cores or num_threads, "core")}: {reason} allows this process no more; '
            f'use --num_intra_threads={max(1, math.floor(usable))}, or allow more cores'
        )
    # The launcher gives the tasks of a cluster on one machine separate cores on purpose.
    if num_cores and usable < num_cores and not (is_by_affinity and analysis.result.cluster.tasks):
        return (
            f'the process may use only {usable:.3g} of the {plural(num_cores, "core")} of this '
            f'machine, because of {reason}; compare it only with runs on as many cores'
        )
    return None


def num_usable_cores(machine: Mapping[str, Any]) -> float | None:
    """Returns the cores that the process may use, by its affinity or its cgroup's quota; None if
    neither is known.
    """
    limits = [len(machine['affinity'])] if machine.get('affinity') else []
    limits += [machine['cgroup_cpus']] if machine.get('cgroup_cpus') else []
    return min(limits, default=None)


def _governor(analysis: _Analysis) -> str | None:
    machine = analysis.result.machine
    governor, driver = machine['governor'], machine.get('frequency_driver')
    if not governor or not driver or 'powersave' not in governor:
        return None
    remedy = 'set the governor to performance (cpupower frequency-set --governor performance)'
    if driver not in _ACTIVE_DRIVERS:
        return (
            f'the frequency governor of the CPU is {governor}, and with the driver {driver} '
            f'powersave holds the lowest clock; {remedy}'
        )
    preference = machine.get('energy_preference') or ''
    if not _SAVING_PREFERENCES.intersection(preference.split(', ')):
        return None
    return (
        f'the energy preference of the CPU is {preference} (driver {driver}), which keeps its '
        f'clock low; {remedy}'
    )


def _onednn(analysis: _Analysis) -> str | None:
    result = analysis.result
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
    advice = (
        'TensorFlow leaves oneDNN off on this processor, and steps may be much faster with it; add '
        '--onednn'
    )
    if not analysis.rerun_flags:
        return advice
    run_flags = ' '.join(
        f'--run={shlex.quote(shlex.join([*analysis.rerun_flags, format_flag("onednn", value)]))}'
        for value in ('false', 'true')
    )
    return f'{advice}, or measure both: tf_cnn_benchmarks.py compare {run_flags}'


def _format_percent(share: float) -> str:
    return f'{100 * share:.2g} %' if share < 0.995 else f'{100 * share:.0f} %'


def format_times(*seconds: float) -> tuple[list[str], str]:
    """Formats times with four digits in one unit, which the first one decides: ms below 10 s, else
    s.
    """
    factor, unit = (1e3, 'ms') if seconds[0] < 10 else (1.0, 's')
    return [f'{float(f"{factor * value:.4g}"):g}' for value in seconds], unit


def _format_seconds(seconds: float) -> str:
    return f'{seconds:.3g} s' if seconds < 100 else f'{seconds:.0f} s'


# By code: the function that returns the warning's text, or None.
ADVICE: Mapping[str, Callable[[_Analysis], str | None]] = {
    'loss_not_finite': _loss,
    'slow_first_step': _first_step,
    'too_short': _too_short,
    'few_steps': _few_steps,
    'outliers': _outliers,
    'spread': _spread,
    'drift': _drift,
    'input_bound': _input,
    'between_steps': _pauses,
    'machine_loaded': _other_processes,
    'steal': _steal,
    'cpu_quota': _cpu_quota,
    'slow_worker': _slow_worker,
    'thermal_throttling': _thermal,
    'gpu_lost': _gpu_lost,
    'gpu_slowdown': _gpu_slowdown,
    'gpu_shared': _gpu_shared,
    'gpu_power_limit': _gpu_power,
    'fewer_cores': _cores,
    'powersave': _governor,
    'onednn_off': _onednn,
}
