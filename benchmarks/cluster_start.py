"""A large cluster on one machine: seconds to its first step and to its end, and the memory of each process.

    python benchmarks/cluster_start.py --workers=16 --ps=4 --model=trivial

The private memory of a process is what one more process costs; the rest of its resident memory is TensorFlow's
libraries, which all processes share. A single run, whose result is kept in --output. Linux only.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.program import PROGRAM, RunFailedError, add_output, exit_code
from benchmarks.standings import machine_line
from cluster.tether import tethered
from reporting.record import Record, read_file
from reporting.tables import format_markdown

_SAMPLE_SECS = 0.1
_STARTED = re.compile(r'(\w+ \d+) is process (\d+)')
# Lines of /proc/PID/status: the peak of resident memory; the current memory without shared libraries.
_RESIDENT = re.compile(r'^VmHWM:\s+([0-9]+) kB', flags=re.MULTILINE)
_PRIVATE = re.compile(r'^RssAnon:\s+([0-9]+) kB', flags=re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Peak memory of one process in MiB: resident, and private (without shared libraries)."""

    resident: float
    private: float


class _Sampler:
    """Records the memory of each process that the launcher names on its standard error."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.memory: dict[str, Memory] = {}
        self._processes: dict[str, str] = {}
        self._is_over = threading.Event()

    def sample(self) -> None:
        """Looks at all processes until over() is called."""
        while not self._is_over.wait(_SAMPLE_SECS):
            for name, process in list(self._processes.items()):
                with contextlib.suppress(OSError):
                    self._add(name, Path(f'/proc/{process}/status').read_text())

    def heard(self, line: str) -> None:
        """Takes a line of the launcher."""
        self.lines.append(line)
        if started := _STARTED.match(line):
            self._processes[started[1]] = started[2]

    def over(self) -> None:
        self._is_over.set()

    def _add(self, name: str, status: str) -> None:
        resident, private = _RESIDENT.search(status), _PRIVATE.search(status)
        # A process that has ended, but was not yet reaped, has no memory.
        if resident and private:
            before = self.memory.get(name, Memory(0, 0))
            self.memory[name] = Memory(int(resident[1]) / 1024, max(before.private, int(private[1]) / 1024))


def run_cluster(argv: Sequence[str]) -> tuple[float, Mapping[str, Memory]]:
    """Runs the launcher with --verbose; returns its wall seconds, and the memory of each process by its name.

    Raises:
      RunFailedError: the exit code was not 0.
    """
    sampler = _Sampler()
    thread = threading.Thread(target=sampler.sample)
    began = time.perf_counter()
    thread.start()
    try:
        with subprocess.Popen(
            tethered(argv), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as launcher:
            assert launcher.stderr
            for line in launcher.stderr:
                sampler.heard(line)
    finally:
        sampler.over()
        thread.join()
    if launcher.returncode:
        raise RunFailedError(f'{"".join(sampler.lines[-40:])}exit code {launcher.returncode}')
    return time.perf_counter() - began, sampler.memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--workers', type=int, default=16)
    parser.add_argument('--ps', type=int, default=4)
    parser.add_argument('--model', default='trivial')
    parser.add_argument('--batch_size', type=int, default=4, help='images per step on each worker')
    parser.add_argument('--num_batches', type=int, default=20)
    parser.add_argument('--variable_update', default='parameter_server')
    add_output(parser, 'cluster_start')
    args = parser.parse_args()
    print(f'{args.workers} workers and {args.ps} ps of {args.model}; {machine_line()}', flush=True)
    path = args.output / f'{args.workers}-workers-{args.ps}-ps.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = [f'--{name}={getattr(args, name)}' for name in ('model', 'batch_size', 'num_batches', 'variable_update')]
    flags += ['--device=cpu', '--num_warmup_batches=1', f'--result_file={path}']
    seconds, memory = run_cluster(
        [*PROGRAM, 'cluster', f'--ps={args.ps}', f'--workers={args.workers}', '--verbose', '--', *flags]
    )
    found = read_file(path)
    assert isinstance(found, Record)
    print(
        f'first step of the chief done after {found.document["phases"]["first_step"]:.1f} s, all processes ended after '
        f'{seconds:.1f} s, {found.images_per_second:.1f} images/sec\n'
    )
    rows = [[name, f'{one.resident:.0f}', f'{one.private:.0f}'] for name, one in memory.items()]
    rows.append(['all', '', f'{sum(one.private for one in memory.values()):.0f}'])
    print(format_markdown(('peak memory', 'resident MiB', 'of its own MiB'), rows, right=(1, 2)))


if __name__ == '__main__':
    sys.exit(exit_code(main))
