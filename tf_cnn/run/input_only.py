"""A run of the input pipeline alone: its throughput up to each of its stages."""

import time
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.pipeline_stages import TRANSFER
from tf_cnn.plan.plan import Plan
from tf_cnn.results.console import Console
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step, StepValues
from tf_cnn.run.lifecycle import RunLifecycle
from tf_cnn.run.run_report import RunReport
from tf_cnn.run.stage_times import StageTime, stage_rows
from tf_cnn.run.step_loop import Hook, TargetSeconds, run_steps
from tf_cnn.step.make_input import make_input


class _Stage(Hook[StepValues]):
    """The input pipeline up to one stage, in its graph; `time` is the sum over its timed steps."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.name = name
        self.time = StageTime(name, 0, 0.0, 0.0)
        self._plan = plan
        self._timed_steps: list[Step[StepValues]] = []
        self._processor_start = self._processor_end = 0.0
        with tf.Graph().as_default() as self._graph:
            tf.set_random_seed(plan.params.run.tf_random_seed)
            self.pipeline = make_input(plan, plan.devices.towers, last_stage=name)
            self._ops = list(self.pipeline.per_step_ops)
            if name == TRANSFER:
                batches = [
                    self.pipeline.tower_batch(tower) for tower in range(len(plan.devices.towers))
                ]
                self._ops += [
                    tensor.op for batch in batches for tensor in (batch.images, batch.labels)
                ]

    def measure(
        self, lifecycle: RunLifecycle, num_timed: int, hooks: Sequence[Hook[StepValues]]
    ) -> None:
        """Takes warm-up and timed steps in a new session, and adds the timed ones to `time`.

        Closing the session frees the buffers.
        """
        num_warmup = self._plan.params.run.num_warmup_batches
        with lifecycle.open_session(self._graph) as session:
            session.run(self.pipeline.initializers)
            self.pipeline.warm_up(session)
            run_ops = session.make_callable(
                self._ops, feed_list=self.pipeline.feed_placeholders or None
            )

            def take_steps(phase: Phase, indices: range) -> list[StepValues]:
                if phase is Phase.TIMED and indices[0] == 1:
                    self._processor_start = time.process_time()
                run_ops(*self.pipeline.next_feed_values())
                steps_after = indices[-1] + (num_warmup if phase is Phase.TIMED else 0)
                return [
                    StepValues(float('nan'), steps_before=steps_after - 1, steps_after=steps_after)
                ]

            all_hooks = [self, *hooks, lifecycle]
            for _ in run_steps(
                take_steps, all_hooks, num_warmup, num_timed, in_step=lifecycle.in_step
            ):
                pass
        if self._timed_steps:
            images = len(self._timed_steps) * self._plan.images_per_global_step
            wall_seconds = self._timed_steps[-1].end - self._timed_steps[0].start
            processor_seconds = self._processor_end - self._processor_start
            self.time += StageTime(self.name, images, wall_seconds, processor_seconds)
            self._timed_steps = []

    def after(self, steps: Sequence[Step[StepValues]]) -> bool:
        if steps[0].phase is Phase.TIMED:
            self._processor_end = time.process_time()
            self._timed_steps += steps
        return False


def measure_input(plan: Plan, console: Console, report: RunReport) -> None:
    """Measures the input pipeline up to each stage. The result has the steps of the full pipeline.

    The shorter pipelines run half of their steps before the full pipeline, and half after it in
    reverse order. So a machine that becomes steadily slower or faster favours no pipeline. Only one
    pipeline is open at a time.
    """
    lifecycle = RunLifecycle(plan, console, report)
    meters, num_timed = report.meters, plan.params.run.num_timed
    target = plan.params.results.target_seconds

    def time_limit(part: float) -> list[Hook[StepValues]]:
        return [TargetSeconds(part * target)] if target else []

    def measure_half(stage: _Stage, num_timed: int) -> None:
        if num_timed:
            console.progress(f'Running the input up to {stage.name}')
            stage.measure(lifecycle, num_timed, time_limit(0.5))

    with lifecycle.guard():
        lifecycle.join()
        console.progress('Building the graphs')
        *earlier_stages, last_stage = (_Stage(plan, name) for name in plan.data.input_stages)
        meters.input_buffers = last_stage.pipeline.buffers
        report.print_banner()
        # A separate phase keeps these steps out of the time to the first step.
        meters.begin_phase('earlier_stages')
        for stage in earlier_stages:
            measure_half(stage, (num_timed + 1) // 2)
        console.progress(f'Running the input up to {last_stage.name}')
        meters.begin_phase('initialise')
        hooks = [meters, report.recorder, report.printer, *time_limit(1.0)]
        last_stage.measure(lifecycle, num_timed, hooks)
        meters.end()
        for stage in reversed(earlier_stages):
            measure_half(stage, num_timed // 2)
        meters.input_stages = stage_rows([stage.time for stage in (*earlier_stages, last_stage)])
