"""The result document of a peer, as docs/results.md describes it, so that `compare` and `report` read it."""

import argparse
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from hardware.meters import host_peak_bytes
from hardware.surroundings import environment_facts, machine_facts
from models.costs import read_table
from models.registry import MODELS
from results.facts import as_json
from results.result import Cause, Ending, Phase, Transfer
from results.sections import (
    START_PHASES,
    ClusterSection,
    CommandSection,
    ComputeSection,
    EnergySection,
    InputSection,
    MemorySection,
    ModelSection,
    ProgramSection,
    ResultDocument,
    StepsSection,
    ThroughputSection,
    WorkerSection,
)
from results.statistics import describe, summarize

WEIGHT_DECAY, NUM_CLASSES = 4e-5, 1001
IMAGE_SIZE = 224  # of ResNet-50
# Constant, and low enough for random labels; the program's own schedule starts as low. It does not affect the speed.
LEARNING_RATE = 0.005
_TRAINED_PASSES = 3  # docs/results.md: the backward pass is two forward passes


# Long, because the document is one object; the arguments are all that it takes from the script.
def make_document(
    args: argparse.Namespace,
    peer: str,
    versions: Mapping[str, str],
    starts: Sequence[float],
    seconds: Sequence[float],
    losses: Sequence[float],
    disturbance: Mapping[str, Any],
    model: str,
    *,
    is_synthetic: bool,
) -> dict[str, Any]:
    """Returns the JSON object of a run.

    Args:
      args: batch_size, num_warmup_batches, num_batches, precision and forward_only, as the flags of this program.
      peer: the name of the software.
      versions: the versions of its libraries.
      starts: the start of each step, warm-up included, in seconds since 1970.
      seconds: the seconds of each step.
      losses: the loss of each step.
      disturbance: the disturbance of the timed steps, as hardware.meters.Disturbances returns it.
      model: the name of the network in this program.
      is_synthetic: whether no images are read.
    """
    facts = MODELS.find_model(model)
    parameters, multiply_adds = read_table()[model, 'imagenet', facts.image_size]
    num_warmup, num_timed, machine = args.num_warmup_batches, args.num_batches, machine_facts()
    timed, num_steps = seconds[num_warmup:], len(seconds)
    images, wall = num_timed * args.batch_size, starts[-1] + seconds[-1] - starts[num_warmup]
    rate = summarize(args.batch_size, timed)
    flops = 2.0 * multiply_adds * (1 if args.forward_only else _TRAINED_PASSES)
    memory = MemorySection(host_peak_bytes=host_peak_bytes(), device_peak_bytes={})
    per_second = images / wall
    document = ResultDocument(
        id=uuid.uuid4().hex,
        complete=True,
        ended=Ending(),
        started_at=_utc(starts[0]),
        ended_at=_utc(starts[-1] + seconds[-1]),
        program=ProgramSection(version=peer, git_commit=None),
        command=CommandSection(argv=sys.argv[1:], flags={'peer': peer}, given={}),
        run={
            'role': 'forward-only' if args.forward_only else 'training',
            'variable_update': 'none',
            'sync': True,
            'together': True,
            'all_reduce_spec': None,
            'optimizer': 'sgd',
            'precision': args.precision,
            'tf32': False,
            'data_format': 'NHWC',
            'device': 'cpu',
            'devices': ['/cpu:0'],
            'data_set': 'imagenet',
            'is_synthetic': is_synthetic,
            'image_size': facts.image_size,
            'batch_size': args.batch_size,
            'global_batch_size': args.batch_size,
            'images_per_step': args.batch_size,
            'num_warmup': num_warmup,
            'num_timed': num_timed,
            'num_epochs': None,
            'display_every': num_timed,
            'steps_per_run': 1,
            'num_missing_shards': 0,
            'num_skipped_steps': 0,
        },
        cluster=ClusterSection(shape='1*1', num_workers=1, devices_per_worker=1, num_ps=0, tasks=()),
        model=ModelSection(name=model, parameters=parameters, gflops_per_image=multiply_adds / 1e9),
        workers=[
            WorkerSection(
                task=None,
                host=machine['hostname'] or '',
                memory=memory,
                steps=StepsSection(
                    phase=[Phase.WARMUP] * num_warmup + [Phase.TIMED] * num_timed,
                    index=[*range(1, num_warmup + 1), *range(1, num_timed + 1)],
                    global_step=[*range(1, num_steps + 1)],
                    start=starts,
                    seconds=seconds,
                    loss=losses,
                    top_1=None,
                    top_5=None,
                    learning_rate=None if args.forward_only else [LEARNING_RATE] * num_steps,
                    input_wait=None,
                    between={},
                ),
            )
        ],
        throughput=ThroughputSection(
            images_per_second=per_second,
            images_per_second_of_steps=rate.images_per_second,
            images=images,
            wall_seconds=wall,
            step_seconds=sum(timed),
            between_seconds={Cause.OTHER: max(wall - sum(timed), 0.0)},
            standard_error=rate.standard_error,
            jitter=rate.jitter,
            images_per_second_per_device=per_second,
        ),
        statistics=describe(timed),
        phases=dict.fromkeys((*START_PHASES, 'first_step')),
        compute=ComputeSection(
            flops_per_image=flops, flops_per_second=flops * per_second, peak_flops_per_second=None, share_of_peak=None
        ),
        memory=memory,
        transfer=Transfer(bytes_per_step=0),
        input=InputSection(wait_seconds=None, wait_share=None, stages=None, memory=None),
        energy=EnergySection(source=None, joules=None, joules_per_image=None),
        evaluations=(),
        machine={**machine, 'versions': {**machine['versions'], **versions}},
        environment=environment_facts(os.environ),
        disturbance=disturbance,
    )
    return as_json(document)


def _utc(seconds: float) -> str:
    return f'{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%SZ}'
