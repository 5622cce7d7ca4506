"""The table of checks. Does not import TensorFlow."""

import enum
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from machine.tensorflow_import import LazyPackage
from params.all_reduce_spec import ALGORITHMS
from params.modes import MODES, Manager, Place

if TYPE_CHECKING:
    import doctor.benchmarks
    import doctor.copies
    import doctor.gpu_checks
    import doctor.host
    import doctor.host_speed
    import doctor.placement
    import doctor.start
    import doctor.sums
    from doctor.verdicts import Context, Verdict
else:
    doctor = LazyPackage('doctor')

# Only the call imports the module that examines, and so TensorFlow.
Examine = Callable[['Context'], 'Verdict']


class Needs(enum.Enum):
    """Where a check applies."""

    NOTHING = 'everywhere'
    NOT_ON_CPU = 'unless --device=cpu'
    DRIVER = 'where a GPU of NVIDIA is'
    GPU = 'where TensorFlow sees a GPU'
    TWO_GPUS = 'where TensorFlow sees two GPUs'
    CPU = 'where the CPU computes'


@dataclass(frozen=True)
class Check:
    """A row of the table.

    Attributes:
      name: FAMILY/WHAT.
      asks: the question that it answers, in a few words.
      run: examines what the check is about.
      needs: where the check applies.
      limit_secs: the time in seconds after which it counts as hung.
      is_long: whether --quick leaves it out: it measures a rate, starts processes, or varies another check.
      shares: successive checks with the same value run in one process as long as none is wrong.
      remedy: what to do if it hangs or crashes.
    """

    name: str
    asks: str
    run: Examine
    needs: Needs = Needs.NOTHING
    limit_secs: float = 60.0
    is_long: bool = False
    shares: str | None = None
    remedy: str | None = None


DEVICES = 'tensorflow/devices'
# The checks that share one process with TensorFlow.
_SESSIONS = 'sessions'
ARCHITECTURE = 'gpu/architecture'
RESNET50 = 'resnet50/'
_NCCL = 'try NCCL_P2P_DISABLE=1 (and ACS off in the BIOS), then NCCL_SHM_DISABLE=1; until then --all_reduce_spec=xring'
_DTYPES = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}
_ALONE = [mode.name for mode in MODES.values() if isinstance(mode.runs[Place.ALONE], Manager)]
_TF32 = {'fp32': ('--notf32',), 'tf32': ('--tf32',), 'fp16': ('--precision=fp16',), 'bf16': ('--precision=bf16',)}


def _of_host(name: str, asks: str, run: Examine) -> Check:
    return Check(f'host/{name}', asks, run, shares='host')


def _placement(name: str, needs: Needs = Needs.NOTHING, *, is_long: bool = False, **flags: Any) -> Check:
    asks = 'every op of a step runs where the graph asks for'
    return Check(
        f'placement/{name}',
        asks,
        lambda context: doctor.placement.step(context, {'model': 'resnet20', **flags}),
        needs,
        limit_secs=120,
        is_long=is_long,
        shares=_SESSIONS,
    )


def _sums(algorithm: str, precision: str) -> Check:
    needs = Needs.TWO_GPUS if algorithm == 'nccl' else Needs.NOTHING
    return Check(
        f'all_reduce/{algorithm}/{precision}',
        f'sums by {algorithm} in {precision} are exact',
        lambda context: doctor.sums.exact_sums(context, algorithm, _DTYPES[precision]),
        needs,
        limit_secs=120,
        shares=_SESSIONS,
        remedy=_NCCL if algorithm in ('nccl', 'collective') else None,
    )


def _copies(name: str, asks: str, source: str, target: str, needs: Needs = Needs.GPU) -> Check:
    return Check(
        f'gpu/{name}',
        asks,
        lambda context: doctor.copies.bandwidth(context, source, target),
        needs,
        is_long=True,
        shares='copies',
    )


def _throughput(name: str, needs: Needs, *flags: str) -> Check:
    return Check(
        f'{RESNET50}{name}',
        'images/sec of ResNet-50, synthetic images',
        lambda context: doctor.benchmarks.throughput(context, ['--model=resnet50', *flags]),
        needs,
        limit_secs=300,
        is_long=True,
    )


def _real_data(name: str, needs: Needs, *flags: str) -> Check:
    return Check(
        f'real_data/{name}',
        'images/sec with JPEGs that are read and decoded',
        lambda context: doctor.benchmarks.real_data(context, flags),
        needs,
        limit_secs=300,
        is_long=True,
    )


CHECKS: tuple[Check, ...] = (
    _of_host('cores', 'cores, affinity, CPU quota and threads fit', lambda context: doctor.host.cores(context)),
    _of_host('load', 'nothing else uses the cores', lambda context: doctor.host.load(context)),
    _of_host('clock', 'the cores may run at full clock', lambda context: doctor.host.clock(context)),
    _of_host('memory', 'there is enough memory', lambda context: doctor.host.memory(context)),
    _of_host('open_files', 'a process may open enough files', lambda context: doctor.host.open_files(context)),
    Check(
        'gpu/driver',
        'the driver starts, and fits TensorFlow',
        lambda context: doctor.gpu_checks.driver(context),
        Needs.NOT_ON_CPU,
        limit_secs=90,
        remedy='restart the machine',
    ),
    Check(
        'gpu/libraries',
        'all libraries of CUDA can be opened',
        lambda context: doctor.gpu_checks.libraries(context),
        Needs.DRIVER,
        200,
    ),
    Check(
        DEVICES,
        'TensorFlow sees all devices and computes',
        lambda context: doctor.start.devices(context),
        limit_secs=300,
        shares=_SESSIONS,
    ),
    Check(
        ARCHITECTURE,
        'TensorFlow has kernels for the GPUs',
        lambda context: doctor.gpu_checks.architecture(context),
        Needs.GPU,
        90,
    ),
    Check(
        'host/shared_memory',
        '/dev/shm is large enough for NCCL',
        lambda context: doctor.host.shared_memory(context),
        Needs.TWO_GPUS,
    ),
    *(_placement(name, variable_update=name) for name in _ALONE),
    *(_placement(name, is_long=True, precision=name) for name in ('fp16', 'bf16')),
    _placement('bf16_variables', is_long=True, precision='bf16', fp16_vars=True),
    *(
        _placement(spec, needs, is_long=spec != 'nccl', variable_update=name, all_reduce_spec=spec)
        for name in _ALONE
        for spec, needs in (('xring', Needs.NOTHING), ('nccl', Needs.TWO_GPUS))
        if MODES[name].takes_all_reduce_spec
    ),
    *(
        _placement('staged', is_long=True, variable_update=name, local_parameter_device='cpu', staged_vars=True)
        for name in _ALONE
        if MODES[name].can_stage
    ),
    *(_sums(*row) for row in itertools.product((*ALGORITHMS, 'collective'), _DTYPES)),
    Check(
        'losses/gpu_and_cpu',
        'a GPU trains as the CPU does (TF32 off)',
        lambda context: doctor.benchmarks.losses(context),
        Needs.GPU,
        limit_secs=300,
        is_long=True,
    ),
    Check(
        'processes/collectives',
        'two processes, each with its own device, sum their gradients',
        lambda context: doctor.benchmarks.two_processes(context),
        limit_secs=300,
        is_long=True,
        remedy=_NCCL,
    ),
    _copies('host_to_device', 'GB/s from the host to a GPU', '/cpu:0', '/gpu:0'),
    _copies('device_to_host', 'GB/s from a GPU to the host', '/gpu:0', '/cpu:0'),
    _copies('device_to_device', 'GB/s from a GPU to the next', '/gpu:0', '/gpu:1', Needs.TWO_GPUS),
    Check(
        'gpu/matrix_products',
        'TFLOP/s of each GPU in each precision',
        lambda context: doctor.copies.matrix_products(context),
        Needs.GPU,
        limit_secs=300,
        is_long=True,
    ),
    Check(
        'host/memory_bandwidth',
        'GB/s of the memory',
        lambda context: doctor.host_speed.memory_bandwidth(context),
        limit_secs=120,
        is_long=True,
    ),
    Check(
        'host/matrix_products',
        'GFLOP/s of the CPU in each precision',
        lambda context: doctor.host_speed.matrix_products(context),
        limit_secs=120,
        is_long=True,
    ),
    *(
        _throughput(f'{name}/{data_format}', Needs.GPU, '--device=gpu', f'--data_format={data_format}', *flags)
        for name, flags in _TF32.items()
        for data_format in ('NCHW', 'NHWC')
    ),
    *(_throughput(f'cpu/{name}', Needs.CPU, '--device=cpu', f'--precision={name}') for name in ('fp32', 'bf16')),
    *(
        _real_data(mode, Needs.GPU, '--device=gpu', '--model=resnet50', f'--gpu_thread_mode={mode}')
        for mode in ('gpu_private', 'global')
    ),
    _real_data('cpu', Needs.CPU, '--device=cpu', '--model=trivial'),
)
