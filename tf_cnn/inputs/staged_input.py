"""The base class of input pipelines that stage batches ahead of the step."""

import itertools
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

import preprocessing
from tf_cnn.graph.staging_area import StagingArea
from tf_cnn.inputs.pipeline import Batch, InputPipeline, RunOp
from tf_cnn.inputs.pipeline_stages import TRANSFER, Buffer

# The images and labels of one device, or the tensors of an earlier last stage.
HostBatch = Sequence[tf.Tensor]

# A set contains one batch for each device.
_MAX_BATCH_SETS = 3


class StagedInput(InputPipeline):
    """A software pipeline of three stages, which work on different sets of batches at once.

        A  make  ->  host area  ->  B  copy to the device  ->  device areas  ->  C  the model

    Warm-up runs A0, then A1 and B0. Step k runs C(k), B(k+1), A(k+2) in one session.run, so no
    stage waits for another. Between two session calls every area holds exactly one set; during a
    call, at most two. Step k raises the errors of A(k+2). Host memory contains at most three sets:
    for steps k+1 and k+2, and for step k if a CPU computes.
    """

    def __init__(
        self,
        devices: Sequence[str],
        make_host_batches: Callable[[], Sequence[HostBatch]],
        host_device: str = '/cpu:0',
        scale: preprocessing.Scale | None = None,
        last_stage: str = TRANSFER,
    ) -> None:
        """Builds the ops of all stages.

        Args:
          make_host_batches: builds stage A on the host device; returns the images and labels of
            each device. Images are [N, H, W, C]: normalised float32, or uint8, which stage C
            normalises to `scale`. Labels are [N] int32.
          last_stage: the last stage to build. With a stage before TRANSFER, a step only runs the
            ops of make_host_batches and drops their results; towers have no batches.
        """
        super().__init__()
        with tf.name_scope('stage_a'), tf.device(host_device):
            host_batches = make_host_batches()
            tensors = [tensor for host_batch in host_batches for tensor in host_batch]
            if last_stage != TRANSFER:
                self.per_step_ops = [tensor.op for tensor in tensors]
                self._clear_ops: list[tf.Operation] = []
                return
            set_bytes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
            self.buffers.append(Buffer('sets of batches', _MAX_BATCH_SETS, set_bytes))
            self.host_area = StagingArea(host_device, tensors)
            stage_a = self.host_area.put(tensors)
        self.device_areas = []
        stage_b = []
        with tf.name_scope('stage_b'), tf.device(host_device):
            host_tensors = iter(self.host_area.get())
            for device, host_batch in zip(devices, host_batches, strict=True):
                batch = list(itertools.islice(host_tensors, len(host_batch)))
                area = StagingArea(device, batch)
                self.device_areas.append(area)
                stage_b.append(area.put(batch))
        self.per_step_ops = [stage_a, *stage_b]
        for area in self.device_areas:
            with tf.name_scope('stage_c'), tf.device(area.device):
                images, labels = area.get()
                # Every session call must empty the area, even if it does not use this tower.
                self.per_step_ops.append(labels.op)
                if images.dtype == tf.uint8:
                    images = preprocessing.normalize(images, scale)
                self._batches.append(Batch(images, labels))
        self._clear_ops = [area.clear() for area in (self.host_area, *self.device_areas)]
        with tf.name_scope('stages_a_and_b'), tf.device(host_device):
            self.warm_up_ops = [stage_a, tf.group(stage_a, *stage_b)]

    def warm_up(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        session.run(self._clear_ops)
        for op in self.warm_up_ops:
            (run_op or session.run)(op)
