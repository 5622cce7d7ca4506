"""Finds the model and the data folder of a run. Does not import TensorFlow."""

from models.model_spec import ModelSpec
from models.registry import MODELS, load_model_file
from tf_cnn.inputs.data_folder import DataFolder, open_folder, recognise_data_set
from tf_cnn.plan.params import Params


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
