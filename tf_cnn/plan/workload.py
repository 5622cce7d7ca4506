"""What a run trains or evaluates, and on which images; with the processes, all that flags cannot
know. Does not import TensorFlow.
"""

from dataclasses import dataclass, field, replace

from models.model_spec import ModelSpec
from models.registry import MODELS, load_model_file
from tf_cnn.cluster.topology import topology_of
from tf_cnn.inputs.catalog import (
    DEFAULT,
    PREPROCESSORS,
    RECORD_INPUT,
    InputRow,
    Preprocessor,
    Source,
    pipeline_row_for,
    preprocessor_for,
)
from tf_cnn.inputs.data_folder import DataFolder, open_folder, recognise_data_set
from tf_cnn.inputs.data_sets import DATA_SETS, SUBSETS, Arrays, DataSet, Shards
from tf_cnn.inputs.framing import RUN_SCAN_SECS
from tf_cnn.inputs.layout import DATASET_INFO_FILE
from tf_cnn.inputs.pipeline_stages import stages_up_to
from tf_cnn.machine.run_environment import free_memory
from tf_cnn.managers.modes import Topology
from tf_cnn.plan.cluster_role import ClusterRole
from tf_cnn.plan.devices import Devices
from tf_cnn.plan.params import Params
from tf_cnn.plan.process_settings import Threads
from tf_cnn.system.errors import UsageError, format_flag
from tf_cnn.training.schedules import LearningRate

_CROPPED, _KEPT = 'resized_crop', 'padded_crop'


def find_workload(params: Params, *, reads: bool) -> tuple[ModelSpec, DataFolder | None]:
    """Returns the model, and the folder of its images; None for synthetic images.

    reads: whether this process reads images.
    """
    if params.run.model_file:
        load_model_file(params.run.model_file)
    model = MODELS.find_model(params.run.model, params.data.data_name)
    path = params.data.data_dir
    if path is None or not reads:
        return model, None
    data_name = params.data.data_name or recognise_data_set(path)
    folder = open_folder(path, data_name or model.data_set)
    name = folder.data_set.name
    source = None if params.data.data_name else f'{name}, the data set in --data_dir={path}'
    return MODELS.find_model(params.run.model, name, source), folder


def check_folder(params: Params, folder: DataFolder | None) -> None:
    """Raises UsageError if the data folder lacks a subset that the run reads. Opens no files."""
    if folder and not params.evaluation.eval:
        folder.check(folder.subset_for_steps(forward_only=params.run.forward_only))
    if folder and params.evaluates:
        folder.check('validation')


def hash_files(params: Params, model: ModelSpec) -> dict[str, str]:
    """Returns the SHA-256 of the --model_file and --variable_mgr_file that a run uses, by flag."""
    hashes, mode = {}, params.variables.mode
    if model.network.file and not params.exchanges_one_tensor:
        hashes['model_file'] = model.network.file.sha256
    if mode.file and params.role.has_manager:
        hashes['variable_mgr_file'] = mode.file.sha256
    return hashes


@dataclass(frozen=True)
class Data:
    """The images that a run reads.

    Attributes:
      images: for steps; None: unused or synthetic.
      validation: for evaluations; None: unused or synthetic.
      image_size: height and width in pixels of the images given to the model.
      augmentation: the value of --augmentation that the run uses for steps.
      validation_augmentation: does not depend on the input pipeline.
      input_row: the input pipeline of the steps.
      input_stages: the stages that --input_only measures; empty without it.
      sha256: identifies the files that the run reads; None for synthetic images.
    """

    data_set: DataSet
    images: Source
    validation: Source
    image_size: int
    augmentation: str
    validation_augmentation: str
    preprocessor: Preprocessor
    input_row: InputRow
    input_stages: tuple[str, ...] = ()
    sha256: str | None = None

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The height, width and channels of the images given to the model."""
        return self.image_size, self.image_size, self.data_set.channels

    @property
    def shards(self) -> Shards | None:
        """The shards that steps read; None if they read none."""
        return self.images if isinstance(self.images, Shards) else None

    @property
    def validation_shards(self) -> Shards | None:
        return self.validation if isinstance(self.validation, Shards) else None


def open_data(
    params: Params, model: ModelSpec, folder: DataFolder | None, warnings: list[str]
) -> Data:
    data_set = folder.data_set if folder else DATA_SETS[model.data_set]
    in_memory = params.inputs.keeps_images_in_memory(params)
    usual = params.data.augmentation or data_set.augmentation
    augmentation = usual
    if usual == _CROPPED and in_memory and params.trains:
        augmentation = _KEPT
        warnings.append(
            f'{format_flag("input_pipeline", params.inputs.input_pipeline)}: it keeps each image '
            'in one size, so training only shifts and flips images, without random crops '
            f'(--augmentation={_KEPT})'
        )
    preprocessor = PREPROCESSORS[DEFAULT]
    if data_set.has_records:
        preprocessor = preprocessor_for(params.data.input_preprocessor, ml_perf=params.data.ml_perf)
    images = validation = None
    if folder and not params.evaluation.eval:
        subset = folder.subset_for_steps(forward_only=params.run.forward_only)
        images = _open_subset(params, folder, subset, warnings)
        if params.data.distortions and not params.run.forward_only and data_set.channels != 3:
            raise UsageError(
                '--distortions: changing colours needs 3 channels, and the images of '
                f'{data_set.name} have {data_set.channels}; use --nodistortions'
            )
    if folder and params.evaluates:
        validation = _open_subset(params, folder, 'validation', warnings)
    for source in (images, validation):
        if isinstance(source, Shards):
            data_set = _with_count(data_set, source, warnings)
    image_size = (model.any_size and data_set.image_size) or model.image_size
    image_shape = image_size, image_size, data_set.channels
    is_in_memory = isinstance(images, Arrays) and images.images.shape[1:] == image_shape
    if images is not None and not is_in_memory and in_memory:
        _check_memory(params, images.num_images, image_shape)
    row = pipeline_row_for(images, params.inputs.row(params).name)
    return Data(
        data_set=data_set,
        images=images,
        validation=validation,
        image_size=image_size,
        augmentation=augmentation,
        validation_augmentation=usual,
        preprocessor=preprocessor,
        input_row=row,
        input_stages=_stages_to_measure(params, row, warnings),
        sha256=source.sha256 if (source := images or validation) else None,
    )


def _open_subset(params: Params, folder: DataFolder, subset: str, warnings: list[str]) -> Source:
    """Opens the images of a subset, and adds warnings about them."""
    images = folder.open(subset)
    if isinstance(images, Arrays) and params.data.augmentation == _CROPPED:
        raise UsageError(
            f'--augmentation={_CROPPED}: it is for records, and {folder.data_set.name} is not '
            f'read from records; use --augmentation={_KEPT} or none'
        )
    if warning := folder.completeness_warning(images):
        warnings.append(warning)
    return images


def _with_count(data_set: DataSet, shards: Shards, warnings: list[str]) -> DataSet:
    """Returns the data set with the number of images in the shards.

    Adds a warning if they could not be counted in time. A fault in them ends the run later, when
    the other tasks of a cluster can learn about it.
    """
    if (num_images := shards.num_stated_images) is not None:
        if shards.subset == SUBSETS[0]:
            return replace(data_set, num_train_examples=num_images)
        return replace(data_set, num_validation_examples=num_images)
    if shards.scan and shards.scan.num_unfinished:
        warnings.append(
            f'--data_dir={shards.folder}: the {shards.subset} images could not be counted within '
            f'{RUN_SCAN_SECS:.0f} s, so epochs have '
            f'{data_set.num_examples(shards.subset):,} images, as in the published '
            f'{data_set.name}; a {DATASET_INFO_FILE} with their number is read at once'
        )
    return data_set


def _stages_to_measure(params: Params, row: InputRow, warnings: list[str]) -> tuple[str, ...]:
    if params.inputs.input_only is None:
        return ()
    flag_text = format_flag('input_only', params.inputs.input_only)
    stages = stages_up_to(params.inputs.input_only, row.stages)
    if not stages:
        raise UsageError(
            f'{flag_text}: the stages of the input pipeline {row.name} begin with {row.stages[0]}; '
            f'use --input_only={row.stages[0]}'
        )
    if stages[-1] != params.inputs.input_only:
        warnings.append(
            f'{flag_text}: the input pipeline {row.name} has no such stage; it runs up to '
            f'{stages[-1]}'
        )
    return stages


def _check_memory(params: Params, num_images: int, image_shape: tuple[int, int, int]) -> None:
    """Raises UsageError if the images that the run keeps in memory exceed the free memory."""
    height, width, channels = image_shape
    needed, most = num_images * height * width * channels, free_memory()
    if most is not None and needed > most:
        raise UsageError(
            f'{format_flag("input_pipeline", params.inputs.input_pipeline)}: the {num_images} '
            f'images of --data_dir={params.data.data_dir} take {needed} bytes ({height} x {width} '
            f'x {channels} each), and {most} are free here; use --input_pipeline={RECORD_INPUT} '
            'for records, or remove it'
        )


@dataclass(frozen=True)
class Context:
    """The processes, the model and the images of a run.

    unresolved: the flags before they are resolved; warnings: the lines that resolving adds. What is
    None is decided later. The methods need resolved flags.
    """

    unresolved: Params
    cluster_role: ClusterRole
    model: ModelSpec
    data: Data
    warnings: list[str] = field(default_factory=list)
    devices: Devices | None = None
    threads: Threads | None = None
    learning_rate: LearningRate | None = None

    @property
    def topology(self) -> Topology:
        return topology_of(self.cluster_role.cluster)

    def num_towers(self, params: Params) -> int:
        """The number of devices that this process drives."""
        return params.devices.num_gpus * self.cluster_role.num_hosts

    def images_of_task(self, params: Params) -> int:
        """The images per step on all devices that this process drives."""
        return params.run.batch_size * self.num_towers(params)

    def global_batch_size(self, params: Params) -> int:
        """The images per step on all devices of all workers."""
        return self.images_of_task(params) * self.cluster_role.num_training_tasks

    def images_per_global_step(self, params: Params) -> int:
        """The images of all workers in synchronous modes, else of one worker."""
        if self.cluster_role.is_synchronous:
            return self.global_batch_size(params)
        return self.images_of_task(params)

    def num_epoch_images(self, params: Params) -> int:
        """The images of an epoch: one pass over the images that this run reads; synthetic images
        have as many as the data set.
        """
        images = self.data.images
        subset = 'validation' if params.evaluation.eval else 'train'
        return self.data.data_set.num_examples(images.subset if images else subset)
