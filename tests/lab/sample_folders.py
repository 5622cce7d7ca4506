"""Writes folders of made-up results that tests compare."""

import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.sample_results import (
    command_document,
    sample_document,
    sample_failure,
    untimed_document,
    write_document,
)

LOG = """\
TensorFlow:  2.20
Model:       lenet
Dataset:     imagenet (synthetic)
Mode:        training
Batch size:  32 global
             32 per device
Devices:     ['/cpu:0']
1\timages/sec: 80.0 +/- 0.0 (jitter = 0.0)\t7.4
10\timages/sec: 80.1 +/- 0.1 (jitter = 0.2)\t7.4
20\timages/sec: 80.0 +/- 0.1 (jitter = 0.2)\t7.4
total images/sec: 80.00
"""


def write(folder: Path | str, document: Mapping[str, Any], day: int = 0) -> None:
    """Writes a run of its own: after `day` days, and a second after the runs that are there."""
    number = len([*Path(folder).glob('*.json')])
    own = {
        'id': uuid.uuid4().hex,
        'started_at': f'2026-11-{1 + day:02}T08:{number // 60:02}:{number % 60:02}Z',
    }
    write_document(f'{folder}/{number}.json', {**document, **own})


def rates_around(rate: float, count: int = 3, spread: float = 0.002) -> list[float]:
    """Rates of repeats, each above the one before by this part."""
    return [rate * (1 + spread * number) for number in range(count)]


def write_runs(
    folder: Path | str,
    rates: float | Iterable[float] = 100.0,
    *,
    host: str = '',
    day: int = 0,
    machine: Mapping[str, Any] = {},
    **changes: Any,
) -> None:
    """Writes a run for each of these images/sec; of a single number, three repeats."""
    machine = {**machine, 'hostname': host} if host else machine
    for rate in rates_around(rates) if isinstance(rates, float | int) else rates:
        write(folder, sample_document(rate=rate, noise=0, machine=machine, **changes), day)


def write_commands(
    folder: Path | str, rate: float | None, seconds: float = 20, *, host: str = '', **changes: Any
) -> None:
    """Writes three runs of a command, which differ by 0.2 %; without a rate, its wall times."""
    for factor in rates_around(1):
        document = command_document(
            seconds if rate else seconds * factor, rate and rate * factor, **changes
        )
        if host:
            document['machine'] |= {'hostname': host, 'fingerprint': host}
        write(folder, document)


def write_hosts(folder: Path | str, rates: Mapping[str, float], **changes: Any) -> None:
    """Writes three runs of each host, whose rates differ by 1 %."""
    for name, rate in rates.items():
        write_runs(f'{folder}/{name}', rates_around(rate, spread=0.01), host=name, **changes)


def replaced(document: Mapping[str, Any], **columns: Sequence[Any]) -> dict[str, Any]:
    """Returns the document with other columns of its steps."""
    [worker] = document['workers']
    return {**document, 'workers': [{**worker, 'steps': {**worker['steps'], **columns}}]}


def write_losses(
    folder: str, wrong_steps: Mapping[str, Sequence[int]], *, cpu_model: bool = False
) -> None:
    """Writes runs of hosts with --deterministic; their losses are wrong from these steps on, or
    never.
    """
    for name, steps in wrong_steps.items():
        for rate, step in zip(rates_around(100, len(steps)), steps, strict=True):
            machine = {'hostname': name, **({'cpu_model': name} if cpu_model else {})}
            document = sample_document(
                rate=rate, noise=0, flags={'deterministic': True}, machine=machine
            )
            values = document['workers'][0]['steps']
            values['loss'] = [
                loss * (1.5 if 0 < step <= number else 1)
                for loss, number in zip(values['loss'], values['global_step'], strict=True)
            ]
            write(f'{folder}/{name}', document)


def write_all_folders() -> None:
    """Writes the folders that the table of answers names, below the working directory."""
    for folder in ('base', 'x/results', 'deep/xeon-avx512-2-cores'):
        write_runs(folder)
    for folder in ('slow', 'y/results', 'deep/epyc-avx512-2-cores'):
        write_runs(folder, 80)
    write_runs('same', 100.1)
    write_runs('noisy', [70, 90, 30])
    write_runs('two', [60, 61])
    write_runs('short', 50, seconds=[0.01] * 20)
    write_runs('paused', 100, gap=0.1)
    write_runs('loaded', 50, warnings=[{'code': 'steal', 'text': 'others took 9 %'}])
    write_runs('outlier', [100, 101, 99, 50, 100, 102])
    write_runs('changed', 80, program={'git_commit': f'{"17d1cb91" * 5}-dirty'})
    write_runs('hardly', [100, 100.1, 99.9, 101.5, 100, 100.2])
    for folder, joules in (('thirsty', 1.0), ('frugal', 0.7)):
        energy = {'source': 'rapl', 'joules': 100.0, 'joules_per_image': joules}
        write_runs(folder, 100, energy=energy)
    write_runs(
        'noted',
        100,
        flags={'optimizer': 'x\x1b[2J\nfake line'},
        machine={'kernel': '6.2'},
        warnings=[{'code': code, 'text': code} for code in ('steal', *'abcdef')],
    )
    for folder, sizes, factor, flags in (
        ('sizes', (16, 32, 64), 1, {}),
        ('sizes_of_xla', (32, 64, 128), 1.1, {'xla': True}),
        ('other_sizes', (8, 256), 1, {}),
    ):
        for size in sizes:
            write_runs(folder, factor * (90 + size), flags={'batch_size': size, **flags})
    for size, rate in ((16, 200), (32, 100), (64, 90), (8, 100.1)):
        write_runs('ups', 100, flags={'batch_size': size})
        write_runs('downs', rate, flags={'batch_size': size})
    for mode, rate in (('independent', 120), ('replicated', 100)):
        for size in (32, 64):
            write_runs('modes', rate, flags={'variable_update': mode, 'batch_size': size})
    for workers, servers in ((1, 0), (2, 0), (2, 1)):
        cluster = {'num_workers': workers, 'num_ps': servers}
        write_runs('shapes', 100 * workers + servers, cluster=cluster)
    write_runs('resnet50', 10, flags={'model': 'resnet50'})
    write_runs('networks', 10, flags={'model': 'resnet50'})
    write_runs('networks', 100, flags={'model': 'vgg16'})
    # Runs without a rate, and files that are no results.
    for folder in ('partial', 'torn', 'strangers'):
        write_runs(folder, 100.1)
    write_document('partial/failure.json', sample_failure(reason='the data are gone'))
    write_document('partial/untimed.json', untimed_document('it ran out of memory'))
    Path('torn/torn.json').write_text('{"schema": "tf_cnn')
    write_document('strangers/evaluation.json', untimed_document('', run={'role': 'evaluation'}))
    Path('strangers/notes.txt').write_text('text')
    Path('strangers/list.json').write_text('[1]')
    write_document('failures/failure.json', sample_failure(reason='the data are gone'))
    # Commands.
    write_commands('command_a', 50, flags={'command': 'python a.py'})
    write_commands('command_b', 40, flags={'command': 'python b.py'})
    # Each command printed two numbers, and A left a process behind.
    left = {'code': 'left_processes', 'text': 'a process is left'}
    for name, tokens, warnings in (('numbers_a', 50, [left]), ('numbers_b', 40, [])):
        write_commands(name, None, rates={'tokens': tokens, 'bus': 9}, warnings=warnings)
    write_commands('time_a', None, 20, flags={'command': 'make a'})
    write_commands('time_b', None, 10, flags={'command': 'make b'})
    for name, rate in (('n1', 50), ('n2', 40), ('n3', 50), ('n4', 50)):
        write_commands(f'command_hosts/{name}', rate, host=name)
    # Hosts.
    names = [f'n{number}' for number in range(6)]
    for folder in ('hosts', 'lost', 'few', 'unsteady'):
        write_hosts(folder, dict.fromkeys(names, 100))
    for name in names:
        is_slow = name == 'n3'
        governor = {'governor': 'powersave' if is_slow else 'performance'}
        write_hosts('one_slow', {name: 80 if is_slow else 100}, machine=governor)
    for size in (16, 32):
        rates = dict.fromkeys(names, 100) | ({'n3': 80} if size == 32 else {})
        write_hosts('slow_in_one', rates, flags={'batch_size': size})
    write_losses('losses', {name: [0, 0, 0] for name in names} | {'n3': [15, 15, 15]})
    write_losses('losses_of_two', {'n1': [0, 0, 0], 'n2': [15, 15, 15]})
    write_losses('losses_once', {'n1': [0], 'n2': [15]})
    write_losses('losses_at_times', {'n1': [0, 0, 0], 'n2': [0, 0, 30], 'n3': [0, 0, 0]})
    write_losses('equal_losses', {'n1': [0, 0, 0], 'n2': [0, 0, 0]})
    write_losses('other_processors', {'n1': [0] * 3, 'n2': [15] * 3}, cpu_model=True)
    for folder, step in (('right', 0), ('wrong', 15)):
        write_losses(folder, {'n1': [step] * 3})
    write_losses('wrong_at_times', {'n1': [0, 0, 15]})
    for folder in ('sizes_a', 'sizes_b'):
        for size in (16, 32):
            write_runs(folder, 100 + size, flags={'deterministic': True, 'batch_size': size})
    for name in ('n1', 'n2'):
        for rate in rates_around(100):
            flags, machine = {'deterministic': True}, {'hostname': name}
            document = sample_document(rate=rate, noise=0, flags=flags, machine=machine)
            steps = document['workers'][0]['steps']
            later = [step + 1000 * (name == 'n2') for step in steps['global_step']]
            write(f'later_steps/{name}', replaced(document, global_step=later))
            none = [None] * len(later)
            write(f'no_losses/{name}', replaced(document, loss=none))
    many = {f'n{number:02}': 100 + number % 3 for number in range(16)}
    write_hosts('many_hosts', many)
    write_hosts('two_hosts', {'n1': 100, 'n2': 80})
    write_hosts('before', {'n1': 70, 'n2': 80, 'n3': 100})
    write_hosts('after', {'n1': 70, 'n2': 100, 'n3': 100})
    for number, name in enumerate(('6a1f08b2c3d4', '0c1d2e3f4a5b', '9f8e7d6c5b4a'), start=1):
        for rate in rates_around(100 - 30 * (number == 2)):
            document = sample_document(rate=rate, noise=0, machine={'hostname': name})
            # Of the machine without the name, which the container runtime generated.
            document['machine']['fingerprint'] = f'machine {number}'
            write(f'containers/node{number}', document)
    write_runs('one_name', rates_around(100, 9, 0.001), host='ubuntu')
    write_document('lost/n9/0.json', sample_failure(reason='n9: ssh cannot connect'))
    write_runs('few/n9', [100, 101], host='n9')
    write_runs('unsteady/n9', [40, 100, 101], host='n9')
    for pair in itertools.combinations([f'node{number}' for number in range(1, 6)], 2):
        for rate in rates_around(20 if 'node4' in pair else 100):
            document = sample_document(
                rate=rate,
                noise=0,
                machine={'hostname': pair[0]},
                cluster={'num_workers': 2},
                run={'role': 'exchange-only'},
                flags={'exchange_only': True, 'variable_update': 'collective_all_reduce'},
            )
            document['workers'][1]['host'] = pair[1]
            write(f'pairs/{"+".join(pair)}', document)
    # What a gate reads.
    for day in range(12):
        write_runs(f'history/{day}', [100 + day % 3], day=day)
        write_runs(
            f'jobs/{day}',
            [100 + day % 3],
            day=day,
            flags={'data_dir': f'/tmp/{day}'},
            run={'data_sha256': 'same'},
        )
    write_runs('as_before', [101], day=20)
    write_runs('slower', [80], day=20)
    write_runs('faster', [120], day=20)
    for folder, content in (('job', 'same'), ('other_data', 'another')):
        run = {'data_sha256': content}
        write_runs(folder, [50], day=20, flags={'data_dir': '/tmp/99'}, run=run)
    write_runs('limited', [50], day=20, machine={'cgroup_cpus': 1.0})
    write_runs('other_size', [50], day=20, flags={'batch_size': 64})
    Path('published.csv').write_text('batch_size,speed_up\n16,1\n32,1.26\n64,1.4\n')
    Path('new.log').write_text(LOG)
    Path('old.log').write_text(LOG.replace('80.00', '160.00'))
    Path('ranks.log').write_text(''.join(f'[1,0]<stdout>:{line}\n' for line in LOG.splitlines()))
    Path('half.log').write_text(LOG.replace('total images/sec: 80.00\n', ''))
    Path('empty').touch()
    Path('text').write_text('epoch 1: loss 3.2\n')
