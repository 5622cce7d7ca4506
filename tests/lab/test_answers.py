"""What compare answers: a table of folders and flags with the exit code and the sentence."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_cnn_benchmarks
from tests.lab.sample_folders import write_all_folders, write_runs
from tests.support.programs import ROOT, run_main

pytestmark = pytest.mark.unit

GATE, HOSTS, BEFORE = '--fail_below=0.95', '--across=hosts', '--against=history'
SAME_LOSSES = '--same_losses'


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('all folders')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_all_folders()
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders)


def document_of(argv: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(
        run_main('compare', *argv.split(), '--format=json', code=code)[0]
    )
    assert (document['schema'], document['schema_version']) == ('tf_cnn_benchmarks.rows', 1)
    return document


# Arguments, exit code, the sentence, and facts that the other lines have.
ANSWERS: tuple[tuple[str, int, str, list[str]], ...] = (
    # Two sides: what differs, and what the gate says.
    (
        f'base slow {GATE}',
        1,
        'slow is slower than base: ratio 0.800 (0.796 to 0.804).',
        [f'{GATE}: ', 'slow (0.800)', 'All: lenet, replicated, batch 32, fp32, 1*1, 3 runs each'],
    ),
    (f'slow base {GATE}', 0, 'base is faster than slow: ratio 1.250 (1.244 to 1.256).', []),
    (
        'base slow --fail_below=0.7',
        0,
        'slow is slower than base: ratio 0.800 (0.796 to 0.804).',
        [],
    ),
    (
        f'base same {GATE}',
        0,
        'no difference is shown between base and same: ratio 1.001 (0.996 to 1.006).',
        [],
    ),
    (
        f'base noisy {GATE}',
        3,
        'no difference is shown between base and noisy: ratio 0.510 (0.111 to 2.343).',
        ['cannot tell: noisy: 0.111 is not excluded; about 10 rounds would'],
    ),
    (
        f'base noisy {GATE} --exit_unclear=125',
        125,
        'no difference is shown between base and noisy: ratio 0.510 (0.111 to 2.343).',
        ['cannot tell'],
    ),
    (
        f'base noisy {GATE} --exit_unclear=0',
        0,
        'no difference is shown between base and noisy: ratio 0.510 (0.111 to 2.343).',
        ['cannot tell'],
    ),
    (
        f'base two {GATE}',
        3,
        'too few runs for a verdict between base and two: ratio 0.604.',
        ['two: too few runs; 3 or more', '3 runs'],
    ),
    (
        f'base short {GATE}',
        3,
        'runs too short for a verdict between base and short: ratio 31.936 (31.778 to 32.095); '
        '3 of 6 runs are doubtful.',
        ['short: too short to judge'],
    ),
    # The time between steps counts.
    (
        'base changed',
        0,
        'changed is slower than base: ratio 0.800 (0.796 to 0.804).',
        ['since its commit', ': changed'],
    ),
    ('base paused', 0, 'paused is slower than base: ratio 0.765 (0.762 to 0.768).', []),
    (
        'base loaded',
        0,
        'loaded is slower than base: ratio 0.500 (0.498 to 0.502); 3 of 6 runs are doubtful.',
        ['! 50.1', '3 of 6: other VMs', '! 3 of 6 runs were disturbed'],
    ),
    (
        f'base outlier {GATE}',
        3,
        'no difference is shown between base and outlier: ratio 0.858 (0.593 to 1.242).',
        ['far from the others: outlier/3.json (50.0)', '3, 6'],
    ),
    (
        'base slow --price_per_hour=base=1.0,slow=0.5',
        0,
        'slow is slower than base: ratio 0.800 (0.796 to 0.804), and costs 0.62 of it per image.',
        ['price of 10^6', '1.73', '0.62'],
    ),
    (
        'base/0.json slow/0.json',
        0,
        'too few runs for a verdict between base and slow: ratio 0.800.',
        ['3 runs or more'],
    ),
    # Several settings.
    (
        f'ups downs {GATE}',
        1,
        'downs is faster than ups in 1 of 4 settings and slower in 1: ratio 2.000 (1.991 to 2.009) '
        'for batch 16; no difference is shown in 2 (ratios 1.000 to 1.001).',
        ['downs batch 64 (0.900)', 'geometric mean of 4'],
    ),
    (
        'sizes sizes_of_xla',
        0,
        'sizes_of_xla is faster than sizes in 2 of 2 settings: ratio 1.100 (1.095 to 1.105) for '
        'batch 64; 1 only in sizes_of_xla; 1 only in sizes.',
        ['xla False -> True'],
    ),
    # A single setting is the reference of all others, unless they have it too.
    (
        'two sizes',
        0,
        'too few runs for a verdict between two and sizes: ratio 2.021; 2 only in sizes.',
        [],
    ),
    (
        'sizes base',
        0,
        'base is slower than sizes: ratio 0.820 (0.816 to 0.823); 2 only in sizes.',
        [],
    ),
    (
        f'base slow same {GATE}',
        1,
        'slow is slower than base: ratio 0.800 (0.796 to 0.804); no difference is shown in 1 '
        '(ratio 1.001).',
        ['slow (0.800)'],
    ),
    (
        f'sizes other_sizes {GATE}',
        1,
        'nothing was compared: batch_size is 8, 256 in other_sizes and 16, 32, 64 in sizes.',
        [f'{GATE}: nothing was compared'],
    ),
    (
        'base resnet50 --force',
        0,
        'resnet50 is slower than base: ratio 0.100 (0.100 to 0.100).',
        ['model lenet -> resnet50'],
    ),
    # One folder: the same batch size, or else the first setting.
    (
        'sizes',
        0,
        'batch 64 is faster than batch 16: ratio 1.453 (1.446 to 1.459); batch 32 is faster than '
        'batch 16: ratio 1.151 (1.146 to 1.156).',
        ['baseline batch 16'],
    ),
    (
        'modes',
        0,
        'replicated batch 32 is slower than independent batch 32: ratio 0.833 (0.830 to 0.837); '
        'replicated batch 64 is slower than independent batch 64: ratio 0.833 (0.830 to 0.837).',
        [],
    ),
    (
        'shapes',
        0,
        '2*1+1 is faster than 1*1: ratio 2.010 (2.001 to 2.019); 2*1 is faster than 1*1: ratio '
        '2.000 (1.991 to 2.009).',
        [],
    ),
    # Speed-ups beside published ones: 1.26 there and 1.15 here, 1.40 and 1.45.
    (
        f'sizes --published=published.csv {GATE}',
        1,
        'batch 32 is slower than published: ratio 0.913 (0.909 to 0.918); batch 64 is faster than '
        'published: ratio 1.038 (1.033 to 1.042).',
        ['1.15       1.26', '1.45        1.4'],
    ),
    (
        'ups --published=published.csv',
        0,
        'batch 64 is slower than published: ratio 0.714 (0.711 to 0.718); batch 32 is slower than '
        'published: ratio 0.794 (0.790 to 0.797); 1 not published.',
        [],
    ),
    # What does not count is named, and fails a gate if it may be a slow run.
    (
        f'base partial {GATE}',
        1,
        'no difference is shown between base and partial: ratio 1.001 (0.996 to 1.006); 2 runs '
        'left out.',
        ['unknown: partial/untimed.json', 'out of memory', 'partial/failure.json: ', 'are gone'],
    ),
    (
        f'base torn {GATE}',
        1,
        'no difference is shown between base and torn: ratio 1.001 (0.996 to 1.006); 1 run left '
        'out.',
        ['torn/torn.json', 'JSON'],
    ),
    (
        f'base strangers {GATE}',
        0,
        'no difference is shown between base and strangers: ratio 1.001 (0.996 to 1.006); 1 run '
        'left out.',
        ['strangers/list.json', 'strangers/evaluation.json'],
    ),
    (
        f'base failures {GATE}',
        1,
        'nothing was compared: no run of failures has a throughput; 1 run left out.',
        ['the data are gone'],
    ),
    # Commands of other programs.
    (
        f'command_a command_b {GATE}',
        1,
        'command_b is slower than command_a: ratio 0.800 (0.796 to 0.804).',
        ['command python a.py -> python b.py', 'rates per second'],
    ),
    (
        'time_a time_b',
        0,
        'time_b is faster than time_a: ratio 2.000 (1.991 to 2.009).',
        ['20.0 s', '10.0 s', 'ratio above 1 is faster'],
    ),
    (
        'numbers_a numbers_b',
        0,
        'numbers_b is slower than numbers_a in 1 of 2 settings: ratio 0.800 (0.800 to 0.800) for '
        'tokens; no difference is shown in 1 (ratio 1.000).',
        ['warning: numbers_a tokens, numbers_a bus: a process is left'],
    ),
    ('base command_a', 0, 'command_a is slower than base: ratio 0.500 (0.498 to 0.502).', []),
    (
        f'command_hosts {HOSTS} {GATE}',
        1,
        'n2 is slower than the others: ratio 0.800 (0.796 to 0.804); 3 hosts agree within 0.44 %.',
        ['n2 (0.800)'],
    ),
    (
        f'command_b --against=command_a {GATE}',
        3,
        'nothing was compared: no run before this one; 1 earlier run left out: 1 with another '
        'command.',
        [],
    ),
    # Hosts.
    (f'hosts {HOSTS} {GATE}', 0, 'no host differs; 6 hosts agree within 2.1 %.', []),
    (
        f'one_slow {HOSTS} {GATE}',
        1,
        'n3 is slower than the others: ratio 0.800 (0.784 to 0.816); 5 hosts agree within 2.1 %.',
        ['n3 alone: governor performance -> powersave', 'n3 (0.800)'],
    ),
    (
        f'slow_in_one {HOSTS} {GATE}',
        1,
        'n3 is slower than the others in 1 of 2 settings: ratio 0.800 (0.784 to 0.816) for batch '
        '32; 5 hosts agree within 2.1 %.',
        ['n3 batch 32 (0.800)'],
    ),
    (f'two_hosts {HOSTS} {GATE}', 1, 'n2 is slower than n1: ratio 0.800 (0.782 to 0.818).', []),
    # A host is its own counterpart: n1 is as slow as before, n2 was repaired.
    (
        f'before after {GATE}',
        0,
        'after is faster than before in 1 of 3 settings: ratio 1.250 (1.222 to 1.278) on n2; no '
        'difference is shown in 2 (ratios 1.000 to 1.000).',
        [],
    ),
    # One machine stands against each of several.
    (
        'base two_hosts',
        0,
        'two_hosts is slower than base in 1 of 2 settings: ratio 0.806 (0.788 to 0.825) on n2; no '
        'difference is shown in 1 (ratio 1.008).',
        [],
    ),
    # Kinds of machines have no host in common.
    (
        f'containers hosts {GATE}',
        1,
        'nothing was compared: host is n0, n1, n2 and 3 more in hosts and node1, node2, node3 in '
        'containers (to compare kinds of machines give one machine of each, or use '
        '--across=hosts).',
        [],
    ),
    # The folder names a container.
    (
        f'containers {HOSTS} {GATE}',
        1,
        'node2 is slower than the others: ratio 0.700 (0.697 to 0.703); 2 hosts agree within 0.40 '
        '%.',
        ['node2 (0.700)'],
    ),
    (
        f'one_name {HOSTS} {GATE}',
        3,
        '9 runs of one host, ubuntu; if these are several machines, put each into a folder.',
        ['ubuntu'],
    ),
    (
        f'lost {HOSTS} {GATE}',
        1,
        'no rate of n9; no host differs; 6 hosts agree within 2.1 %.',
        ['n9', 'ssh cannot connect'],
    ),
    # With --deterministic, equal machines compute equal losses.
    (
        f'losses {HOSTS} {GATE}',
        1,
        'no host differs; 6 hosts agree within 0.41 %; n3 computes other losses than 5 others, '
        'from step 15 on; the losses of n0, n1, n2 and 2 more agree bit for bit.',
        ['wrong: n3 computes other losses than 5 others'],
    ),
    (
        f'losses_of_two {HOSTS} {SAME_LOSSES}',
        1,
        'no difference is shown between n1 and n2: ratio 1.000 (0.995 to 1.005); n2 computes '
        'other losses than n1, from step 15 on.',
        ['--same_losses: n2 computes'],
    ),
    (
        f'losses_once {HOSTS} {SAME_LOSSES}',
        1,
        'nothing was compared: too few runs; n2 computes other losses than n1, from step 15 on.',
        ['--same_losses: n2 computes'],
    ),
    (
        f'losses_at_times {HOSTS} {SAME_LOSSES}',
        1,
        'no host differs; 3 hosts agree within 0.40 %; n2 computes different losses from run to '
        'run, from step 30 on; the losses of n1, n3 agree bit for bit.',
        ['n2 computes different losses'],
    ),
    (
        f'equal_losses {SAME_LOSSES}',
        0,
        'no difference is shown between n1 and n2: ratio 1.000 (0.995 to 1.005); the losses of '
        'n1, n2 agree bit for bit.',
        [],
    ),
    (
        f'other_processors {HOSTS} {SAME_LOSSES}',
        3,
        'no difference is shown between n1 and n2: ratio 1.000 (0.995 to 1.005); losses were not '
        'compared, since these differ: cpu_model.',
        ['cannot tell: losses were not compared'],
    ),
    (
        f'right wrong {SAME_LOSSES} {GATE}',
        1,
        'no difference is shown between right and wrong: ratio 1.000 (0.995 to 1.005); wrong '
        'computes other losses than right, from step 15 on.',
        ['--same_losses: wrong computes'],
    ),
    (
        f'later_steps {SAME_LOSSES}',
        3,
        'no difference is shown between n1 and n2: ratio 1.000 (0.995 to 1.005).',
        ['cannot tell'],
    ),
    (
        f'no_losses {SAME_LOSSES}',
        3,
        'no difference is shown between n1 and n2: ratio 1.000 (0.995 to 1.005).',
        ['cannot tell'],
    ),
    (
        f'wrong_at_times right {SAME_LOSSES}',
        1,
        'no difference is shown between wrong_at_times and right: ratio 1.000 (0.995 to 1.005); '
        'wrong_at_times computes different losses from run to run, from step 15 on.',
        ['--same_losses: wrong_at_times computes'],
    ),
    (
        f'base slow {SAME_LOSSES}',
        3,
        'slow is slower than base: ratio 0.800 (0.796 to 0.804).',
        ['no two equal machines have the same settings with --deterministic'],
    ),
    (
        f'sizes_a sizes_b {SAME_LOSSES}',
        0,
        'against sizes_a: no difference is shown in 2 (ratios 1.000 to 1.000); the losses of '
        'sizes_a batch 16, sizes_b batch 16 agree bit for bit; the losses of sizes_a batch 32, '
        'sizes_b batch 32 agree bit for bit.',
        [],
    ),
    (
        f'few {HOSTS} {GATE}',
        3,
        'no host differs; 6 hosts agree within 2.1 %; 1 too few runs.',
        ['n9: too few runs'],
    ),
    (
        f'two {HOSTS} {GATE}',
        3,
        'nothing was compared: too few runs.',
        ['cannot tell: alpha: too few runs'],
    ),
    (
        f'unsteady {HOSTS} {GATE}',
        3,
        'no host differs; 6 hosts agree within 2.1 %; unsteady: n9.',
        ['n9: 0.336 is not excluded'],
    ),
    ('pairs', 0, "node4's link is slow: 0.20 of the others' (4 of 4 pairs).", ['MB/s with']),
    (
        f'pairs {HOSTS} {GATE}',
        1,
        "node4's link is slow: 0.20 of the others' (4 of 4 pairs).",
        ['node1 with node4 (0.200)'],
    ),
    (
        'pairs one_slow',
        0,
        "node4's link is slow: 0.20 of the others' (4 of 4 pairs); n3 is slower than the others: "
        'ratio 0.800 (0.784 to 0.816); 5 hosts agree within 2.1 %.',
        ['node1 with node4'],
    ),
    # Earlier runs.
    (
        f'as_before {BEFORE} {GATE}',
        0,
        'as_before is as in the 10 runs before: ratio 1.000 (0.958 to 1.046).',
        [],
    ),
    (
        f'slower {BEFORE} {GATE}',
        1,
        'slower is slower than the 10 runs before: ratio 0.792 (0.759 to 0.829).',
        ['slower (0.792)'],
    ),
    (
        f'faster {BEFORE} {GATE}',
        0,
        'faster is faster than the 10 runs before: ratio 1.188 (1.138 to 1.243).',
        [],
    ),
    (
        f'slower --against=two {GATE}',
        3,
        'nothing was compared: too few runs before: 2 of 3.',
        ['cannot tell: slower: too few runs before: 2 of 3'],
    ),
    (
        f'slower --against=noisy {GATE}',
        3,
        'runs differ too much for a verdict between the 3 runs before and slower: ratio 1.143.',
        ['unsteady', 'the runs before differ too much'],
    ),
    (
        f'faster --against=torn {GATE}',
        1,
        'faster is faster than the 3 runs before: ratio 1.196 (1.123 to 1.280); 1 run left out.',
        ['unknown: torn/torn.json'],
    ),
    # The shards in --data_dir count, not its path.
    (
        f'job --against=jobs {GATE}',
        1,
        'job is slower than the 10 runs before: ratio 0.495 (0.474 to 0.518).',
        ['job (0.495)'],
    ),
    *(
        (
            f'{folder} --against={earlier} {GATE}',
            3,
            f'nothing was compared: no run before this one; 12 earlier runs left out: 12 with '
            f'another {name}.',
            ['cannot tell', f'12 with another {name}'],
        )
        for folder, earlier, name in (
            ('other_data', 'jobs', 'data_sha256'),
            ('limited', 'history', 'cgroup_cpus'),
            ('other_size', 'history', 'batch_size'),
        )
    ),
    # Energy, and titles that tell sides apart.
    (
        'thirsty frugal',
        0,
        'no difference is shown between thirsty and frugal: ratio 1.000 (0.995 to 1.005).',
        ['energy', '0.70'],
    ),
    *(
        (argv, 0, f'{slow} is slower than {base}: ratio 0.800 (0.796 to 0.804).', [])
        for argv, base, slow in (
            ('base/ ./slow', 'base', 'slow'),
            ('x/results y/results', 'x', 'y'),
            ('deep/xeon-avx512-2-cores deep/epyc-avx512-2-cores', 'xeon', 'epyc'),
        )
    ),
    # Logs of the original program.
    (
        'new.log old.log',
        0,
        'too few runs for a verdict between new.log and old.log: ratio 2.000.',
        [],
    ),
    (
        'old.log base',
        0,
        'too few runs for a verdict between old.log and base: ratio 0.626.',
        ['versions.tensorflow 2.20 -> 2.21.0'],
    ),
    (
        'new.log half.log',
        0,
        'too few runs for a verdict between new.log and half.log: ratio 1.000.',
        ['half.log', 'total'],
    ),
    (
        'half.log new.log',
        0,
        'too few runs for a verdict between half.log and new.log: ratio 1.000.',
        ['new.log: half.log is incomplete: ', 'total'],
    ),
    # With prefixes that begin like JSON.
    (
        'new.log ranks.log',
        0,
        'too few runs for a verdict between new.log and ranks.log: ratio 1.000.',
        [],
    ),
)


@pytest.mark.parametrize(('argv', 'code', 'sentence', 'facts'), ANSWERS)
def test_the_answer_is_the_first_line_in_each_format(argv, code, sentence, facts):
    out, err = run_main('compare', *argv.split(), code=code)
    paragraph, *rest = out.split('\n\n')
    first, _, rest_of_paragraph = paragraph.partition('\n')
    assert first == sentence
    text = '\n'.join([rest_of_paragraph, *rest, err])
    assert not [fact for fact in facts if fact not in text], text
    document = document_of(argv, code)
    assert document['answer'] == sentence
    markdown, _ = run_main('compare', *argv.split(), '--format=markdown', code=code)
    assert re.sub(r'\\(.)', r'\1', markdown.splitlines()[0]) == sentence
    # CSV has the rows of JSON with the same keys, which do not depend on what is asked.
    table, _ = run_main('compare', *argv.split(), '--format=csv', code=code)
    rows = [*csv.DictReader(io.StringIO(table))]
    assert [[*row] for row in rows] == [[*row] for row in document['rows']]
    assert {*document_of('base slow')['rows'][0]} == {*rows[0]}


# ---- numbers, order, notes -----------------------------------------------------------------------


def test_json_has_all_numbers_of_each_row():
    rows = document_of('sizes sizes_of_xla')['rows']
    facts = [(row['who'], row['setting'].get('batch_size'), row['remark']) for row in rows]
    assert facts == [
        ('sizes_of_xla', 64, None),
        ('sizes_of_xla', 32, None),
        ('sizes_of_xla', 128, 'only in sizes_of_xla'),
        ('sizes', 16, 'only in sizes'),
        ('', None, None),
    ]
    pair, *_, mean = rows
    other = pair['reference']
    assert (other['name'], len(other['files']), len(pair['files'])) == ('sizes', 3, 3)
    assert pair['interval'][0] < pair['rate'] < pair['interval'][1]
    assert pair['ratio'] == pytest.approx(pair['rate'] / other['rate'])
    assert pair['differences'] == {'xla': [False, True]}
    assert mean['ratio'] == pytest.approx(np.sqrt(pair['ratio'] * rows[1]['ratio']))
    for row in (pair, mean):
        low, high = row['ratio_interval']
        assert 1 < low < row['ratio'] < high
    assert [row['is_significant'] for row in rows] == [True, True, False, False, True]


def test_rows_are_sorted_by_the_size_of_a_significant_difference_or_by_their_price():
    rows = document_of('ups downs')['rows']
    assert [row['setting'].get('batch_size') for row in rows] == [16, 64, 8, 32, None]
    # Numbers of different kinds have no mean.
    assert [row['label'] for row in document_of('numbers_a numbers_b')['rows']] == ['tokens', 'bus']
    prices = '--price_per_hour=base=1,slow=0.5,same=0.9'
    costs = [
        (row['who'], row['cost_ratio']) for row in document_of(f'base slow same {prices}')['rows']
    ]
    assert costs == [('slow', pytest.approx(0.625)), ('same', pytest.approx(0.9 / 1.001))]
    # A sweep keeps the baseline on top.
    assert document_of('sizes')['rows'][0]['verdict'] == 'baseline'


def test_a_long_table_of_hosts_has_the_most_different_ones_and_counts_the_rest():
    lines = run_main('compare', 'many_hosts', HOSTS)[0].splitlines()
    assert sum(line.startswith('n') for line in lines[1:]) == 12
    assert max(map(len, lines)) <= 80
    assert any('4 more' in line and '--format=json' in line for line in lines)
    assert len(document_of(f'many_hosts {HOSTS}')['rows']) == 16


def test_a_run_that_hardly_differs_is_not_named():
    assert not document_of('base hardly')['notes']


def test_at_most_six_lines_follow_the_table_and_json_has_all():
    notes = document_of('base noted')['notes']
    assert len(notes) > 6
    lines = run_main('compare', 'base', 'noted')[0].splitlines()
    assert lines[-6:-1] == notes[:5]
    assert f'{len(notes) - 5} more notes' in lines[-1]


def test_runs_of_the_published_table_are_held_against_it(tmp_path):
    with (ROOT / 'tf_cnn/lab/seed_table.csv').open() as file:
        for entry in csv.DictReader(file):
            workers, _, devices = entry['shape'].partition('*')
            devices, _, servers = devices.partition('+')
            flags = {name: entry[name] for name in ('variable_update', 'batch_size')}
            flags |= {'batch_size': int(flags['batch_size']), 'num_gpus': int(devices)}
            cluster = {'num_workers': int(workers), 'num_ps': int(servers or 0)}
            rate = float(entry['images_per_second'])
            write_runs(tmp_path / 'all', rate, flags=flags, cluster=cluster)
    [base, *rows] = json.loads(run_main('compare', tmp_path / 'all', '--format=json')[0])['rows']
    assert (len(rows), base['verdict']) == (41, 'baseline')
    for row in rows:
        assert row['ratio'] == pytest.approx(1, abs=0.05)
        assert row['speed_up'] == pytest.approx(row['published_speed_up'] * row['ratio'])


def test_text_of_a_result_cannot_control_the_terminal():
    out, _ = run_main('compare', 'base', 'noted')
    assert 'fake line' in out
    assert '\x1b' not in out
    assert not any(line.startswith('fake') for line in out.splitlines())


@pytest.mark.parametrize('name', ['slow/0.json', 'new.log'])
def test_standard_input_is_a_result_or_a_log(name, monkeypatch):
    expected = document_of(f'base {name}')['rows'][0]
    for argv, ratio in (('base -', expected['ratio']), ('- base', 1 / expected['ratio'])):
        with open(name) as text:
            monkeypatch.setattr('sys.stdin', text)
            [row] = document_of(argv)['rows']
        assert row['ratio'] == pytest.approx(ratio)
        assert 'standard input' in [*row['files'], *row['reference']['files']]


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_reference_folders_make_the_table_of_the_docs_and_fit_80_columns(monkeypatch):
    names = ('epyc-avx512-bf16', 'xeon-avx512')
    folders = [str(ROOT / f'benchmarks/reference/{name}-2-cores') for name in names]
    paragraph, table, *_ = run_main('compare', *folders)[0].split('\n\n')
    monkeypatch.setenv('TERM', 'dumb')
    monkeypatch.setenv('COLUMNS', '80')
    monkeypatch.setattr('sys.stdout', terminal := Terminal())
    assert tf_cnn_benchmarks.main(['compare', *folders]) == 0
    assert max(map(len, terminal.getvalue().split('\n\n')[1].splitlines())) == 80
    pages = [page.read_text() for page in (ROOT / 'docs').glob('*.md')]
    lines = ''.join(f'    {line}\n' for line in table.splitlines())
    answer = paragraph.splitlines()[0]
    assert any(lines in page and answer in ' '.join(page.split()) for page in pages)
