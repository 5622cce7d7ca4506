"""Checks that run the whole program: losses, several processes, and images/sec."""

import math
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from doctor.photographs import write_shards
from doctor.program import command_line, losses_of, run_program
from doctor.verdicts import Context, Verdict, ok, warning, wrong
from params.modes import MODES

# A few steps of a small network, whose losses differ by rounding only: with a larger learning rate or more steps,
# training multiplies what rounding has begun.
_FEW_STEPS = ('--model=resnet20', '--batch_size=16', '--init_learning_rate=0.01', '--num_batches=3')
_ONE_WARM_UP = '--num_warmup_batches=1'
_TOLERANCE = 2e-3
_SECS = 120.0
_MEASURE_SECS = 270.0
# Steps that wait longer for the input than this share are slower than with synthetic images.
_LARGEST_WAIT = 0.05
# On a CPU a step of ResNet-50 takes seconds; a GPU needs some steps until its clock is steady.
_PACES = {
    'cpu': ('--batch_size=8', '--num_warmup_batches=1', '--target_seconds=8'),
    'gpu': ('--num_warmup_batches=20', '--target_seconds=15'),
}


def losses(context: Context) -> Verdict:
    """Whether a GPU trains as the CPU does, computing in float32 proper."""
    found = {}
    for device in ('gpu', 'cpu'):
        context.doing(f'training on the {device}')
        flags = [*_FEW_STEPS, _ONE_WARM_UP, f'--device={device}', *(('--notf32',) if device == 'gpu' else ())]
        found[device] = losses_of(run_program(flags, _SECS * context.time_limit))[0]
    return _compared('GPU', found['gpu'], 'CPU', found['cpu'])


def two_processes(context: Context) -> Verdict:
    """Whether two processes with a device each take the steps that one of them takes alone, on the same images.

    The sums of their gradients, divided by two, are then its gradients.
    """
    device = 'gpu' if context.num_gpus > 1 else 'cpu'
    mode = next(mode for mode in MODES.values() if mode.is_for_peers)
    flags = [*_FEW_STEPS, _ONE_WARM_UP, f'--device={device}', *(('--notf32',) if device == 'gpu' else ())]
    context.doing('training in one process')
    alone = losses_of(run_program(flags, _SECS * context.time_limit))[0]
    context.doing('training in two processes')
    shared = [*flags, f'--variable_update={mode.name}', '--nodistinct_worker_data']
    first, second = losses_of(run_program(shared, _SECS * context.time_limit, ('cluster', '--workers=2', '--')))
    if first != second:
        return wrong(
            f'the losses of the two processes differ: {_listed(first)} and {_listed(second)}',
            'report it: their variables should be equal',
            losses=[first, second],
        )
    return _compared(f'two processes on {device.upper()}s', first, 'one', alone)


def _compared(name: str, found: Sequence[float], other: str, expected: Sequence[float]) -> Verdict:
    figures = {name: list(found), other: list(expected)}
    difference = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
    shown = f'losses of {name} and {other} differ by {difference:.1e} at most'
    if not difference <= _TOLERANCE:
        return wrong(
            f'{shown}: {_listed(found)} and {_listed(expected)}',
            'report it; until it is explained, do not trust what is trained here',
            **figures,
        )
    return ok(shown, **figures)


def _listed(values: Sequence[float]) -> str:
    return ', '.join(f'{value:.5g}' for value in values)


def throughput(context: Context, flags: Sequence[str]) -> Verdict:
    """The images/sec of a run with these flags, on one device."""
    context.doing('running')
    flags = [*flags, *_PACES['gpu' if context.num_gpus else 'cpu']]
    rate, figures = _rate(run_program(flags, _MEASURE_SECS * context.time_limit))
    return ok(f'{rate}', **figures, command=command_line(flags))


def real_data(context: Context, flags: Sequence[str]) -> Verdict:
    """The images/sec of a run that reads and decodes JPEGs of 500 x 375 pixels, and whether its steps wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        context.doing('making JPEGs')
        write_shards(folder)
        context.doing('running')
        flags = [*flags, *_PACES['gpu' if context.num_gpus else 'cpu'], '--data_name=imagenet']
        document = run_program([*flags, f'--data_dir={folder}'], _MEASURE_SECS * context.time_limit)
    rate, figures = _rate(document)
    wait = document['input']['wait_share']
    figures |= {'wait_share': wait, 'command': command_line([*flags, '--data_dir=SHARDS'])}
    if not context.num_gpus:
        cores = len(os.sched_getaffinity(0))
        return ok(f'{rate} on {cores} cores: as fast as they read and decode, with a network of one layer', **figures)
    if wait is not None and wait > _LARGEST_WAIT:
        return warning(
            f'{rate}; steps wait for images {wait:.0%} of the time',
            'give each GPU more cores, store smaller images, or see docs/data.md',
            **figures,
        )
    return ok(f'{rate}; steps wait for images {wait or 0:.0%} of the time', **figures)


def _rate(document: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The rate of a run in words, and figures of it."""
    throughput = document['throughput']
    error = throughput['standard_error']
    shown = f'{throughput["images_per_second"]:.1f} images/sec'
    if error is not None and math.isfinite(error):
        shown += f' +/- {error:.1f}'
    run = document['run']
    figures = {
        'images_per_second': throughput['images_per_second'],
        'standard_error': error,
        'batch_size': run['batch_size'],
        'precision': run['precision'],
        'data_format': run['data_format'],
        'disturbance': document['disturbance'],
    }
    return f'{shown}, batch {run["batch_size"]}, {run["data_format"]}', figures
