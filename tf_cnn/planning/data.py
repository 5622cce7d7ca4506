"""Plans the images of a run and their preprocessing. Does not import TensorFlow."""

from dataclasses import replace

from tf_cnn.inputs.catalog import RECORD_INPUT, Source, pipeline_row_for
from tf_cnn.inputs.data_folder import DataFolder
from tf_cnn.inputs.data_sets import DATA_SETS, Arrays
from tf_cnn.inputs.pipeline_stages import stages_up_to
from tf_cnn.inputs.preprocessors import DEFAULT, PREPROCESSORS, preprocessor_for
from tf_cnn.machine.run_environment import free_memory
from tf_cnn.planning.plan import Data, Workload
from tf_cnn.run.params import Params
from tf_cnn.system.errors import UsageError, format_flag

_CROPPED, _KEPT = 'resized_crop', 'padded_crop'


def find_data(params: Params, workload: Workload, warnings: list[str]) -> Data:
    model, folder = workload.model, workload.folder
    data_set = folder.data_set if folder else DATA_SETS[model.data_set]
    usual = params.data.augmentation or data_set.augmentation
    augmentation = usual
    if usual == _CROPPED and params.inputs.keeps_images_in_memory(params) and params.trains:
        augmentation = _KEPT
        warnings.append(
            f'{format_flag("input_pipeline", params.inputs.input_pipeline)}: it keeps each image in '
            'one size, so training only shifts and flips images, without random crops '
            f'(--augmentation={_KEPT})'
        )

    preprocessor = PREPROCESSORS[DEFAULT]
    if data_set.has_records:
        preprocessor = preprocessor_for(params.data.input_preprocessor, ml_perf=params.data.ml_perf)
    images = validation = None
    if folder and not params.evaluation.eval:
        images = _open_subset(
            params, folder, folder.subset_for_steps(forward_only=params.run.forward_only), warnings
        )
        if params.data.distortions and not params.run.forward_only and data_set.channels != 3:
            raise UsageError(
                '--distortions: changing colours needs 3 channels, and the images of '
                f'{data_set.name} have {data_set.channels}; use --nodistortions'
            )
    if folder and params.evaluates:
        validation = _open_subset(params, folder, 'validation', warnings)
    pipeline = params.inputs.row(params).name
    data = Data(
        data_set=data_set,
        folder=params.data.data_dir,
        images=images,
        validation=validation,
        image_size=(model.any_size and data_set.image_size) or model.image_size,
        augmentation=augmentation,
        validation_augmentation=usual,
        distortions=params.data.distortions and not preprocessor.is_plain,
        in_yiq=params.data.distort_color_in_yiq,
        resize_method='bilinear' if preprocessor.is_plain else params.data.resize_method,
        scaled_decode=params.data.scaled_decode,
        seed=params.run.tf_random_seed,
        distinct_workers=params.cluster.distinct_worker_data,
        deterministic=params.run.deterministic,
        preprocessor=preprocessor,
        pipeline=pipeline,
        tf_data=params.inputs,
    )
    is_in_memory = isinstance(images, Arrays) and images.images.shape[1:] == data.image_shape
    if images is not None and not is_in_memory and params.inputs.keeps_images_in_memory(params):
        _check_memory(params, data)
    return replace(data, input_stages=_stages_to_measure(params, images, pipeline, warnings))


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


def _stages_to_measure(
    params: Params, images: Source, pipeline: str, warnings: list[str]
) -> tuple[str, ...]:
    if params.inputs.input_only is None:
        return ()
    flag_text = format_flag('input_only', params.inputs.input_only)
    row = pipeline_row_for(images, pipeline)
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


def _check_memory(params: Params, data: Data) -> None:
    """Raises UsageError if the images that the run keeps in memory exceed the free memory."""
    assert data.images
    height, width, channels = data.image_shape
    needed, most = data.images.num_images * height * width * channels, free_memory()
    if most is not None and needed > most:
        raise UsageError(
            f'{format_flag("input_pipeline", params.inputs.input_pipeline)}: the '
            f'{data.images.num_images} images of --data_dir={data.folder} take {needed} bytes '
            f'({height} x {width} x {channels} each), and {most} are free here; use '
            f'--input_pipeline={RECORD_INPUT} for records, or remove it'
        )
