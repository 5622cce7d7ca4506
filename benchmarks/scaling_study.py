"""Was the prediction right? Clusters of hosts on this machine: predicted from one host and the links, then run.

    sudo .venv/bin/python benchmarks/scaling_study.py
    sudo .venv/bin/python benchmarks/scaling_study.py --clusters=12

Hosts are namespaces, as in tests/support/hosts.py: each has an address, a link of a given rate, an sshd and some of the
cores. They share the processor and the memory of this machine, which separate hosts would not. So the process from
which a cluster is predicted is measured while the other hosts compute the same. `all_reduce` measures the links with
the gradients of the model. docs/scaling.md explains the output.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command_runs import PROGRAM, RunFailedError, as_file_name, exit_code, read_result, run_command
from benchmarks.standings import machine_line
from comparison.tables import Table, TableColumn
from errors import UsageError
from results.document import Record
from scaling.links import LinkRow, read_links
from tests.support.hosts import Network, make_hosts, why_not

# How long the timed steps of a run take, and how many there are at least and at most.
_TIMED_SECS, _FEWEST_STEPS, _MOST_STEPS = 20.0, 4, 100
_BATCH_SIZES = {'lenet': 32, 'alexnet': 8, 'resnet50': 4}
# The type in which each precision sends gradients.
_DTYPES = {'fp32': 'float32', 'bf16': 'bfloat16'}


@dataclass(frozen=True)
class _Work:
    """What each worker computes."""

    model: str
    precision: str

    @property
    def flags(self) -> list[str]:
        return [
            f'--model={self.model}',
            f'--precision={self.precision}',
            f'--batch_size={_BATCH_SIZES[self.model]}',
            # As clusters do, so that one process predicts them.
            *('--device=cpu', '--num_warmup_batches=3', '--keep_memory'),
        ]

    def __str__(self) -> str:
        return f'{self.model} {self.precision}'


@dataclass(frozen=True)
class _Links:
    """Hosts and the links between them.

    Attributes:
      hosts: the number of hosts.
      rate_mbit: what each link carries in each direction, in Mbit/s; None for no limit.
    """

    hosts: int
    rate_mbit: int | None

    def __str__(self) -> str:
        return f'{self.hosts} hosts, {"no limit" if self.rate_mbit is None else f"{self.rate_mbit} Mbit/s"}'


@dataclass(frozen=True)
class _Cluster:
    """A cluster with one worker on each host."""

    links: _Links
    mode: str
    servers: int
    work: _Work

    @property
    def exchange(self) -> str:
        """Its exchange as `all_reduce` calls it."""
        return 'parameter_servers' if self.servers else 'collective'

    def __str__(self) -> str:
        return ', '.join(
            [str(self.links), self.mode, *([f'{self.servers} ps'] if self.servers else []), str(self.work)]
        )


def _clusters(lines: str) -> list[_Cluster]:
    """Reads lines of hosts, Mbit/s, mode, parameter servers, model and precision."""
    found = []
    for hosts, rate, mode, servers, model, precision in filter(None, map(str.split, lines.splitlines())):
        links = _Links(int(hosts), None if rate == '-' else int(rate))
        found.append(_Cluster(links, mode, int(servers), _Work(model, precision)))
    return found


_FOUR = """
2  100 parameter_server       1 lenet    fp32
2 1000 collective_all_reduce  0 alexnet  fp32
4  100 collective_all_reduce  0 lenet    fp32
4 1000 parameter_server       2 lenet    bf16
"""
_TWELVE = f"""{_FOUR}
2  100 distributed_replicated 2 lenet    bf16
2  100 collective_all_reduce  0 resnet50 fp32
2 1000 parameter_server       1 alexnet  fp32
2    - distributed_replicated 1 resnet50 bf16
2    - collective_all_reduce  0 lenet    fp32
4 1000 collective_all_reduce  0 alexnet  bf16
4 1000 distributed_replicated 2 resnet50 fp32
4    - parameter_server       2 lenet    fp32
"""


@dataclass(frozen=True)
class _Outcome:
    """A cluster, predicted and measured.

    Attributes:
      predicted: the row of the prediction.
      measured: images/sec.
      computing: seconds of a step of one process.
      exchange: seconds of the exchange alone, between the same hosts.
      step: seconds of a step of the cluster.
    """

    cluster: _Cluster
    predicted: Mapping[str, Any]
    measured: float
    computing: float
    exchange: float
    step: float

    @property
    def error(self) -> float:
        """How much more was predicted, as a part of what was measured."""
        return float(self.predicted['images_per_second']) / self.measured - 1

    @property
    def limit(self) -> str:
        """What takes longer alone. Waiting and crowding are a part of the step, too, so it may be less than half."""
        return 'compute' if self.computing > self.exchange else 'exchange'

    @property
    def is_limit_right(self) -> bool:
        """Whether the predicted limit is computing, or something of the exchange, as measured."""
        return (self.predicted['limit'] == 'compute') == (self.limit == 'compute')


class _Site:
    """Hosts on which clusters run; results and logs go to a folder."""

    def __init__(self, network: Network, links: _Links, folder: Path) -> None:
        self._network = network
        self._folder = folder / as_file_name(str(links))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._names = ','.join(host.name for host in network.hosts)

    def measure_one(self, work: _Work) -> Path:
        """Runs one process on each host at the same time, and returns the first one's result."""
        probe, wanted = (self._file(f'{work} {name}.json') for name in ('probe', 'alone'))
        self._on_each(work, probe, 3)
        self._on_each(work, wanted, _steps_in(read_result(probe).step_seconds().mean()))
        return wanted

    def measure_links(self, cluster: _Cluster) -> Path:
        """Measures how fast gradients meet, prints the table, and returns the file of links."""
        found = self._of(cluster, 'links')
        table = self._at_desk(
            *('all_reduce', f'--hosts={self._names}', '--devices=1', f'--exchanges={cluster.exchange}'),
            *(f'--ps={max(1, cluster.servers)}', f'--dtype={_DTYPES[cluster.work.precision]}'),
            *(f'--model={cluster.work.model}', '--steps=8', '--format=markdown'),
            *(f'--links_file={found}', f'--output={self._of(cluster, "all_reduce").with_suffix("")}'),
            *('--', '--device=cpu'),
        )
        print(table, flush=True)
        return found

    def predict(self, cluster: _Cluster, alone: Path, links: Path) -> Mapping[str, Any]:
        """Returns the predicted row of a cluster."""
        document = self._at_desk(
            *('predict', f'--from={alone}', f'--links={links}', f'--workers={cluster.links.hosts}', '--format=json'),
            *(f'--variable_update={cluster.mode}', f'--num_ps={max(1, cluster.servers)}'),
        )
        self._of(cluster, 'predicted').write_text(document)
        row: Mapping[str, Any] = json.loads(document)['rows'][0]
        return row

    def run(self, cluster: _Cluster, step_seconds: float) -> Record:
        """Runs a cluster, whose steps take about so many seconds, and returns its result."""
        path = self._of(cluster, 'measured')
        run_command(
            self._network.command(
                *(*PROGRAM, 'cluster', f'--hosts={self._names}', f'--ps={cluster.servers}', '--', *cluster.work.flags),
                *(f'--variable_update={cluster.mode}', f'--num_batches={_steps_in(step_seconds)}'),
                f'--result_file={path}',
                f'--trace_file={path.with_suffix(".trace")}',
            )
        )
        return read_result(path)

    def compare(self, cluster: _Cluster) -> str:
        """Returns the table of `compare PREDICTED MEASURED`."""
        return self._at_desk('compare', self._of(cluster, 'predicted'), self._of(cluster, 'measured'))

    def _file(self, name: str) -> Path:
        return self._folder / as_file_name(name)

    def _of(self, cluster: _Cluster, kind: str) -> Path:
        return self._file(f'{cluster.mode} {cluster.servers} {cluster.work} {kind}.json')

    def _on_each(self, work: _Work, first: Path, steps: int) -> None:
        flags = [*work.flags, f'--num_batches={steps}']
        commands = [host.command(*PROGRAM, *flags) for host in self._network.hosts]
        commands[0].append(f'--result_file={first}')
        with ThreadPoolExecutor(len(commands)) as pool:
            list(pool.map(run_command, commands))

    def _at_desk(self, *arguments: object) -> str:
        command = self._network.command(*PROGRAM, *arguments)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise RunFailedError(f'{" ".join(command)}: exit code {done.returncode}')
        return done.stdout


def _steps_in(step_seconds: float) -> int:
    return round(min(_MOST_STEPS, max(_FEWEST_STEPS, _TIMED_SECS / step_seconds)))


def _study(links: _Links, clusters: Sequence[_Cluster], folder: Path) -> Iterator[_Outcome]:
    """Measures hosts and their links, then predicts and runs each cluster."""
    cores = [_cores(number, links.hosts) for number in range(links.hosts)]
    with make_hosts(links.hosts, rate_mbit=links.rate_mbit, cores=cores, shared=[folder]) as network:
        site = _Site(network, links, folder)
        print(f'\n## {links}\n', flush=True)
        alone = {work: site.measure_one(work) for work in dict.fromkeys(one.work for one in clusters)}
        for one in clusters:
            measured = site.measure_links(one)
            row = site.predict(one, alone[one.work], measured)
            result = site.run(one, row['step_seconds'])
            print(f'\n{one}\n\n{site.compare(one)}', flush=True)
            yield _Outcome(
                one,
                row,
                result.images_per_second,
                float(read_result(alone[one.work]).step_seconds().mean()),
                exchange_alone(one, read_links(str(measured)).rows),
                float(result.step_seconds().mean()),
            )


def exchange_alone(cluster: _Cluster, rows: Sequence[LinkRow]) -> float:
    """Returns the seconds of the exchange of just this cluster, of measured rows.

    Raises:
      RunFailedError: none of them is.
    """
    hosts = cluster.links.hosts
    wanted = (cluster.exchange, hosts, hosts, cluster.servers, 0, cluster.work.model)
    for row in rows:
        if (row.name, row.hosts, row.workers, row.servers, row.server_hosts, row.model) == wanted:
            return row.seconds
    raise RunFailedError(f'all_reduce has not measured the exchange of {cluster}')


def _cores(number: int, hosts: int) -> list[int]:
    """The cores of a host: an equal share, or one that others have, too."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[number::hosts] or [usable[number % len(usable)]]


def _table(outcomes: Sequence[_Outcome]) -> str:
    titles = (
        'predicted images/sec',
        '95 % interval',
        'measured',
        'error',
        'step s',
        'of it computing',
        'exchange alone',
    )
    columns = [TableColumn('cluster'), *(TableColumn(title, is_number=True) for title in titles)]
    rows = [
        [
            str(one.cluster),
            f'{one.predicted["images_per_second"]:.2f}',
            f'{one.predicted["low"]:.2f} to {one.predicted["high"]:.2f}',
            f'{one.measured:.2f}',
            f'{100 * one.error:+.1f} %',
            f'{one.step:.3f}',
            f'{one.computing / one.step:.0%}',
            f'{one.exchange / one.step:.0%}',
            str(one.predicted['limit']),
        ]
        for one in outcomes
    ]
    return Table([*columns, TableColumn('predicted limit')], rows).as_markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0] if __doc__ else None)
    parser.add_argument('--clusters', choices=('4', '12'), default='4', help='how many; 12 take about an hour')
    parser.add_argument('--output', type=Path, default=Path('data/benchmarks/scaling'), help='default: %(default)s')
    args = parser.parse_args()
    if reason := why_not():
        raise UsageError(reason)
    clusters = _clusters(_FOUR if args.clusters == '4' else _TWELVE)
    args.output.mkdir(parents=True, exist_ok=True)
    print(machine_line(), flush=True)
    outcomes: list[_Outcome] = []
    for links in dict.fromkeys(one.links for one in clusters):
        outcomes += _study(links, [one for one in clusters if one.links == links], args.output.resolve())
    errors = [abs(one.error) for one in outcomes]
    print(f'\n## Predicted and measured\n\n{_table(outcomes)}\n')
    print(
        f'error: median {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %; the predicted '
        f'limit is what takes longer alone in {sum(one.is_limit_right for one in outcomes)} of {len(outcomes)}'
    )


if __name__ == '__main__':
    sys.exit(exit_code(main))
