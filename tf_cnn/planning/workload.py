"""Finds the model and the data set of a run. Does not import TensorFlow."""

from dataclasses import replace

from models.registry import MODELS, load_model_file
from tf_cnn.inputs.data_folder import open_folder, recognise_data_set
from tf_cnn.planning.plan import Role, Workload
from tf_cnn.run.params import Context, Params


def find_workload(params: Params, *, reads: bool) -> Workload:
    """Finds the model and the data folder; reads: whether this process reads data."""
    if params.run.model_file:
        load_model_file(params.run.model_file)
    workload = _find_model_and_folder(params, reads=reads)
    return replace(workload, file_hashes=_hash_files(params, workload))


def _find_model_and_folder(params: Params, *, reads: bool) -> Workload:
    role, model = _role_of(params), MODELS.find_model(params.run.model, params.data.data_name)
    if params.data.data_dir is None or not reads:
        return Workload(
            role, model, None, params.run.exchange_bytes if params.run.exchange_only else None
        )
    data_name = params.data.data_name or recognise_data_set(params.data.data_dir)
    folder = open_folder(params.data.data_dir, data_name or model.data_set)
    name = folder.data_set.name
    source = (
        None
        if params.data.data_name
        else f'{name}, the data set in --data_dir={params.data.data_dir}'
    )
    return Workload(role, MODELS.find_model(params.run.model, name, source), folder)


def check_rules(params: Params, workload: Workload, *, is_alone: bool, num_ps: int = 0) -> Context:
    """Checks all rules between flags, and returns the properties of the run that they use.

    No rule refuses a run because of num_ps.
    """
    has_records = workload.folder is None or workload.folder.data_set.has_records
    facts = Context(
        is_single_process=is_alone,
        is_residual=workload.model.is_residual,
        has_records=has_records,
        num_ps=num_ps,
    )
    params.check(facts)
    return facts


def check_folder(params: Params, workload: Workload) -> None:
    """Raises UsageError if the data folder lacks a subset that the run reads. Opens no files."""
    folder = workload.folder
    if folder and not params.evaluation.eval:
        folder.check(folder.subset_for_steps(forward_only=params.run.forward_only))
    if folder and params.evaluates:
        folder.check('validation')


def _hash_files(params: Params, workload: Workload) -> dict[str, str]:
    """Returns Workload.file_hashes."""
    hashes, mode = {}, params.variables.mode
    if workload.model.network.file and workload.exchange_bytes is None:
        hashes['model_file'] = workload.model.network.file.sha256
    if mode.file and workload.role.has_manager:
        hashes['variable_mgr_file'] = mode.file.sha256
    return hashes


def _role_of(params: Params) -> Role:
    if params.evaluation.eval:
        return Role.EVALUATION
    if params.inputs.input_only:
        return Role.INPUT_ONLY
    if params.run.exchange_only:
        return Role.EXCHANGE_ONLY
    return Role.TRAINING if params.trains else Role.FORWARD_ONLY
