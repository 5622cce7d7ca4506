"""A run that only evaluates: the accuracy of the checkpoints in a folder."""

import functools
from collections.abc import Iterator
from pathlib import Path

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.plan.plan import Plan
from tf_cnn.results.console import Console
from tf_cnn.results.steps import PauseCause
from tf_cnn.run.lifecycle import RunLifecycle
from tf_cnn.run.run_report import RunReport
from tf_cnn.step.build import build_evaluation
from tf_cnn.step.constant_weights import names_in_training
from tf_cnn.step.evaluation import RestoredVariables
from tf_cnn.system.errors import RunError
from tf_cnn.system.signals import SIGNALS
from tf_cnn.training.checkpoint_files import (
    checkpoint_step,
    has_training_ended,
    incomplete_checkpoint_warning,
    latest_checkpoint,
    listed_checkpoints,
    parse_checkpoint_prefix,
)
from tf_cnn.training.checkpoints import Checkpointer


def evaluate_checkpoints(plan: Plan, console: Console, report: RunReport) -> None:
    """Evaluates the checkpoint that --train_dir names, or the newest one in that folder.

    With --eval_interval_secs it also evaluates each new checkpoint, until the training has ended.
    Workers share the images.
    """
    lifecycle = RunLifecycle(plan, console, report)
    with lifecycle.guard():
        worker = lifecycle.join()
        console.progress('Building the graph')
        with tf.Graph().as_default() as graph, tf.device(worker.device):
            towers = [
                RestoredVariables(device, f'tower_{number}')
                for number, device in enumerate(plan.devices.towers)
            ]
            evaluation = build_evaluation(plan, towers, worker.index, worker.num_training_tasks)
            folder = plan.params.checkpoints.train_dir or ''
            slices = {
                name: [tower_slice for tower in towers for tower_slice in tower.slices[name]]
                for name in towers[0].slices
            }
            max_checkpoints = plan.params.checkpoints.max_ckpts_to_keep
            saver = Checkpointer(folder, slices, HOST_DEVICE, max_checkpoints)
        report.print_banner()
        report.meters.begin_phase('initialise')
        with lifecycle.open_session(graph) as session, lifecycle.evaluating():
            worker.watch(session, lambda: None)
            report.meters.begin_phase(None)
            read_names = functools.cache(functools.partial(names_in_training, plan))
            for number, prefix in enumerate(_checkpoints_from_chief(plan, worker, console)):
                with report.recorder.pause(PauseCause.EVALUATION):
                    console.progress(f'Evaluating {prefix}')
                    saver.restore(session, prefix, for_training=False, names_in_training=read_names)
                    step = checkpoint_step(prefix)
                    report.evaluate(evaluation, session, step, worker, str(number))


def _checkpoints_from_chief(plan: Plan, worker: Worker, console: Console) -> Iterator[str]:
    """Yields the checkpoints to evaluate; the chief chooses them for all workers of a cluster."""
    checkpoints = iter(_find_checkpoints(plan, console) if worker.is_chief else ())
    number = 0
    while True:
        prefix = worker.gather(f'checkpoint/{number}', next(checkpoints, None))[0]
        if prefix is None:
            return
        yield prefix
        number += 1


def _find_checkpoints(plan: Plan, console: Console) -> Iterator[str]:
    """Yields the checkpoint that --train_dir names, or the newest one in it.

    With --eval_interval_secs every new one follows, until the training has ended.
    """
    folder = plan.params.checkpoints.train_dir or ''
    if prefix := parse_checkpoint_prefix(folder):
        yield prefix
        return
    interval = plan.params.evaluation.eval_interval_secs
    last = latest_checkpoint(folder)
    if line := incomplete_checkpoint_warning(folder, last):
        console.warning(line)
    if last is None and not interval:
        raise RunError(
            f'--train_dir={folder}: it holds no complete checkpoint; train with this --train_dir '
            'first, or wait for one with --eval_interval_secs=10'
        )
    if last:
        yield last
    while interval:
        # Read the mark of the end before the list, so that the list has every checkpoint saved
        # before the mark.
        training_has_ended = has_training_ended(folder)
        listed = listed_checkpoints(folder)
        # The newest is last. The oldest are deleted first: if `last` has gone, all are newer.
        newer = listed[listed.index(last) + 1 :] if last in listed else listed
        for prefix in newer:
            last = prefix
            if Path(f'{prefix}.index').exists():
                yield prefix
            else:
                console.warning(
                    f'{prefix} was deleted before it was evaluated; keep more with '
                    '--max_ckpts_to_keep'
                )
        if training_has_ended and not newer:
            return
        if not newer:
            SIGNALS.wait(interval)
