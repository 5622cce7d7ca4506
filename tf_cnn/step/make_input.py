"""Makes the input pipelines of a run."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pkgutil import resolve_name

from preprocessing import ImageOptions, Scale
from tf_cnn.inputs.catalog import Source
from tf_cnn.inputs.data_sets import Arrays, Shards
from tf_cnn.inputs.pipeline import InputConfig, InputPipeline, WorkersInput
from tf_cnn.inputs.pipeline_stages import TRANSFER
from tf_cnn.inputs.synthetic import SyntheticInput
from tf_cnn.inputs.validation import (
    Dataset,
    Share,
    ValidationInput,
    array_examples,
    read_images,
    record_examples,
)
from tf_cnn.plan.plan import Plan
from tf_cnn.training.schedules import epochs_to_steps

# Each restart adds this to the seeds of dropout and of the record order.
SEEDS_PER_RESTART = 1_000_003


def make_input(
    plan: Plan, devices: Sequence[str], restart: int = 0, last_stage: str = TRANSFER
) -> InputPipeline:
    """Adds the input of the towers on these devices to the current graph, up to a stage.

    restart: see build_step.
    """
    hosts, row, source = plan.devices.hosts, plan.data.input_row, plan.data.images
    if row.in_memory and source is not None:
        options = image_options(plan)
        examples = _example_reader(plan, source, options, Share())
        source = read_images(source, examples, options, plan.session.config)
    per_worker = len(devices) // len(hosts)
    first_worker, num_workers = (
        plan.cluster_role.index,
        plan.cluster_role.num_training_tasks * len(hosts),
    )
    pipelines = []
    for number, host in enumerate(hosts):
        worker_devices = devices[per_worker * number :][:per_worker]
        config = replace(
            _input_config(plan, source, worker_devices, first_worker + number, restart),
            host_device=host,
            last_stage=last_stage,
        )
        if plan.params.cluster.distinct_worker_data:
            config = replace(config, worker=first_worker + number, num_workers=num_workers)
        pipelines.append(resolve_name(row.pipeline)(config))
    return pipelines[0] if len(pipelines) == 1 else WorkersInput(pipelines, per_worker)


def make_validation_input(plan: Plan, process_index: int, num_processes: int) -> InputPipeline:
    """Adds the input of this process's share of an evaluation to the current graph."""
    evaluations, data, devices = plan.evaluations, plan.data, plan.devices.towers
    assert evaluations
    batch_size = plan.params.evaluation.eval_batch_size
    options = replace(image_options(plan), augmentation=data.validation_augmentation)
    if data.validation is None:
        seed = plan.params.run.tf_random_seed + process_index
        num_classes = data.data_set.num_classes
        return SyntheticInput(InputConfig(None, devices, batch_size, num_classes, options, seed))
    num_examples = evaluations.num_examples
    if evaluations.num_passes is not None:
        # Counting reads the lengths of all records, so only processes that evaluate do it.
        num_images = data.validation.num_images
        num_examples = math.ceil(epochs_to_steps(evaluations.num_passes, num_images, 1))
    share = Share(process_index, num_processes, num_examples)
    examples = _example_reader(plan, data.validation, options, share)
    return ValidationInput(devices, batch_size, examples, _image_scale(plan))


def image_options(plan: Plan, *, training: bool = False, seed: int = 0) -> ImageOptions:
    flags = plan.params.data
    height, width, channels = plan.data.image_shape
    return ImageOptions(
        height=height,
        width=width,
        channels=channels,
        training=training,
        distortions=training and flags.distortions,
        in_yiq=flags.distort_color_in_yiq,
        resize_method=flags.resize_method,
        scaled_decode=flags.scaled_decode,
        seed=seed,
        augmentation=plan.data.augmentation,
        scale=_image_scale(plan),
        shorter_side=plan.data.preprocessor.shorter_side,
    )


def _image_scale(plan: Plan) -> Scale:
    return Scale(plan.data.preprocessor.factor, plan.data.preprocessor.offsets)


def _input_config(
    plan: Plan, source: Source, devices: Sequence[str], worker: int, restart: int
) -> InputConfig:
    """Returns the configuration of a worker's pipeline, except for its share of the images."""
    seed = plan.params.run.tf_random_seed
    if plan.params.cluster.distinct_worker_data and not isinstance(source, Arrays):
        seed += worker * len(devices)
    if isinstance(source, Shards):
        # Reading cannot resume in the middle of an epoch. A continued training reads the records in
        # another order, or it would see the first records more often.
        seed += SEEDS_PER_RESTART * restart
    return InputConfig(
        source=source,
        devices=devices,
        batch_size=plan.params.run.batch_size,
        num_classes=plan.data.data_set.num_classes,
        options=image_options(plan, training=not plan.params.run.forward_only, seed=seed),
        seed=seed,
        normalize_on_device=plan.params.devices.device == 'gpu',
        tf_data=plan.params.inputs,
    )


def _example_reader(
    plan: Plan, source: Shards | Arrays, options: ImageOptions, share: Share
) -> Callable[[], Dataset]:
    if isinstance(source, Shards):
        num_classes = plan.data.data_set.num_classes
        return functools.partial(record_examples, source, num_classes, options, share)
    return functools.partial(array_examples, source, options, share)
