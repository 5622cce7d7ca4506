"""Formats the lines about the machine before a run, and the summary after it. Does not import
TensorFlow.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tf_cnn.results.advice import known_cores, spent_between, times
from tf_cnn.results.document import Result
from tf_cnn.system.errors import plural

# Both rates of a run are printed if they differ by more than this share.
_SAME_RATE = 0.01
_GIBIBYTE = 2**30
_PREFIXES = ('', 'k', 'M', 'G', 'T', 'P', 'E')


def format_machine(machine: Mapping[str, Any]) -> list[str]:
    """Formats the "machine" of a result in one line, and its GPUs, if any, in another; without
    unknown values.
    """
    versions = machine.get('versions') or {}
    lines = [
        _listed(
            _listed(machine.get('cpu_model'), _cores(machine)),
            _listed(
                _named('TensorFlow', versions.get('tensorflow')),
                _named('Python', versions.get('python')),
            ),
            separator='; ',
        )
    ]
    gpus = machine.get('gpus') or ()
    if gpus:
        kinds = Counter(
            (gpu.get('name') or 'GPU', gpu.get('memory_bytes'), gpu.get('compute_capability'))
            for gpu in gpus
        )
        libraries = ('driver', 'CUDA', 'cuDNN', 'NCCL')
        lines.append(
            _listed(
                *(_gpus(*kind, number) for kind, number in kinds.items()),
                _listed(*(_named(library, versions.get(library.lower())) for library in libraries)),
                separator='; ',
            )
        )
    return [line for line in lines if line]


# The words with which the lines of a summary begin.
_SUBJECTS = ('steps', 'rate', 'input', 'compute', 'threads', 'memory', 'energy', 'accuracy')


def is_summary(line: str) -> bool:
    """Whether a line of standard error comes from format_summary."""
    return line.partition(': ')[0] in _SUBJECTS


def format_summary(result: Result) -> list[str]:
    """Formats the lines that end a run, about what the total does not show; unknown values are left
    out.
    """
    return [line for line in _summary(result) if line]


def _summary(result: Result) -> Iterator[str]:
    run, statistics = result.run, result.statistics
    seconds = statistics.step_seconds
    if seconds.median is not None:
        tails = {'p90': seconds.p90, 'p95': seconds.p95, 'p99': seconds.p99}
        known = {name: value for name, value in tails.items() if value}
        (median, *more), unit = times(seconds.median, *known.values())
        tail = ''.join(f', {name} {text}' for name, text in zip(known, more, strict=True))
        yield f'steps: median {median} {unit}{tail} ({plural(statistics.num_steps, "step")})'
    if run.role != 'exchange-only':
        yield _between(result)
    waits = result.input
    if waits.wait_seconds is not None:
        of_time = f' ({100 * waits.wait_share:.1f} %)' if waits.wait_share is not None else ''
        yield f'input: steps waited {waits.wait_seconds:.3g} s{of_time}'
    compute = result.compute
    if compute.flops_per_second:
        of_peak = ''
        if compute.peak_flops_per_second and compute.share_of_peak:
            share, peak = (
                f'{100 * compute.share_of_peak:.1f} %',
                _scaled(compute.peak_flops_per_second, 'FLOP/s'),
            )
            precision = 'TF32' if run.tf32 else run.precision
            of_peak = f', {share} of the measured peak of {peak} (matrix products, {precision})'
        yield f'compute: {_scaled(compute.flops_per_second, "FLOP/s")}{of_peak}'
    threads = result.machine['threads']
    if threads.get('reason'):
        within, at_once = (
            plural(threads['intra_op'] or 0, 'thread'),
            plural(threads['inter_op'] or 0, 'operation'),
        )
        yield f'threads: {within} within an operation, {at_once} at a time ({threads["reason"]})'
    peaks = {'host': result.memory.host_peak_bytes, **result.memory.device_peak_bytes}
    in_memory = ', '.join(f'{where} {_scaled(peak, "B")}' for where, peak in peaks.items() if peak)
    yield f'memory: peak {in_memory}' if in_memory else ''
    energy = result.energy
    if energy.joules is not None:
        each = energy.joules_per_image
        per_image = f', {each:.3g} J per image' if each is not None else ''
        yield (
            f'energy: {_scaled(energy.joules, "J")} during the timed steps{per_image} '
            f'({energy.source})'
        )
    if goal := goal_of(result):
        outcome = (
            'reached at' if goal.top_1 >= goal.wanted else f'not reached; best {goal.top_1:.4f},'
        )
        after = '' if goal.seconds is None else f', {goal.seconds:.3g} s after the first step began'
        yield f'accuracy: top-1 {goal.wanted:g} {outcome} step {goal.step}{after}'


@dataclass(frozen=True)
class Goal:
    """The accuracy of --stop_at_top_1_accuracy, and that of the first evaluation that reached it,
    else of the best one.

    seconds is the time from the start of the first step, warm-up included, to the end of that
    evaluation; None if unknown, as in a run that continues from a checkpoint.
    """

    wanted: float
    top_1: float
    step: int
    seconds: float | None


def goal_of(result: Result) -> Goal | None:
    """Returns the wanted and the reached accuracy; None if none was wanted or nothing was
    evaluated.
    """
    wanted = result.command.flags.get('stop_at_top_1_accuracy')
    known = [(found.top_1, found) for found in result.evaluations if found.top_1 is not None]
    if not isinstance(wanted, float | int) or not known:
        return None
    reached = [(top_1, found) for top_1, found in known if top_1 >= wanted]
    top_1, shown = reached[0] if reached else max(known, key=lambda pair: pair[0])
    seconds = None
    if (
        result.workers
        and shown.end is not None
        and max(result.steps.global_step[:1], default=2) <= 1
    ):
        seconds = shown.end - result.steps.start[0]
    return Goal(wanted, top_1, shown.step, seconds)


def _between(result: Result) -> str:
    """Formats both rates, and the time between the steps by cause, if the rates differ."""
    total, of_steps = (
        result.throughput.images_per_second,
        result.throughput.images_per_second_of_steps,
    )
    if not total or not of_steps or abs(of_steps / total - 1) <= _SAME_RATE:
        return ''
    causes = ', '.join(
        f'{cause} {seconds:.2g} s' for cause, seconds in spent_between(result).items()
    )
    return (
        f'rate: {of_steps:.2f} images/sec within the steps, {total:.2f} in total'
        f'{f"; between the steps: {causes}" if causes else ""}'
    )


def _cores(machine: Mapping[str, Any]) -> str | None:
    num_cores, usable = machine.get('num_cores'), known_cores(machine)
    if not num_cores:
        return None
    if usable is None or usable >= num_cores:
        return plural(num_cores, 'core')
    return f'{usable:.3g} of {plural(num_cores, "core")}'


def _gpus(name: str, memory: int | None, capability: str | None, number: int) -> str:
    size = f'{memory / _GIBIBYTE:.0f} GiB{" each" if number > 1 else ""}' if memory else None
    return _listed(
        f'{name} x {number}' if number > 1 else name, size, _named('compute capability', capability)
    )


def _named(name: str, version: str | None) -> str | None:
    return f'{name} {version}' if version else None


def _listed(*parts: str | None, separator: str = ', ') -> str:
    return separator.join(filter(None, parts))


def _scaled(number: float, unit: str) -> str:
    """Formats a number with three digits and a prefix of its unit: 1.77e11 FLOP/s is 177
    GFLOP/s.
    """
    digits = float(f'{number:.2e}')
    power = min(max(int(math.log10(digits) // 3), 0), len(_PREFIXES) - 1) if digits > 0 else 0
    return f'{digits / 1000**power:.4g} {_PREFIXES[power]}{unit}'
