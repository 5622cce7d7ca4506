"""A run that only evaluates: the accuracy of the checkpoints in a folder."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from models.network_check import errors_of_network
from models.networks import variables_in_training
from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.planning.plan import Plan
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result
from tf_cnn.results.steps import Cause
from tf_cnn.run.build import build_evaluation, export, make_banner
from tf_cnn.run.evaluation import OwnVariables, share_accuracy, write_summary
from tf_cnn.run.export import ModelValues
from tf_cnn.run.invocation import Invocation
from tf_cnn.run.measurement import Measurement
from tf_cnn.run.process import Process
from tf_cnn.run.session import open_session
from tf_cnn.system.errors import RunError, format_flag
from tf_cnn.system.signals import SIGNALS
from tf_cnn.training.checkpoint_files import (
    describe_incomplete,
    has_ended,
    latest_checkpoint,
    named_checkpoint,
    named_checkpoints,
    step_of,
)
from tf_cnn.training.checkpoints import Checkpointer, Slice
from tf_cnn.training.contents import check_classes


def evaluate_checkpoints(plan: Plan, console: Console, invocation: Invocation) -> Result:
    """Evaluates the checkpoint that --train_dir names, the last one there, or each as it appears.

    Workers share the images.
    """
    measurement = Measurement(plan, console, invocation)
    process = Process(plan, console, measurement)
    with process.guarded():
        worker = process.join()
        console.progress('Building the graph')
        with tf.Graph().as_default() as graph, tf.device(worker.device):
            towers = [
                OwnVariables(device, f'tower_{number}')
                for number, device in enumerate(plan.machine.towers)
            ]
            evaluation = build_evaluation(plan, towers, worker.index, worker.num_trainers)
            folder = plan.checkpoints.folder or ''
            saver = Checkpointer(
                folder, _slices_of(towers), HOST_DEVICE, plan.checkpoints.max_to_keep
            )
            export_folder = plan.checkpoints.export_folder
            model_values = ModelValues(towers[0].slices) if export_folder else None
        console.result(make_banner(plan))
        last = values = None
        measurement.recording.begin('initialise')
        with open_session(worker.target, graph, worker.config) as session, process.evaluating():
            worker.watch(session, lambda: None)
            measurement.recording.begin(None)
            names_in_training = functools.cache(functools.partial(_names_in_training, plan))
            for number, prefix in enumerate(_checkpoints(plan, worker, console)):
                with measurement.doing(Cause.EVALUATION):
                    console.progress(f'Evaluating {prefix}')
                    line = check_classes(
                        prefix, plan.checkpoints.class_names, plan.checkpoints.data_dir
                    )
                    if line and last is None:
                        console.note(line)
                    saver.restore(
                        session, prefix, for_training=False, names_in_training=names_in_training
                    )
                    own = evaluation.run(session, step_of(prefix))
                    found = share_accuracy(own, worker, f'accuracy/{number}')
                    measurement.add_evaluation(found)
                    if plan.evaluations and plan.evaluations.summary_folder:
                        write_summary(found, plan.evaluations.summary_folder)
                last = prefix
            if model_values and last:
                values = model_values.read(session)
        if values and export_folder:
            console.progress(f'Writing {last} to {export_folder}')
            export(plan, values, export_folder)
        elif export_folder:
            console.warning(
                f'{format_flag("export_saved_model", export_folder)}: no checkpoint appeared; '
                'nothing is written'
            )
    return measurement.result


def _checkpoints(plan: Plan, worker: Worker, console: Console) -> Iterator[str]:
    """The checkpoints to evaluate; the chief chooses them for all workers of a cluster."""
    chosen = iter(_find_checkpoints(plan, console) if worker.is_chief else ())
    number = 0
    while True:
        prefix = worker.gather(f'checkpoint/{number}', next(chosen, None))[0]
        if prefix is None:
            return
        yield prefix
        number += 1


def _find_checkpoints(plan: Plan, console: Console) -> Iterator[str]:
    """The checkpoint that --train_dir names; or the last one there.

    With --eval_interval_secs each new one follows, until the training has ended.
    """
    folder = plan.checkpoints.folder or ''
    if prefix := named_checkpoint(folder):
        yield prefix
        return
    interval = plan.evaluations.interval_secs if plan.evaluations else 0.0
    last = latest_checkpoint(folder)
    if line := describe_incomplete(folder, last):
        console.warning(line)
    if last is None and not interval:
        raise RunError(
            f'--train_dir={folder}: it holds no checkpoint; train with this --train_dir first, or '
            'wait for one with --eval_interval_secs=10'
        )
    if last:
        yield last
    # Older checkpoints are not evaluated.
    seen = {last, *named_checkpoints(folder)} if last else set()
    while interval:
        # First the mark of the end, then the list: a checkpoint saved before the mark is always
        # listed.
        ended = has_ended(folder)
        new = [prefix for prefix in named_checkpoints(folder) if prefix not in seen]
        for prefix in new:
            seen.add(prefix)
            if Path(f'{prefix}.index').exists():
                yield prefix
            else:
                console.warning(
                    f'{prefix} was deleted before it was evaluated; keep more with '
                    '--max_ckpts_to_keep'
                )
        if ended and not new:
            return
        if not new:
            SIGNALS.wait(interval)


def _slices_of(towers: Sequence[OwnVariables]) -> dict[str, list[Slice]]:
    return {
        name: [part for tower in towers for part in tower.slices[name]] for name in towers[0].slices
    }


def _names_in_training(plan: Plan) -> frozenset[str]:
    """The names of all variables of the model in training, some of which an evaluation may not
    have.
    """
    with errors_of_network(plan.step.network, plan.subject.model.name):
        return frozenset(
            variables_in_training(
                plan.step.network, plan.data.image_shape, plan.step.num_classes
            ).values
        )
