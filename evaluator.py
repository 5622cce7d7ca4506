"""A run that evaluates and trains nothing: the accuracy of the checkpoints of a folder."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from assembly import Assembly
from cluster.crew import Timeout
from cluster.members import Cluster, find_cluster
from cluster.signals import Stop, terminable
from cluster.worker import Worker
from errors import RunError, UsageError
from evaluation import Evaluation, OwnVariables, report
from faults import check_ends, explain
from flag_spec import spelled
from output_files import check_outputs
from params import Params
from reporting import console as lines
from reporting.console import Console
from reporting.result import Accuracy
from saved_model import ModelValues
from stepper import open_session
from training.checkpoints import Checkpointer, Slice, has_ended, named_checkpoints, step_of
from training.variables import HOST_DEVICE


class Evaluator:
    """Evaluates the last checkpoint of --train_dir, or each as it appears; as a worker of a cluster, a share of the
    images.

    Args:
      params: the settings, with eval.
      console: where lines are printed; nowhere by default.

    Raises:
      UsageError: the settings do not fit this machine, or the data folder does not hold what they need.
    """

    def __init__(self, params: Params, console: Console | None = None) -> None:
        if params.train_dir is None or params.variable_update == 'horovod':
            raise UsageError(
                '--eval: it needs --train_dir, and --variable_update=horovod cannot be had with it; evaluate in one '
                'process, or as a cluster of another --variable_update'
            )
        self._folder = params.train_dir
        self._params = params
        self._console = console or Console()
        self._cluster = find_cluster(params, os.environ)
        check_outputs(params, is_chief=self._cluster is None or self._cluster.is_chief)
        self._parts = Assembly(params, self._cluster, None, self._console.warning)
        self._worker: Worker | None = None

    def run(self) -> tuple[Accuracy, ...]:
        """Returns what was found, a checkpoint each.

        Raises:
          RunError: there is no checkpoint, one is of another model, or a fault while running.
        """
        with contextlib.ExitStack() as until_the_end:
            until_the_end.enter_context(Stop(self._finish_for).listening() if self._cluster else terminable())
            try:
                found = tuple(self._evaluations())
                check_ends(self._parts.validation, self._console.warning)
            except RunError as fault:
                self._leave(fault.exit_code, str(fault))
                raise
            except tf.errors.OpError as error:
                raise self._explain(error) from error
        self._leave(0)
        return found

    def _leave(self, exit_code: int, reason: str = '') -> None:
        if self._worker:
            self._worker.end(exit_code, reason)

    def _finish_for(self, exit_code: int, signal_name: str) -> None:
        self._leave(exit_code, f'stopped by {signal_name}')
        self._console.warning(f'stopped by {signal_name}')

    def _explain(self, error: tf.errors.OpError) -> RunError:
        params, parts = self._params, self._parts
        verdict = self._worker.verdict() if self._worker else None
        line = (
            verdict.line
            if verdict
            else explain(
                error,
                f'--eval_batch_size={parts.eval_batch_size}',
                parts.validation,
                parts.data_set.num_classes,
                params.data_dir,
                self._console.progress,
            )
        )
        self._leave(1, line)
        return RunError(line)

    def _evaluations(self) -> Iterator[Accuracy]:
        parts = self._parts
        worker = self._meet(self._cluster) if self._cluster else None
        self._console.progress('Building the graph')
        with tf.Graph().as_default() as graph, tf.device(worker.device if worker else None):
            towers = [OwnVariables(device, f'tower_{number}') for number, device in enumerate(parts.machine.towers)]
            process, num_processes = (worker.cluster.index, worker.cluster.num_trainers) if worker else (0, 1)
            evaluation = parts.build_evaluation(towers, process, num_processes)
            saver = Checkpointer(self._folder, _slices_of(towers), HOST_DEVICE, self._params.max_ckpts_to_keep)
            folder = self._params.export_saved_model
            to_export = ModelValues(towers[0].slices) if folder and process == 0 else None
        if not (worker and worker.legacy):
            banner = parts.banner('evaluation', parts.eval_batch_size, num_processes)
            self._console.result(lines.format_banner(banner))
        target, config = (worker.target, worker.config) if worker else ('', parts.config)
        with open_session(target, graph, config) as session:
            if worker:
                worker.watch(session)
            last = None
            for number, prefix in enumerate(self._checkpoints()):
                yield self._evaluate(evaluation, saver, session, prefix, number)
                last = prefix
            values = to_export.read(session) if to_export and last else None
        if values and folder:
            self._console.progress(f'Writing {last} to {folder}')
            parts.export(values, folder)
        elif to_export:
            self._console.warning(
                f'{spelled("export_saved_model", folder)}: no checkpoint appeared that could be written'
            )

    def _evaluate(
        self, evaluation: Evaluation, saver: Checkpointer, session: tf.Session, prefix: str, number: int
    ) -> Accuracy:
        self._console.progress(f'Evaluating {prefix}')
        saver.restore(session, prefix, for_training=False)
        own = evaluation.run(session, step_of(prefix))
        return report(own, self._worker, f'accuracy/{number}', self._params.eval_dir, self._console)

    def _meet(self, cluster: Cluster) -> Worker:
        params = self._params
        self._worker = Worker(
            cluster,
            self._parts.config,
            together=True,
            keeps_state=True,
            connect=Timeout('connect_timeout_secs', params.connect_timeout_secs),
            peer=Timeout('peer_timeout_secs', params.peer_timeout_secs),
            warn=self._console.warning,
            hand_over=self._console.hand_over,
        )
        self._console.progress(f'Waiting for the other tasks ({len(cluster.tasks) - 1})')
        self._worker.join(None)
        return self._worker

    def _checkpoints(self) -> Iterator[str]:
        """The checkpoints to evaluate; workers of a cluster take those that their chief has chosen."""
        worker = self._worker
        chosen = iter(self._found() if worker is None or worker.cluster.is_chief else ())
        number = 0
        while True:
            prefix = next(chosen, None)
            if worker:
                prefix = worker.gather(f'checkpoint/{number}', prefix)[0]
            if prefix is None:
                return
            yield prefix
            number += 1

    def _found(self) -> Iterator[str]:
        """The last checkpoint and, with --eval_interval_secs, each that appears until the training has ended."""
        last = Checkpointer.latest(self._folder)
        interval = self._params.eval_interval_secs
        if last is None and not interval:
            raise RunError(
                f'--train_dir={self._folder}: it holds no checkpoint; train with this --train_dir first, or wait for '
                'one with --eval_interval_secs=10'
            )
        if last:
            yield last
        # Those before it are not asked for.
        seen = {last, *named_checkpoints(self._folder)} if last else set()
        while interval:
            # In this order: what is saved before the end is not overlooked.
            ended = has_ended(self._folder)
            new = [prefix for prefix in named_checkpoints(self._folder) if prefix not in seen]
            for prefix in new:
                seen.add(prefix)
                if Path(f'{prefix}.index').exists():
                    yield prefix
                else:
                    self._console.warning(
                        f'{prefix} was deleted before it was evaluated; keep more: --max_ckpts_to_keep'
                    )
            if ended and not new:
                return
            if not new:
                time.sleep(interval)


def _slices_of(towers: Sequence[OwnVariables]) -> dict[str, list[Slice]]:
    """Each variable as often as there are towers."""
    return {name: [part for tower in towers for part in tower.slices[name]] for name in towers[0].slices}
