"""Formats the lines about the machine before a run, and the summary after it. Does not import
TensorFlow.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from tf_cnn.machine.gpus import format_gpus
from tf_cnn.results.advice import (
    MIN_STEPS,
    compare_workers,
    format_times,
    is_short,
    num_usable_cores,
    pause_seconds,
)
from tf_cnn.results.document import Result
from tf_cnn.results.sections import NoiseSection
from tf_cnn.system.errors import format_scaled, plural

# Both rates of a run are printed if they differ by more than this share.
_SAME_RATE = 0.01


def format_machine(machine: Mapping[str, Any]) -> list[str]:
    """Formats the "machine" of a result in one line, and its GPUs, if any, in another; without
    unknown values.
    """
    versions = machine.get('versions') or {}
    lines = [
        _join_texts(
            _join_texts(machine.get('cpu_model'), _format_cores(machine)),
            _join_texts(
                _format_version('TensorFlow', versions.get('tensorflow')),
                _format_version('Python', versions.get('python')),
            ),
            separator='; ',
        )
    ]
    if gpus := machine.get('gpus'):
        libraries = ('driver', 'CUDA', 'cuDNN', 'NCCL')
        lines.append(
            _join_texts(
                *format_gpus(gpus),
                _join_texts(
                    *(
                        _format_version(library, versions.get(library.lower()))
                        for library in libraries
                    )
                ),
                separator='; ',
            )
        )
    return [line for line in lines if line]


def format_limits(machine: Mapping[str, Any]) -> list[str]:
    """Formats the memory of the "machine" of a result, and what limits a process there."""
    memory, group_memory = machine.get('memory_bytes'), machine.get('cgroup_memory_bytes')
    quota, governor = machine.get('cgroup_cpus'), machine.get('governor')
    power_limits = {gpu.get('power_limit_watts') for gpu in machine.get('gpus') or ()} - {None}
    limits = [
        f'{format_scaled(memory)} of memory' if memory else '',
        f'limit of {format_scaled(group_memory)} of memory' if group_memory else '',
        f'quota of {quota:g} cores' if quota else '',
        f'governor {governor}' if governor else '',
        f'power limit {"/".join(f"{watts:g}" for watts in sorted(power_limits))} W'
        if power_limits
        else '',
        'virtual machine' if machine.get('is_virtual') else '',
    ]
    return [limit for limit in limits if limit]


# The first words of the lines of a summary.
_LABELS = (
    'steps',
    'rate',
    'alone',
    'input',
    'compute',
    'threads',
    'memory',
    'energy',
    'GPUs',
    'accuracy',
)


def is_summary_line(line: str) -> bool:
    """Whether a line of standard error comes from format_summary."""
    return line.partition(': ')[0] in _LABELS


def format_summary(result: Result) -> list[str]:
    """Formats the summary lines after a run, about what the total does not show, without unknown
    values.
    """
    return [line for line in _summary_lines(result) if line]


def _summary_lines(result: Result) -> Iterator[str]:
    run, seconds = result.run, result.statistics.step_seconds
    if seconds.median is not None:
        if result.statistics.num_steps < MIN_STEPS:
            tails = (
                {'least': seconds.min, 'most': seconds.max}
                if result.statistics.num_steps > 1
                else {}
            )
        else:
            tails = {'p90': seconds.p90, 'p95': seconds.p95, 'p99': seconds.p99}
        ends = {name: value for name, value in tails.items() if value}
        (median, *more), unit = format_times(seconds.median, *ends.values())
        tail = ''.join(f', {name} {text}' for name, text in zip(ends, more, strict=True))
        yield f'steps: median {median} {unit}{tail} ({plural(result.statistics.num_steps, "step")})'
    if run.role != 'exchange-only':
        yield _format_rates(result)
    yield _format_alone(result)
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
                format_scaled(compute.peak_flops_per_second, 'FLOP/s'),
            )
            precision = 'TF32' if run.tf32 else run.precision
            of_peak = f', {share} of the measured peak of {peak} (matrix products, {precision})'
        yield f'compute: {format_scaled(compute.flops_per_second, "FLOP/s")}{of_peak}'
    threads = result.machine['threads']
    if threads.get('reason'):
        within, at_once = (
            plural(threads['intra_op'] or 0, 'thread'),
            plural(threads['inter_op'] or 0, 'operation'),
        )
        yield f'threads: {within} within an operation, {at_once} at a time ({threads["reason"]})'
    peaks = {'host': result.memory.host_peak_bytes, **result.memory.device_peak_bytes}
    in_memory = ', '.join(f'{where} {format_scaled(peak)}' for where, peak in peaks.items() if peak)
    yield f'memory: peak {in_memory}' if in_memory else ''
    energy = result.energy
    if energy.joules is not None:
        each = energy.joules_per_image
        per_image = f', {each:.3g} J per image' if each is not None else ''
        yield (
            f'energy: {format_scaled(energy.joules, "J")} during the timed steps{per_image} '
            f'({energy.source})'
        )
    yield _format_gpu_noise(result.noise)
    yield _format_accuracy(result)


def _format_accuracy(result: Result) -> str:
    """Formats the first evaluation that reached --stop_at_top_1_accuracy, else the best one, and
    the time from the start of the first step, warm-up included, to its end; '' without a target or
    an evaluation.

    The time is unknown in a run that continues from a checkpoint.
    """
    target = result.command.flags.get('stop_at_top_1_accuracy')
    accuracies = [(row.top_1, row) for row in result.evaluations if row.top_1 is not None]
    if not isinstance(target, float | int) or not accuracies:
        return ''
    best, evaluation = max(accuracies, key=lambda pair: pair[0])
    outcome = f'not reached; best {best:.4f},'
    if reached := [row for top_1, row in accuracies if top_1 >= target]:
        outcome, evaluation = 'reached at', reached[0]
    after = ''
    if (
        result.workers
        and evaluation.end is not None
        and max(result.steps.global_step[:1], default=2) <= 1
    ):
        seconds = evaluation.end - result.steps.start[0]
        after = f', {seconds:.3g} s after the first step began'
    return f'accuracy: top-1 {target:g} {outcome} step {evaluation.step}{after}'


def _format_rates(result: Result) -> str:
    """Formats both rates, and the time between the steps by cause, if the rates differ."""
    total, of_steps = (
        result.throughput.images_per_second,
        result.throughput.images_per_second_of_steps,
    )
    if not total or not of_steps or abs(of_steps / total - 1) <= _SAME_RATE:
        return ''
    causes = ', '.join(
        f'{cause} {seconds:.2g} s' for cause, seconds in pause_seconds(result).items()
    )
    return (
        f'rate: {of_steps:.2f} images/sec within the steps, {total:.2f} in total'
        f'{f"; between the steps: {causes}" if causes else ""}'
    )


def _format_alone(result: Result) -> str:
    """Formats how long the workers compute alone, and the rest of a step; a worker that is slower
    than the others has a warning instead.
    """
    alone, median = result.steps_alone, result.statistics.step_seconds.median
    if not alone or not median or any(row.code == 'slow_worker' for row in result.warnings):
        return ''
    seconds = statistics.median(statistics.median(steps.step_seconds) for steps in alone.values())
    (text,), unit = format_times(seconds)
    is_judged = compare_workers(result) and not is_short(result)
    return (
        f'alone: a worker computes {text} {unit} a step (median of {len(alone)}'
        f'{", none stands out" if is_judged else ""}); {100 * max(0.0, 1 - seconds / median):.0f} '
        '% of a step is exchange and waiting'
    )


def _format_gpu_noise(noise: NoiseSection) -> str:
    """Formats the clock and the temperature of the GPUs, and the reasons for a low clock."""
    clock, lowest = noise.get('gpu_clock_share'), noise.get('gpu_lowest_clock_share')
    celsius = noise.get('gpu_max_celsius')
    shares = {
        'heat': noise.get('gpu_heat_share'),
        'its power limit': noise.get('gpu_power_cap_share'),
        'the hardware': noise.get('gpu_hardware_slowdown_share'),
    }
    text = _join_texts(
        None if clock is None else f'clock {100 * clock:.0f} % of its maximum',
        None if lowest is None else f'lowest {100 * lowest:.0f} %',
        None if celsius is None else f'up to {celsius:.0f} °C',
        *(
            f'held down by {name} {100 * share:.0f} % of the time'
            for name, share in shares.items()
            if share
        ),
    )
    return f'GPUs: {text}' if text else ''


def _format_cores(machine: Mapping[str, Any]) -> str | None:
    num_cores, usable = machine.get('num_cores'), num_usable_cores(machine)
    if not num_cores:
        return None
    if usable is None or usable >= num_cores:
        return plural(num_cores, 'core')
    return f'{usable:.3g} of {plural(num_cores, "core")}'


def _format_version(name: str, version: str | None) -> str | None:
    return f'{name} {version}' if version else None


def _join_texts(*texts: str | None, separator: str = ', ') -> str:
    return separator.join(filter(None, texts))
