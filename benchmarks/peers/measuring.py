"""Reads the flags of a peer, times its steps, and writes a result for `compare` and `report`.

Does not import TensorFlow.
"""

import argparse
import itertools
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from models.registry import MODELS
from tf_cnn.machine.meters import NoiseMeter, host_peak_bytes
from tf_cnn.machine.run_environment import describe_machine, library_variables
from tf_cnn.results import sections
from tf_cnn.results.document import SCHEMA_VERSION, Result
from tf_cnn.results.sections import Phase, partial_section
from tf_cnn.results.steps import PauseCause, Step, StepLog, StepValues
from tf_cnn.system.atomic import write_atomically

# Bottleneck blocks of the four stages: He et al. 2015, table 1.
BLOCKS = (3, 4, 6, 3)
WEIGHT_DECAY, NUM_CLASSES = 4e-5, 1001
IMAGE_SIZE = 224  # of ResNet-50
# Constant, and low enough for random labels, as the program's schedule at its start. It does not
# affect the speed.
LEARNING_RATE = 0.005


def make_parser(description: str) -> argparse.ArgumentParser:
    """Returns the parser of a peer. The flags have the same meaning as in this program."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in {'batch_size': 32, 'num_batches': 10, 'num_warmup_batches': 2}.items():
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument('--precision', choices=('fp32', 'bf16'), default='fp32')
    parser.add_argument('--forward_only', action='store_true')
    parser.add_argument('--result_file', help='the JSON file to write')
    return parser


def run_steps(
    args: argparse.Namespace,
    peer: str,
    versions: Mapping[str, str],
    step: Callable[[], float],
    model: str = 'resnet50',
    *,
    is_synthetic: bool = True,
) -> None:
    """Takes and times the steps, prints images/sec, and writes the result.

    Args:
      step: takes one step and returns the loss.
      model: the name of the same network in this program.
    """
    noise_meter, steps = NoiseMeter(), list[Step[StepValues]]()
    for number in range(-args.num_warmup_batches, args.num_batches):
        if not number:
            noise_meter.start()
        index, phase = (number + 1, Phase.TIMED) if number >= 0 else (len(steps) + 1, Phase.WARMUP)
        start = time.perf_counter()
        loss = step()
        values = StepValues(loss, steps_before=len(steps), steps_after=len(steps) + 1)
        steps.append(Step(phase, index, time.perf_counter() - start, values, start))
    noise = noise_meter.stop()
    gaps = [
        {PauseCause.OTHER: max(0.0, after.start - before.end)}
        for before, after in itertools.pairwise(steps)
    ]
    run = partial_section(
        sections.RunSection,
        role='forward-only' if args.forward_only else 'training',
        variable_update='none',
        optimizer='sgd',
        precision=args.precision,
        data_format='NHWC',
        device='cpu',
        devices=['/cpu:0'],
        data_set='imagenet',
        is_synthetic=is_synthetic,
        image_size=MODELS.find_model(model).image_size,
        num_warmup=args.num_warmup_batches,
        num_timed=args.num_batches,
        display_every=args.num_batches,
        steps_per_run=1,
        tf32=False,
        **dict.fromkeys(('sync', 'has_synchronous_workers'), True),
        **dict.fromkeys(('num_missing_shards', 'num_skipped_steps'), 0),
        **dict.fromkeys(('batch_size', 'global_batch_size', 'images_per_step'), args.batch_size),
    )
    result = _result(StepLog(run, tuple(steps), (*gaps, {})), model, peer, versions, noise)
    print(f'{peer}: loss {loss:.3f}')
    print(f'total images/sec: {result.images_per_second:.2f}')
    if args.result_file:
        write_atomically(json.dumps(result.to_dict()), args.result_file)


def _result(
    measurement: StepLog, model: str, peer: str, versions: Mapping[str, str], noise: Any
) -> Result:
    """Returns a Result (docs/results.md) without the fields that peers do not measure."""
    memory, machine = sections.MemorySection(host_peak_bytes(), {}), describe_machine()
    unix_at_zero = time.time() - time.perf_counter()
    worker = sections.WorkerSection(
        None, machine['hostname'] or '', memory, measurement.steps_section(unix_at_zero)
    )
    first, last = measurement.steps[0].start, measurement.steps[-1].end
    start, end = (datetime.fromtimestamp(unix_at_zero + offset, UTC) for offset in (first, last))
    return Result(
        schema_version=SCHEMA_VERSION,
        id=uuid.uuid4().hex,
        is_complete=True,
        exit_status=sections.ExitSection(0, None),
        started_at=f'{start:%Y-%m-%dT%H:%M:%SZ}',
        ended_at=f'{end:%Y-%m-%dT%H:%M:%SZ}',
        program=sections.ProgramSection(peer, None),
        command=sections.CommandSection(sys.argv[1:], {'peer': peer}, {}),
        run=measurement.run,
        cluster=sections.ClusterSection('1*1', 1, 1, 0, ()),
        model=partial_section(sections.ModelSection, name=model),
        workers=[worker],
        throughput=measurement.throughput,
        statistics=sections.StatisticsSection.of(
            [step.seconds for step in measurement.timed_steps]
        ),
        phases=dict.fromkeys(sections.START_PHASES),
        compute=partial_section(sections.ComputeSection),
        memory=memory,
        transfer=sections.TransferSection((), 0),
        input=partial_section(sections.InputSection),
        energy=partial_section(sections.EnergySection),
        evaluations=(),
        machine=cast(
            sections.MachineSection, {**machine, 'versions': {**machine['versions'], **versions}}
        ),
        environment=library_variables(os.environ),
        noise=noise,
        warnings=(),
    )
