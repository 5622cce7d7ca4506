"""The interface of the input pipelines, and the op that they map over images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.inputs.catalog import Source
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.inputs.pipeline_stages import DECODE, PARSE, TRANSFER, Buffer

RunOp = Callable[[tf.Operation], object]


@dataclass(frozen=True)
class Batch:
    """The batch of one tower, on its device.

    Attributes:
      images: [N, H, W, C] float32, normalised by a Scale.
      labels: [N] int32.
    """

    images: tf.Tensor
    labels: tf.Tensor


@dataclass(frozen=True)
class InputConfig:
    """The configuration that the constructor of every pipeline takes.

    Attributes:
      source: None for synthetic images.
      devices: the devices of the towers.
      batch_size: images per step on each device.
      num_classes: labels are in [0, num_classes).
      seed: the seed of synthetic images; others have options.seed.
      normalize_on_device: copy uint8 to the device and convert it to float32 there, which moves a
        quarter of the bytes. If False, convert before the copy, which is less work if the device is
        the CPU.
      host_device: the device that makes the batches.
      worker: the number of this worker among the workers that share the images. Arrays have one
        order for all workers, and each worker takes its share of every step. Records have an order
        for each worker, which begins at worker / num_workers of the list of shards.
      num_workers: how many workers share the images.
      last_stage: the last stage to build, see inputs.pipeline_stages.
    """

    source: Source
    devices: Sequence[str]
    batch_size: int
    num_classes: int
    options: preprocessing.ImageOptions
    seed: int = 0
    normalize_on_device: bool = False
    host_device: str = HOST_DEVICE
    worker: int = 0
    num_workers: int = 1
    tf_data: PipelineConfig | None = None
    last_stage: str = TRANSFER

    @property
    def worker_batch_size(self) -> int:
        """Images per step on all devices of this worker."""
        return self.batch_size * len(self.devices)

    @property
    def global_batch_size(self) -> int:
        """Images per step on all devices of all workers that share the images."""
        return self.worker_batch_size * self.num_workers

    @property
    def first_position(self) -> int:
        """The position in an array's order of this worker's first image in the first step."""
        return self.worker_batch_size * self.worker

    @property
    def shard_offset(self) -> float:
        """The start in the list of shards, as a fraction in [0, 1)."""
        return self.worker / self.num_workers


class StepInput:
    """What a step computes from: batches, or with --exchange_only gradients.

    Attributes:
      initializers: ops to run once, together with the initializers of the model, before warm_up.
      per_step_ops: ops to run in each session.run of a step.
      warm_up_ops: the ops that warm_up runs. Their kernels, such as readers, keep state for the
        steps.
      feed_placeholders: the placeholders that each session.run of a step feeds with
        next_feed_values().
      buffers: the buffers in host memory; empty if there are none, or they are unknown.
    """

    def __init__(self) -> None:
        self.initializers: list[tf.Operation] = []
        self.per_step_ops: list[tf.Operation] = []
        self.warm_up_ops: list[tf.Operation] = []
        self.feed_placeholders: list[tf.Tensor] = []
        self.buffers: list[Buffer] = []

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        """Prepares the next step. A further call restarts the pipeline.

        Args:
          steps_before: the number of steps taken, including those before a restored checkpoint.
          run_op: is called with each of warm_up_ops; session.run by default.
        """

    def next_feed_values(self) -> list[Any]:
        """Draws the next batches, and returns the values of feed_placeholders."""
        return []


class InputPipeline(StepInput):
    """Gives each tower a batch that is on its device when the step starts."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[Batch] = []

    def tower_batch(self, tower: int) -> Batch:
        """Returns the batch of a tower; every call returns the same tensors."""
        return self._batches[tower]

    def _resident_variable(self, value: tf.Tensor) -> tf.Variable:
        # Without a collection it is neither trained nor saved, and other initialisers do not wait
        # for it.
        variable = tf.Variable(value, trainable=False, collections=[], use_resource=True)
        self.initializers.append(variable.initializer)
        return variable


class WorkersInput(InputPipeline):
    """The input of several workers' towers: one pipeline and towers_per_worker towers each."""

    def __init__(self, pipelines: Sequence[InputPipeline], towers_per_worker: int) -> None:
        super().__init__()
        self._pipelines = pipelines
        for pipeline in pipelines:
            self._batches += map(pipeline.tower_batch, range(towers_per_worker))
            self.initializers += pipeline.initializers
            self.per_step_ops += pipeline.per_step_ops
            self.warm_up_ops += pipeline.warm_up_ops
            self.feed_placeholders += pipeline.feed_placeholders
            self.buffers += pipeline.buffers

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        for pipeline in self._pipelines:
            pipeline.warm_up(session, steps_before, run_op)

    def next_feed_values(self) -> list[Any]:
        return [value for pipeline in self._pipelines for value in pipeline.next_feed_values()]


def convert_record(
    record: tf.Tensor,
    config: InputConfig,
    position: tf.Tensor,
    random_numbers: preprocessing.RandomNumbers | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the image [H, W, C] uint8 and the label of a record, a scalar string.

    If the pipeline ends at PARSE or DECODE, the image is only a number, which depends on everything
    that this stage makes. See preprocessing.preprocess for the last arguments.
    """
    options = config.options
    encoded, label, boxes = preprocessing.parse_example(
        record, config.num_classes, options.uses_boxes
    )
    if config.last_stage == PARSE:
        return tf.strings.length(encoded) + tf.size(boxes), label
    if config.last_stage == DECODE:
        return tf.size(preprocessing.decode(encoded, boxes, options, random_numbers)), label
    return preprocessing.preprocess(encoded, boxes, options, position, random_numbers), label


def for_each_image(
    function: Callable[..., Sequence[tf.Tensor]], arguments: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    """Calls a function for each image of a batch, and stacks the results.

    The arguments are [N, ...], with a static N. The function takes the tensors of one image, and
    returns tensors of static shape.

    One op calls the function for many images at once, each call on one thread. The ops of one image
    are so small that splitting them among the cores costs more than it gains. A session setting
    cannot limit their threads, because convolutions need all cores. (JPEGs of 100 KB on 2 cores:
    1,150 images per second with each op on all cores, 1,480 with --num_intra_threads=1, 2,060 this
    way; decoding alone reaches 2,050.)
    """
    specs = [tf.TensorSpec(argument.shape[1:], argument.dtype) for argument in arguments]
    concrete_function = tf.function(
        lambda *image_arguments: list(function(*image_arguments)), autograph=False
    ).get_concrete_function(*specs)
    return tf.raw_ops.MapDefun(
        arguments=list(arguments),
        captured_inputs=[],
        output_types=[output.dtype for output in concrete_function.outputs],
        output_shapes=[output.shape for output in concrete_function.outputs],
        f=concrete_function,
        max_intra_op_parallelism=1,
    )
