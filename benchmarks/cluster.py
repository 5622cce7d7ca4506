"""Measures clusters on separate hosts with limited links, and compares them with the original.

    python -m benchmarks.cluster --link=1gbit --model=resnet50 --batch_size=4 --num_batches=10
    python -m benchmarks.cluster --link=200mbit --model=lenet --batch_size=32 --num_batches=30 \\
        --original=FOLDER/scripts/tf_cnn_benchmarks --original_python=PYTHON

The hosts are network namespaces of this machine, each with a link to a switch. They share the
cores; only root can make them. The original program is github.com/tensorflow/benchmarks; its Python
needs TensorFlow and tf_keras. Neither program reads images.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.comparing import ROOT, comma_separated, compare_pairs, make_parser
from tests.support.hosts import Network, make_hosts, why_not
from tf_cnn.system.errors import BenchmarkError, RunError, UsageError, format_error

MODES = {
    'parameter_server': ['--variable_update=parameter_server'],
    'asynchronous': ['--variable_update=parameter_server', '--cross_replica_sync=false'],
    'staged_vars': ['--variable_update=parameter_server', '--staged_vars=true'],
    'distributed_replicated': ['--variable_update=distributed_replicated'],
    'distributed_all_reduce': [
        '--variable_update=distributed_all_reduce',
        '--all_reduce_spec=xring',
    ],
    # The original needs this value.
    'collective_all_reduce': [
        '--variable_update=collective_all_reduce',
        '--all_reduce_spec=collective',
    ],
}
# The job and the index of a task.
Task = tuple[str, int]
NUM_WORKERS, _CONTROLLER = 2, ('controller', 0)
_UNITS = {'mbit': 1, 'gbit': 1000}
_DEADLINE_SECS = 600


def parse_mbit(link: str) -> float:
    """Returns the Mbit/s of a rate in the form of tc(8), such as 200mbit or 1gbit."""
    match = re.fullmatch(r'(\d+(?:\.\d+)?)(mbit|gbit)', link)
    if not match:
        raise argparse.ArgumentTypeError(
            f'{link!r} is not a rate; use one such as 200mbit or 1gbit'
        )
    return float(match[1]) * _UNITS[match[2]]


def _list_tasks(mode: str, num_ps: int) -> list[Task]:
    """Returns the tasks of a mode, workers first."""
    tasks = [('worker', index) for index in range(NUM_WORKERS)]
    if mode == 'distributed_all_reduce':
        tasks.append(_CONTROLLER)
    elif mode != 'collective_all_reduce':
        tasks += [('ps', index) for index in range(num_ps)]
    return tasks


@contextlib.contextmanager
def _start_tasks(
    network: Network,
    tasks: Sequence[Task],
    command: Sequence[object],
    folder: Path,
    env: Mapping[str, str],
) -> Iterator[dict[str, 'subprocess.Popen[bytes]']]:
    """Starts a task on each host, with its log in `folder`; kills all at the end."""
    addresses: dict[str, list[str]] = {}
    for (job, _), host in zip(tasks, network.hosts, strict=True):
        addresses.setdefault(job, []).append(f'{host.address}:5000')
    hosts = [
        f'--{job}_host{"" if job == "controller" else "s"}={",".join(job_addresses)}'
        for job, job_addresses in addresses.items()
    ]
    processes = {}
    try:
        for (job, index), host in zip(tasks, network.hosts, strict=True):
            task_command = host.command(
                *command, *hosts, f'--job_name={job}', f'--task_index={index}'
            )
            with (folder / f'{job}{index}.log').open('wb') as log:
                processes[f'{job}{index}'] = subprocess.Popen(
                    task_command, env=env, stdout=log, stderr=subprocess.STDOUT
                )
        yield processes
    finally:
        for pid in [pid for host in network.hosts for pid in host.processes()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in processes.values():
            process.wait()


def _train(
    network: Network,
    tasks: Sequence[Task],
    command: Sequence[object],
    env: Mapping[str, str],
) -> str:
    """Returns the line with the total."""
    # The controller prints the results of its workers.
    chief = 'controller0' if _CONTROLLER in tasks else 'worker0'
    with tempfile.TemporaryDirectory() as name:
        log = Path(name, f'{chief}.log')
        settings = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2', **env}
        ignore_timeout = contextlib.suppress(subprocess.TimeoutExpired)
        running = _start_tasks(network, tasks, command, Path(name), settings)
        with running as processes, ignore_timeout:
            processes[chief].wait(_DEADLINE_SECS)
        text = log.read_text(errors='replace')
    if not (total := re.search(r'^total images/sec: [\d.]+$', text, re.MULTILINE)):
        last = (text.strip() or 'it printed nothing').splitlines()[-1]
        raise RunError(
            f'{" ".join(map(str, command))}: no total within {_DEADLINE_SECS} s; the log of '
            f'{chief} ends with: {last}'
        )
    return total[0]


def main() -> int:
    parser = make_parser(__doc__, batch_size=4, num_batches=10, num_warmup_batches=2, num_ps=1)
    parser.add_argument(
        '--link',
        type=parse_mbit,
        default='1gbit',
        help='the rate of each link, such as 200mbit or 1gbit',
    )
    parser.add_argument('--model', default='resnet50', help='the network')
    parser.add_argument(
        '--modes', type=comma_separated(MODES), default=','.join(MODES), help='comma-separated'
    )
    parser.add_argument(
        '--flags',
        default='',
        help='more flags of this program, such as --compact_gradient_transfer',
    )
    parser.add_argument(
        '--both', default='', help='more flags of both programs, such as --use_fp16=true'
    )
    parser.add_argument(
        '--original', type=Path, help="folder of the original's tf_cnn_benchmarks.py"
    )
    parser.add_argument(
        '--original_python', type=Path, default=Path(sys.executable), help='the Python that runs it'
    )
    parser.add_argument(
        '--once', choices=('this', 'original'), help='only run this program in the first mode'
    )
    args = parser.parse_args()
    if len(args.modes) == 1 and not args.original and not args.once:
        parser.error(
            f'--modes={args.modes[0]}: one mode has nothing to be compared with; name two or more, '
            'or give --original'
        )
    if reason := why_not():
        raise UsageError(reason)
    if not args.once:
        return _compare(args)
    common = ['--device=cpu', '--local_parameter_device=cpu', f'--model={args.model}']
    common += [
        f'--{name}={vars(args)[name]}'
        for name in ('batch_size', 'num_batches', 'num_warmup_batches')
    ]
    common += args.both.split()
    command: list[object] = [sys.executable, ROOT / 'tf_cnn_benchmarks.py']
    flags, env, shared = args.flags.split(), {}, []
    if args.once == 'original':
        script = args.original.resolve() / 'tf_cnn_benchmarks.py'
        command = [args.original_python, script, '--data_format=NHWC', '--num_gpus=1']
        flags, env = [], {'TF_USE_LEGACY_KERAS': '1'}
        # A host's /tmp is separate, so these paths are mounted.
        shared = [args.original, args.original_python.parent.parent]
    mode = args.modes[0]
    tasks = _list_tasks(mode, args.num_ps)
    with make_hosts(len(tasks), rate_mbit=args.link, shared=shared) as network:
        print(_train(network, tasks, [*command, *common, *MODES[mode], *flags], env))
    return 0


def _compare(args: argparse.Namespace) -> int:
    """Compares each mode with the first one, and with the original; each run has new hosts."""
    again = [sys.executable, '-m', 'benchmarks.cluster', *sys.argv[1:]]
    commands = {mode: [*again, f'--modes={mode}', '--once=this'] for mode in args.modes}
    pairs = [(mode, args.modes[0]) for mode in args.modes[1:]]
    for mode in args.modes if args.original else ():
        commands[f'{mode}, original'] = [*again, f'--modes={mode}', '--once=original']
        pairs.append((mode, f'{mode}, original'))
    return compare_pairs(commands, pairs, args)


if __name__ == '__main__':
    try:
        sys.exit(main())
    except BenchmarkError as error:
        print(format_error(str(error)), file=sys.stderr)
        sys.exit(error.exit_code)
