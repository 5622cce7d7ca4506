"""A run of the input pipeline alone: its throughput up to each of its stages."""

import time
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.worker import Worker
from tf_cnn.inputs.pipeline_stages import TRANSFER
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step, StepValues
from tf_cnn.run.banner import make_banner
from tf_cnn.run.invocation import Invocation
from tf_cnn.run.lifecycle import RunLifecycle
from tf_cnn.run.make_input import make_input
from tf_cnn.run.plan import Plan
from tf_cnn.run.result_builder import ResultBuilder
from tf_cnn.run.session import open_session
from tf_cnn.run.stage_times import StageTime, stage_rows
from tf_cnn.run.step_loop import run_steps
from tf_cnn.run.step_recorder import StepRecorder
from tf_cnn.system.signals import SIGNALS


class _Stage:
    """The input pipeline up to one stage, in its graph; `time` is the sum over its timed steps."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.name = name
        self.time = StageTime(name, 0, 0.0, 0.0)
        self._plan = plan
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

    def measure_steps(
        self,
        worker: Worker,
        num_timed: int,
        is_over: Callable[[], bool],
        result_builder: ResultBuilder | None = None,
    ) -> Iterator[Step[StepValues]]:
        """Takes warm-up and timed steps in a new session; closing it frees the buffers."""
        begin = result_builder.begin_phase if result_builder else lambda phase: None
        num_warmup = self._plan.params.run.num_warmup_batches
        with open_session(worker.target, self._graph, worker.config) as session:
            begin('initialise')
            session.run(self.pipeline.initializers)
            self.pipeline.warm_up(session)
            run_ops = session.make_callable(
                self._ops, feed_list=self.pipeline.feed_placeholders or None
            )
            processor_start = time.process_time()

            def take_steps(phase: Phase, indices: range) -> list[StepValues]:
                nonlocal processor_start
                if phase is Phase.TIMED and indices[0] == 1:
                    processor_start = time.process_time()
                SIGNALS.check()
                run_ops(*self.pipeline.next_feed_values())
                steps_after = indices[-1] + (num_warmup if phase is Phase.TIMED else 0)
                return [
                    StepValues(float('nan'), steps_before=steps_after - 1, steps_after=steps_after)
                ]

            begin('warm_up')
            begin_timed = result_builder.begin_timed_steps if result_builder else lambda: None
            timed_steps: list[Step[StepValues]] = []
            processor_end = processor_start
            for steps in run_steps(
                take_steps, num_warmup, num_timed, is_over=is_over, begin_timed=begin_timed
            ):
                processor_end = time.process_time()
                timed_steps += [step for step in steps if step.phase is Phase.TIMED]
                yield from steps
            if timed_steps:
                images, wall_seconds = (
                    len(timed_steps) * self._plan.images_per_global_step,
                    timed_steps[-1].end - timed_steps[0].start,
                )
                self.time += StageTime(
                    self.name, images, wall_seconds, processor_end - processor_start
                )


def measure_input(plan: Plan, console: Console, invocation: Invocation) -> Result:
    """Measures the input pipeline up to each stage. The result has the steps of the full pipeline.

    The shorter pipelines run half of their steps before the full pipeline, and half after it in
    reverse order. So a machine that becomes steadily slower or faster favours no pipeline. Only one
    pipeline is open at a time.
    """
    recorder = StepRecorder(plan, console, invocation)
    lifecycle = RunLifecycle(plan, console, recorder)
    result_builder, num_timed = recorder.result_builder, plan.params.run.num_timed
    target = plan.params.results.target_seconds
    with lifecycle.guard():
        worker = lifecycle.join()
        console.progress('Building the graphs')
        *earlier_stages, last_stage = (_Stage(plan, name) for name in plan.data.input_stages)
        result_builder.input_buffers = last_stage.pipeline.buffers
        console.result(make_banner(plan))

        def take_half(stage: _Stage, num_timed: int) -> None:
            if num_timed:
                console.progress(f'Running the input up to {stage.name}')
                for _ in stage.measure_steps(
                    worker,
                    num_timed,
                    _make_time_limit(target and target / 2),
                ):
                    pass

        # A separate phase keeps these steps out of the time to the first step.
        result_builder.begin_phase('earlier_stages')
        for stage in earlier_stages:
            take_half(stage, (num_timed + 1) // 2)
        console.progress(f'Running the input up to {last_stage.name}')
        for step in last_stage.measure_steps(
            worker, num_timed, lambda: recorder.has_reached_target, result_builder
        ):
            recorder.add_steps([step])
            recorder.print_due_steps([step])
        result_builder.end_timed_steps()
        for stage in reversed(earlier_stages):
            take_half(stage, num_timed // 2)
        result_builder.input_stages = stage_rows(
            [stage.time for stage in (*earlier_stages, last_stage)]
        )
    return recorder.result


def _make_time_limit(seconds: float | None) -> Callable[[], bool]:
    """Returns a function that returns True once `seconds` have passed since its first call.

    None: it never does.
    """
    start: float | None = None

    def is_over() -> bool:
        nonlocal start
        start = start or time.perf_counter()
        return seconds is not None and time.perf_counter() - start >= seconds

    return is_over
