"""The plan of a run: its resolved flags, and what they lead to on this machine. Does not import
TensorFlow before it is needed.

Checks that need no TensorFlow run first, so most errors appear together and within a second.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from models.model_spec import ModelSpec
from tf_cnn.cluster.environments import is_evaluator
from tf_cnn.machine.run_environment import git_commit
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.managers.modes import Mode
from tf_cnn.managers.user_modes import read_modes
from tf_cnn.plan.cluster_role import (
    ClusterRole,
    add_file_hashes,
    find_cluster_role,
    warn_of_open_ports,
)
from tf_cnn.plan.devices import (
    Devices,
    choose_devices,
    replace_no_gpus,
    warn_of_devices,
)
from tf_cnn.plan.discovery import evaluator_params
from tf_cnn.plan.evaluations import Evaluations, find_evaluations
from tf_cnn.plan.learning_rate import make_learning_rate
from tf_cnn.plan.outputs import (
    check_outputs,
    check_paths,
    find_checkpoints,
    remove_outputs_of_other_tasks,
)
from tf_cnn.plan.params import (
    SPECS,
    WITH_DEVICES,
    WITH_THREADS,
    WITHOUT_TENSORFLOW,
    Params,
    Role,
    RuleContext,
)
from tf_cnn.plan.process_settings import choose_start, find_visible_gpus
from tf_cnn.plan.workload import Context, Data, check_folder, find_workload, hash_files, open_data
from tf_cnn.results.sections import MachineSection
from tf_cnn.system.errors import ErrorCollector
from tf_cnn.training.checkpoint_files import may_hold_checkpoint
from tf_cnn.training.schedules import LearningRate

if TYPE_CHECKING:
    from tf_cnn.plan.session_config import SessionConfig
    from tf_cnn.training.precision import Precision

# The maximum length of a list of class names in a message.
_LONGEST_NAMES = 200


@dataclass(frozen=True)
class Plan:
    """A run of one process.

    Attributes:
      params: the resolved flags; unresolved: the flags before they were resolved.
      mode: the row of --variable_update when the plan was made; a later run of this process may
        have another file with a mode of this name.
      file_hashes: the SHA-256 of the --model_file and --variable_mgr_file that the run uses, by
        flag.
      evaluations: None if the run evaluates nothing.
      resume_from: the prefix of the checkpoint that training continues from, or that has the
        weights of a forward-only run.
      warm_start: the prefix of another checkpoint that training starts from.
      machine, environment, git_commit: this machine, the environment variables of libraries, and
        the version of the program, for the result.
    """

    params: Params
    unresolved: Params
    warnings: tuple[str, ...]
    cluster_role: ClusterRole
    model: ModelSpec
    mode: Mode
    file_hashes: Mapping[str, str]
    data: Data
    devices: Devices
    learning_rate: LearningRate
    session: 'SessionConfig'
    evaluations: Evaluations | None
    resume_from: str | None
    warm_start: str | None
    machine: MachineSection
    environment: Mapping[str, str]
    git_commit: str | None

    @property
    def role(self) -> Role:
        return self.params.role

    @property
    def model_name(self) -> str:
        """The name of the model, or the size of the tensor in its place."""
        if self.params.exchanges_one_tensor:
            return f'{self.params.run.exchange_bytes} bytes'
        return self.model.name

    @property
    def first_tower(self) -> int:
        """The index of this process's first tower among the towers of all processes."""
        return self.cluster_role.index * len(self.devices.towers)

    @property
    def is_synchronous(self) -> bool:
        """Whether all towers take one step of one model together."""
        variables = self.params.variables
        return (
            variables.cross_replica_sync
            and self.cluster_role.is_synchronous
            and self.mode.shares_model
        )

    @functools.cached_property
    def precision(self) -> 'Precision':
        from tf_cnn.training.precision import make_precision

        has_loss = self.params.trains and not self.params.run.exchange_only
        return make_precision(self.params.numerics, has_loss=has_loss)

    @property
    def context(self) -> Context:
        return Context(self.unresolved, self.cluster_role, self.model, self.data)

    @property
    def global_batch_size(self) -> int:
        """The images per step on all devices of all workers."""
        return self.context.global_batch_size(self.params)

    @property
    def images_per_global_step(self) -> int:
        """The images of all workers in synchronous modes, else of one worker."""
        return self.context.images_per_global_step(self.params)

    @property
    def num_epochs(self) -> float:
        """The timed steps of all workers, in epochs."""
        return self.steps_to_epochs(self.params.run.num_timed)

    def steps_to_epochs(self, num_steps: int) -> float:
        """Converts steps of each worker to epochs that all workers see together."""
        num_images = self.context.num_epoch_images(self.params)
        return num_steps * self.global_batch_size / (num_images or math.inf)

    @property
    def checkpoint_folder(self) -> str | None:
        """The folder where this process saves checkpoints; None if it saves none."""
        return _checkpoint_folder(self.params, self.cluster_role)

    @property
    def shared_data(self) -> dict[str, str | int | None]:
        """Properties of the images that all workers must share, by description.

        With other images, workers would train one model on several data sets. With other classes,
        one label would be a cat to one worker and a dog to another.
        """
        if self.params.data.data_dir is None:
            return {'as data set': None}
        data_set = self.data.data_set
        shared: dict[str, str | int | None] = {
            'as data set': data_set.name,
            'label classes': data_set.num_classes,
        }
        if data_set.class_names:
            names = ', '.join(data_set.class_names)
            if len(names) > _LONGEST_NAMES:
                names = f'{names[:_LONGEST_NAMES]} ... (SHA-256 {_digest(names)})'
            shared['as class names'] = names
        validates = self.params.evaluation.eval
        scans = [each.scan for each in (self.data.shards, self.data.validation_shards) if each]
        # A worker with a damaged shard names it after joining, instead of a difference.
        if not any(scan and scan.fault for scan in scans):
            if validates or (self.data.validation and self.cluster_role.is_synchronous):
                shared['validation images'] = data_set.num_validation_examples
            if not validates:
                shared['training images'] = data_set.num_train_examples
        if self.data.shards:
            shared['as SHA-256 of names and sizes of its shards'] = self.data.sha256
        return shared


@dataclass(frozen=True)
class ServerPlan:
    """A server: a parameter server, or a worker that a controller drives."""

    params: Params
    cluster_role: ClusterRole
    session: 'SessionConfig'
    warnings: tuple[str, ...]


# Long, because it shows on one screen how a plan is made. An error ends its block; what depends on
# the results of a block is nested in it.
def make_plan(params: Params, environment: ProcessEnvironment) -> Plan | ServerPlan:
    """Returns the plan of this process: of a run, or of a server.

    Raises:
      UsageError: settings conflict with each other, the cluster, the data, the files or this
        machine.
      RunError: a checkpoint or the data cannot be read.
    """
    problems, warnings = ErrorCollector(), list[str]()
    collecting = problems.collecting
    if params.variables.variable_mgr_file:
        # The file may have changed, or another run may have read a file with the same modes.
        read_modes(params.variables.variable_mgr_file)
        SPECS['variable_update'].read(params.variables.variable_update)
    params = replace_no_gpus(evaluator_params(params, environment.variables))
    cluster_role: ClusterRole | None = None
    model: ModelSpec | None = None
    devices: Devices | None = None
    with collecting():
        cluster_role = find_cluster_role(params, environment, warnings)
    computes = not (cluster_role and cluster_role.is_parameter_server)
    with collecting():
        model, folder = find_workload(params, reads=computes)
    if cluster_role:
        if model:
            file_hashes = hash_files(params, model)
            cluster_role = add_file_hashes(cluster_role, file_hashes)
            with collecting():
                train_dir = params.checkpoints.train_dir
                rules = RuleContext(
                    is_single_process=cluster_role.is_single_process,
                    is_residual=model.is_residual,
                    has_records=folder is None or folder.data_set.has_records,
                    num_ps=cluster_role.shape.num_ps,
                    has_checkpoint=train_dir is not None and may_hold_checkpoint(train_dir),
                )
                params.check(rules)
                # An evaluator gets the flags of the training tasks, which do not ignore them.
                if not is_evaluator(environment.variables):
                    warnings += params.ignored_flag_warnings(rules)
        params = remove_outputs_of_other_tasks(params, cluster_role)
        with collecting():
            place, has_towers = cluster_role.place_on_host, cluster_role.has_local_towers
            gpus = find_visible_gpus(params, environment, place, computes=has_towers)
            with collecting():
                is_on_cpu = params.devices.device == 'cpu' or environment.has_no_gpus
                if is_on_cpu and not cluster_role.is_server:
                    choose_devices(params, environment, cluster_role, gpus, ())
        with collecting():
            if not cluster_role.is_server:
                used = params.without_ignored(rules) if model else params
                check_outputs(used, is_chief=cluster_role.is_chief)
        with collecting():
            if model and cluster_role.is_server:
                check_folder(params, folder)
            elif model:
                data = open_data(params, model, folder, warnings)
                context = Context(params, cluster_role, model, data, warnings)
                resolved = params.without_ignored(rules).resolve(context, WITHOUT_TENSORFLOW)
                with collecting():
                    check_paths(params, resolved.results.result_file)
                with collecting():
                    resolved.instruments.check_profile_steps(resolved.run.num_timed)
                evaluations = find_evaluations(resolved, context)
    problems.raise_all()
    assert cluster_role
    assert model
    start = choose_start(params, environment, cluster_role, gpus, warnings)
    # ---- from here on TensorFlow is needed ----
    visible_gpus = environment.process.start_tensorflow(start)
    from tf_cnn.plan.session_config import configure_session

    if cluster_role.is_server:
        if computes:
            used = params.without_ignored(rules)
            devices = choose_devices(used, environment, cluster_role, gpus, visible_gpus)
        session = configure_session(params, environment, cluster_role, devices, start, warnings)
        return ServerPlan(params, cluster_role, session, tuple(warnings))
    devices = choose_devices(resolved, environment, cluster_role, gpus, visible_gpus)
    context = dataclasses.replace(context, devices=devices)
    resolved = resolved.resolve(context, WITH_DEVICES)
    with collecting():
        session = configure_session(resolved, environment, cluster_role, devices, start, warnings)
    problems.raise_all()
    warnings += warn_of_devices(params, devices.kind, environment, rules)
    warn_of_open_ports(cluster_role, warnings)
    resume_from, warm_start = find_checkpoints(
        resolved, _checkpoint_folder(resolved, cluster_role), cluster_role, warnings
    )
    # From the flags as given: a resolved --init_learning_rate would mean a constant rate.
    learning_rate = make_learning_rate(resolved, context)
    context = dataclasses.replace(context, threads=session.threads, learning_rate=learning_rate)
    resolved = resolved.resolve(context, WITH_THREADS)
    return Plan(
        params=resolved,
        unresolved=params,
        warnings=tuple(warnings),
        cluster_role=cluster_role,
        model=model,
        mode=resolved.variables.mode,
        file_hashes=file_hashes,
        data=data,
        devices=devices,
        learning_rate=learning_rate,
        session=session,
        evaluations=evaluations,
        resume_from=resume_from,
        warm_start=warm_start,
        machine=session.describe_machine(),
        environment=session.library_variables(environment),
        git_commit=git_commit(),
    )


def check_launch(params: Params, *, is_single_process: bool = False, is_local: bool = True) -> None:
    """Checks the flags of a cluster or of one process before it is started, without TensorFlow.

    make_plan finds errors that depend on the role of a process or on its devices.

    is_local: whether the processes will run on this machine, with its folders and files.
    """
    problems = ErrorCollector()
    with problems.collecting():
        model, folder = find_workload(params, reads=is_local)
        with problems.collecting():
            params.check(
                RuleContext(
                    is_single_process=is_single_process,
                    is_residual=model.is_residual,
                    has_records=folder is None or folder.data_set.has_records,
                )
            )
        if is_local:
            check_folder(params, folder)
    with problems.collecting():
        if is_local:
            check_outputs(params, is_chief=True)
    problems.raise_all()


def _checkpoint_folder(params: Params, cluster_role: ClusterRole) -> str | None:
    saves = params.trains and params.inputs.input_only is None and cluster_role.is_chief
    return params.checkpoints.train_dir if saves else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors='surrogateescape')).hexdigest()[:16]
