"""What planners may ask about the world: environment variables, folders, the host and its devices.

Planners are functions of flags, of an Environment, and of earlier facts. Nothing else in this room reads os.environ, a
folder or a device, so that a test hands in an Environment of its own. Does not import TensorFlow until it is asked for
TensorFlow's devices.
"""

import contextlib
import fnmatch
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.topology import Cluster, public_hosts
from errors import Refusals, UsageError, spelled
from inputs.data_folder import DataFolder, open_folder, recognise
from machine import surroundings
from machine.cgroups import cpu_limit
from machine.data_formats import Capability
from machine.gpus import has_nvidia_gpu
from machine.kernel_files import ROOT
from machine.missing_gpu import explain_missing_gpu
from machine.numa import gpu_nodes, nodes_of
from machine.tensorflow_build import has_openmp
from machine.visible_gpus import PlaceOnHost, choose_visible
from models.registry import load_model_file
from params import Params
from params.result_flags import FIELD, STDOUT
from params.spec import Output
from params.table import SPECS, outputs_that_are
from params.tensorflow_flags import chosen_gpus
from planning.this_process import THIS_PROCESS, ProcessSettings, ThisProcess, VisibleGpus

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

# What the drivers of AMD, and Windows for its Linux, make where there is a GPU.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')
# The output flags by what the checks below treat alike.
_WITH_CHECKPOINTS = ('train_dir', 'backbone_model_path')
_WILDCARDS = '*?[\\'
_FOLDERS = (Output.FOLDER, Output.CHIEF_FOLDER, Output.NEW_FOLDER)


class Environment:
    """The process in which a run is planned, its host, and the files that the flags name.

    Args:
      variables: the environment variables, which may describe a cluster; by default those of the process, as the user
        set them.
      process: what earlier runs have set for the whole process.
      root: the folder that holds dev/, proc/ and sys/.
    """

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        process: ThisProcess = THIS_PROCESS,
        root: Path = ROOT,
    ) -> None:
        self.variables = process.environment if variables is None else variables
        self.process = process
        self._root = root

    # ---- files ----------------------------------------------------------------------------------------------------

    def load_model_file(self, path: str) -> None:
        """Runs the Python file of --model_file, which registers models."""
        load_model_file(path)

    def recognise_data(self, folder: str) -> str | None:
        """The name of the data set that a folder holds; None if it is not known."""
        return recognise(folder)

    def open_data(self, folder: str, data_set: str) -> DataFolder:
        """The data folder; data_set is the name of what it holds."""
        return open_folder(folder, data_set)

    def check_outputs(self, params: Params, *, is_chief: bool) -> None:
        """Raises UsageError if an output file cannot be written; makes missing folders."""
        check_outputs(params, is_chief=is_chief)

    def check_file(self, flag: str, path: str) -> None:
        """Raises UsageError if the file that a flag names cannot be written; makes its folder."""
        check_file(flag, path)

    def check_clashes(self, paths: Mapping[str, str]) -> None:
        """Raises UsageError if an output, by the name of its flag, is at the path of another flag too."""
        check_clashes(paths)

    def is_folder(self, path: str) -> bool:
        """Whether a folder is there."""
        return os.path.isdir(path)

    def has_checkpoints(self, folder: str) -> bool:
        """Whether there are checkpoints in a folder; which of them is read is told by latest_checkpoint."""
        return any(Path(folder).glob('*.index'))

    def latest_checkpoint(self, folder: str) -> str | None:
        """The prefix of the newest checkpoint in a folder; None if there is none."""
        from training.checkpoint_files import latest_checkpoint

        return latest_checkpoint(folder)

    def find_checkpoint(self, path: str, flag: str) -> str:
        """The prefix of the checkpoint that a flag names: a folder's newest one, or a prefix."""
        from training.checkpoint_files import find_checkpoint

        return find_checkpoint(path, flag)

    # ---- the host -------------------------------------------------------------------------------------------------

    def cores(self) -> tuple[int, ...]:
        """The logical cores that this process may use."""
        if hasattr(os, 'sched_getaffinity'):
            return tuple(sorted(os.sched_getaffinity(0)))
        return tuple(range(os.cpu_count() or 1))

    def cpu_quota(self) -> float | None:
        """How many cores the control group may use at the same time; None if it has no quota."""
        return cpu_limit(self._root)

    def numa_nodes(self) -> dict[int, tuple[int, ...]]:
        """The cores of each NUMA node that has some which this process may use."""
        return nodes_of(self._root, self.cores())

    def gpu_nodes(self, visible: str | None) -> list[int | None]:
        """The NUMA node of each GPU that a CUDA_VISIBLE_DEVICES lists, without one of all; None is an unknown node."""
        return gpu_nodes(self._root, {} if visible is None else {'CUDA_VISIBLE_DEVICES': visible})

    def free_memory(self) -> int:
        """The bytes that this process can still take."""
        return surroundings.free_memory()

    def machine_facts(self, **facts: Any) -> dict[str, Any]:
        """The object "machine" of a result; the arguments are those of machine.surroundings.machine_facts."""
        return surroundings.machine_facts(**facts)

    def git_commit(self) -> str | None:
        """The commit of this program; None if that is unknown."""
        return surroundings.git_commit()

    def has_openmp(self) -> bool:
        """Whether the installed TensorFlow brings an OpenMP library of its own."""
        return has_openmp()

    def public_hosts(self, cluster: Cluster) -> tuple[str, ...]:
        """The hosts of a cluster that have a public address."""
        return public_hosts(cluster)

    # ---- devices --------------------------------------------------------------------------------------------------

    def visible_gpus(self, params: Params, place: PlaceOnHost, *, computes: bool = True) -> VisibleGpus | None:
        """The GPUs that this process is to see; None if its host has none.

        Args:
          place: the number of the process among those of its host, and how many these are.
          computes: whether its towers are in it.

        Raises:
          UsageError: the host has fewer GPUs than are needed, or none with such a number.
        """
        needed = params.num_gpus if computes and params.device != 'cpu' else 0
        indices = chosen_gpus(params.gpu_indices) if needed else ()
        value = choose_visible(needed, place, self.variables, indices)
        return None if value is None else VisibleGpus(value, is_share=bool(needed) and place[1] > 1)

    def load_horovod(self, gpus: VisibleGpus | None) -> Any:
        """The module horovod.tensorflow, started by an MPI that sees these GPUs."""
        from cluster.horovod_worker import load_horovod

        # An MPI that knows CUDA looks for GPUs when Horovod starts it.
        self.process.show(gpus)
        return load_horovod()

    def has_no_gpus(self, device: str | None) -> bool:
        """Whether it is known without TensorFlow, which takes seconds to import, that a run will find no GPU.

        A process that has imported it already loses nothing by asking it.

        Args:
          device: the value of --device.
        """
        return device == 'cpu' or not ('tensorflow' in sys.modules or may_have_gpu(self._root))

    def start_tensorflow(self, settings: ProcessSettings) -> 'list[tf.config.PhysicalDevice]':
        """Imports TensorFlow with these settings; returns the GPUs that it sees."""
        return self.process.start_tensorflow(settings)

    def capabilities(self, gpus: Sequence[Any]) -> list[Capability | None]:
        """The compute capability of each of TensorFlow's GPUs; None if it does not tell. Opens no GPU."""
        import tensorflow.compat.v1 as tf

        found: list[Capability | None] = []
        for device in gpus:
            try:
                details = tf.config.experimental.get_device_details(device)
            except ValueError:
                details = {}
            found.append(details.get('compute_capability'))
        return found

    def has_nvidia_gpu(self) -> bool:
        """Whether a GPU of NVIDIA is in this machine and not hidden."""
        return has_nvidia_gpu(self.variables, self._root)

    def explain_missing_gpu(self) -> str | None:
        """Why TensorFlow sees no GPU here, and what to do; None if there is none of NVIDIA."""
        return explain_missing_gpu(self.variables, self._root)


def may_have_gpu(root: Path = ROOT) -> bool:
    """Whether TensorFlow may see a GPU on this machine.

    Args:
      root: the folder that holds proc/ and dev/.
    """
    is_known = sys.platform == 'linux'
    return not is_known or has_nvidia_gpu(root=root) or any((root / name).exists() for name in _OTHER_GPUS)


# ---- output files ---------------------------------------------------------------------------------------------------


def check_outputs(params: Params, *, is_chief: bool = True) -> None:
    """Checks that the files of the run can be written. Creates missing folders and leaves existing files unchanged.

    Args:
      is_chief: whether this process writes the files that a cluster writes once.

    Raises:
      UsageError: a file cannot be written; the message names the flag, the path and the reason.
    """
    refusals = Refusals()
    for name in (name for name, spec in SPECS.items() if spec.opened_by_tensorflow):
        with refusals.collecting():
            _check_name(name, getattr(params, name))
    # Nothing is created under such a name.
    refusals.raise_all()
    for name in outputs_that_are(Output.FILE, *([Output.CHIEF_FILE] if is_chief else [])):
        # What is in braces is not known yet; check_file is called again when it is.
        if (path := getattr(params, name)) and not FIELD.search(path):
            with refusals.collecting():
                check_file(name, path)
    for name in outputs_that_are(Output.PREFIX):
        if prefix := getattr(params, name):
            with refusals.collecting(), _refusing(name, prefix):
                _try_file(Path(f'{prefix}00.pbtxt'))
    if params.eval and params.train_dir and os.path.isfile(params.train_dir):
        refusals.add(
            f'{spelled("train_dir", params.train_dir)}: it is a file; give the folder that the checkpoints are in'
        )
    for name in outputs_that_are(*(_FOLDERS if is_chief else (Output.FOLDER,))):
        if (folder := getattr(params, name)) and not (name == 'train_dir' and params.eval):
            with refusals.collecting(), _refusing(name, folder):
                if SPECS[name].output is Output.NEW_FOLDER:
                    _check_new(name, folder)
                    # The folder is renamed into place when complete; until then its parent is written to.
                    folder = os.path.dirname(os.path.abspath(folder))
                _make_folder(Path(folder))
    refusals.raise_all()


def _check_name(name: str, path: str | None) -> None:
    """Refuses a path that TensorFlow cannot open, which it would tell only after it has trained and saved there."""
    try:
        (path or '').encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        reason = (
            'its name is not UTF-8, and TensorFlow opens no other; write another path'
            if encoding == 'utf-8'
            else f'file names are {encoding} in this locale; set PYTHONUTF8=1 if this one is UTF-8'
        )
        raise UsageError(f'{spelled(name, path)}: {reason}') from None
    if name in _WITH_CHECKPOINTS and (found := sorted(set(path or '') & set(_WILDCARDS))):
        raise UsageError(
            f'{spelled(name, path)}: its name contains {" and ".join(found)}, which TensorFlow takes for a pattern '
            'when it reads checkpoints; write another path'
        )


def check_file(name: str, path: str) -> None:
    """Checks that the file which a flag names can be written. Creates its folder if that is missing.

    Raises:
      UsageError: it cannot, or it is --result_file, and something else than a result is there.
    """
    if path == STDOUT:
        return
    with _refusing(name, path):
        _try_file(Path(path))
    if name == 'result_file' and os.path.isfile(path) and os.path.getsize(path):
        from results.document import is_document

        if not is_document(Path(path)):
            raise UsageError(f'{spelled(name, path)}: the file there is not a result; write another path, or remove it')


def check_clashes(paths: Mapping[str, str]) -> None:
    """Checks that no output replaces the file of another flag, whatever links lead there.

    Args:
      paths: the path of each flag that has one, by name.

    Raises:
      UsageError: two flags name one file, or one names a file that a run has in the folder of the other.
    """
    real = {name: os.path.realpath(path) for name, path in paths.items() if path != STDOUT}
    for output in outputs_that_are(Output.FILE, Output.CHIEF_FILE, Output.NEW_FOLDER):
        if output not in real or (os.path.exists(real[output]) and stat.S_ISCHR(os.stat(real[output]).st_mode)):
            continue
        for other, path in real.items():
            if other != output and (
                f'{path}/'.startswith(f'{real[output]}/') or _is_among(real[output], other, paths[other])
            ):
                raise UsageError(
                    f'{spelled(output, paths[output])} clashes with {spelled(other, paths[other])}: both would use '
                    f'{real[output]}; write another path in one of them'
                )


def _is_among(path: str, flag: str, value: str) -> bool:
    """Whether a run has its own file at a real path, because of the value of a flag that stands for several files."""
    start = os.path.realpath(f'{value}0')[:-1] if SPECS[flag].output is Output.PREFIX else f'{os.path.realpath(value)}/'
    return path.startswith(start) and any(
        fnmatch.fnmatchcase(path.removeprefix(start), name) for name in SPECS[flag].inside
    )


def _check_new(name: str, folder: str) -> None:
    """Checks that a folder which will be renamed into place is missing or empty."""
    if os.path.ismount(folder):
        raise UsageError(f'{spelled(name, folder)}: a mounted folder cannot be replaced; name a new folder in it')
    if os.path.islink(folder):
        raise UsageError(f'{spelled(name, folder)}: a link cannot be replaced; write the path of a new folder')
    with contextlib.suppress(FileNotFoundError):
        # Raises if the name is too long.
        os.lstat(folder)
    if os.path.lexists(folder) and any(Path(folder).iterdir()):
        raise UsageError(f'{spelled(name, folder)}: the folder is not empty; write the name of a new one')


@contextlib.contextmanager
def _refusing(name: str, path: str) -> Iterator[None]:
    """Raises UsageError, with the flag and the path, for a path that the block cannot write."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f'{spelled(name, path)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{spelled(name, path)}: it cannot be written ({reason}); write another path') from None


def _try_file(path: Path) -> None:
    # Create and remove the file that a symbolic link points to, not the link.
    file = path.resolve()
    if os.path.lexists(file):
        # Appending nothing leaves the content as it is.
        file.open('ab').close()
        return
    _make_folder(file.parent)
    # The file itself is not made: another process might write it before this one has removed it.
    with contextlib.suppress(FileNotFoundError):
        # Raises if the name is too long.
        file.lstat()


def _make_folder(folder: Path) -> None:
    """Makes a folder if it is missing, and writes to it.

    Raises:
      OSError: it cannot be made, or not be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The file is deleted when it is closed.
    tempfile.TemporaryFile(dir=folder).close()
