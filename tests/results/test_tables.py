"""A table of results is printed as text, Markdown, CSV and JSON; the lines that name the machine
and that end a run, whole: people read them, scripts may.
"""

import io
import json
import math
import re
from operator import itemgetter
from typing import Any

import pytest

from tests.support.sample_results import evaluations, record_of, sample_document
from tf_cnn.results import summary
from tf_cnn.results.summary import format_machine
from tf_cnn.results.tables import Column, Table, abbreviate, as_csv, escape_unprintable, print_table

pytestmark = pytest.mark.unit


COLUMNS = (Column('name', itemgetter(0), wraps=True), Column('size', itemgetter(1), is_number=True))


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_cell_that_wraps_has_several_lines_only_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '30')
    table = Table(COLUMNS, [('one two three four five six', '1,000')])
    assert table.as_text(io.StringIO()).splitlines() == [
        'name                          size',
        '─' * 34,
        'one two three four five six  1,000',
    ]
    assert table.as_text(Terminal()).splitlines()[2:] == [
        f'one two three four five{" " * 2}1,000',
        'six',
    ]


def test_the_last_columns_wrap_first_and_a_pipe_has_100_columns():
    columns = (*COLUMNS, Column('verdict', itemgetter(2), wraps=True))
    row = ('long ' * 12, '1,000', 'slower, ' * 6)
    lines = Table(columns, [row]).as_text(io.StringIO()).splitlines()
    assert len(lines[1]) == 100
    assert ' '.join(row[0].split()) in lines[2]
    assert lines[3].strip().startswith('slower')


def test_rows_become_lists_where_the_table_does_not_fit(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('COLUMNS', '12')
    columns = (*COLUMNS, Column('rate', itemgetter(2), is_number=True))
    table = Table(columns, [('a', '1', '2.0'), ('b', '', '3.0')])
    assert table.as_text(Terminal()).splitlines() == [
        'name: a',
        '    size: 1',
        '    rate: 2.0',
        'name: b',
        '    rate: 3.0',
    ]


@pytest.mark.parametrize('terminal', ['xterm', 'dumb', 'unknown'])
@pytest.mark.parametrize('columns', ['10', '40', '60', '93', '110'])
def test_every_terminal_shows_all_words_of_every_column(terminal, columns, monkeypatch):
    monkeypatch.setenv('TERM', terminal)
    monkeypatch.setenv('COLUMNS', columns)
    numbers = [Column(f'number {i}', itemgetter(i + 2), is_number=True) for i in range(6)]
    verdict = Column('verdict', itemgetter(8), wraps=True)
    row = ('a long name', *'1234567', 'baseline of all')
    words = Table((*COLUMNS, *numbers, verdict), [row]).as_text(Terminal()).split()
    assert {*' '.join(row).split()} <= {*words}


def test_a_table_of_markdown_is_aligned_and_escapes_its_strokes():
    table = Table(COLUMNS, [('a | b', '1'), ('cd', '20')])
    assert table.as_markdown().splitlines() == [
        '| name   | size |',
        '| ------ | ---: |',
        '| a \\| b |    1 |',
        '| cd     |   20 |',
    ]


def test_text_of_a_document_stays_text_in_markdown(capsys):
    for text in (
        '<img src=x onerror=alert(1)>',
        '[a](javascript:b)',
        '![a](http://b/c.png)',
        '`a`',
        '&lt;',
        'a\\b',
        'a|b',
    ):
        print_table(Table(COLUMNS, [(text, '1')]), 'markdown', {}, [f'note: {text}'])
        _, _, row, _, note = capsys.readouterr().out.splitlines()
        cell = row.removeprefix('| ').partition(' |')[0].rstrip()
        for written in (cell, note.removeprefix('- note: ')):
            # CommonMark 0.31, section 2.4: a backslash makes punctuation a plain character.
            assert re.sub(r'\\([\\`\[\]<&|])', r'\1', written) == text
            assert not re.search(r'(?<!\\)(\\\\)*[`\[\]<&|]', written)


def test_one_list_of_columns_makes_the_cells_and_the_objects_of_rows():
    columns = (
        Column('size', itemgetter(0), 'size', lambda row: f'{row[0]:,}', is_number=True),
        Column('', itemgetter(1), 'bounds'),
        Column('remark', itemgetter(2)),
    )
    table = Table(columns, [(1000, (1.5, math.nan), 'a'), (2, None, None)])
    assert [column.title for column in table.columns] == ['size', 'remark']
    assert table.rows == [('1,000', 'a'), ('2', '')]
    assert table.objects == [{'size': 1000, 'bounds': [1.5, None]}, {'size': 2, 'bounds': None}]


def test_csv_has_json_in_cells_that_are_no_number_or_text():
    rows = [
        {'name': 'a,b', 'flags': {'x': 1}, 'ok': True, 'none': None},
        {'name': 'c', 'flags': [], 'ok': False, 'none': 1.5},
    ]
    assert as_csv(rows).splitlines() == [
        'name,flags,ok,none',
        '"a,b","{""x"": 1}",true,',
        'c,[],false,1.5',
    ]


def test_results_are_printed_in_each_format(capsys):
    document = {'rows': [{'name': 'a', 'size': 1}]}
    for form, text in (
        ('text', 'above\n\nname  size\n──────────\na        1\n\nfirst\nsecond\n'),
        (
            'markdown',
            'above\n\n| name | size |\n| ---- | ---: |\n| a    |    1 |\n\n- first\n- second\n',
        ),
        ('csv', 'name,size\na,1\n'),
        ('json', f'{json.dumps(document, indent=2)}\n'),
    ):
        print_table(Table(COLUMNS, [('a', '1')]), form, document, ['first', 'second'], ['above'])
        assert capsys.readouterr().out == text


def test_results_without_a_row_print_the_notes_or_nothing(capsys):
    for form, text in (('text', 'first\n'), ('csv', '')):
        print_table(Table(COLUMNS, []), form, {'rows': []}, ['first'])
        assert capsys.readouterr().out == text


def test_text_from_files_cannot_change_the_terminal():
    assert escape_unprintable('a\x1b[31m\nb ü') == 'a\\x1b[31m\\nb ü'


def test_three_of_many_names_are_shown():
    assert abbreviate(['a', 'b', 'c']) == 'a, b, c'
    assert abbreviate(list('abcde')) == 'a, b, c and 2 more'


# ---- lines ---------------------------------------------------------------------------------------


def format_summary(document: dict[str, Any]) -> list[str]:
    return summary.format_summary(record_of(document))


def test_a_summary_of_everything():
    document = sample_document(num_steps=100)
    percentiles = {'median': 0.0342, 'p90': 0.03504, 'p95': 0.0362, 'p99': 0.0413}
    document['statistics']['step_seconds'] |= percentiles
    document['throughput'] |= {
        'images_per_second': 86.2,
        'images_per_second_of_steps': 93.5,
        'between_seconds': {'printing': 0.21, 'checkpoint': 3.1, 'evaluation': 60.0, 'other': 0.0},
    }
    document['input'] = {'wait_seconds': 1.234, 'wait_share': 0.0361}
    document['compute'] |= {
        'flops_per_second': 7.95e10,
        'peak_flops_per_second': 1.77e11,
        'share_of_peak': 0.449,
    }
    document['memory'] = {
        'host_peak_bytes': 912_345_678,
        'device_peak_bytes': {'/gpu:0': 11_200_000_000},
    }
    document['energy'] = {'source': 'RAPL', 'joules': 1234.0, 'joules_per_image': 0.3857}
    document['noise'] |= {
        'gpu_clock_share': 0.934,
        'gpu_lowest_clock_share': 0.88,
        'gpu_heat_share': 0.0,
        'gpu_power_cap_share': 0.4,
        'gpu_max_celsius': 71,
    }
    assert format_summary(document) == [
        'steps: median 34.2 ms, p90 35.04, p95 36.2, p99 41.3 (100 steps)',
        'rate: 93.50 images/sec within the steps, 86.20 in total; between the steps: checkpoint '
        '3.1 s, printing 0.21 s',
        'input: steps waited 1.23 s (3.6 %)',
        'compute: 79.5 GFLOP/s, 44.9 % of the measured peak of 177 GFLOP/s (matrix products, fp32)',
        'threads: 2 threads within an operation, 2 operations at a time (one tower has all cores)',
        'memory: peak host 912 MB, /gpu:0 11.2 GB',
        'energy: 1.23 kJ during the timed steps, 0.386 J per image (RAPL)',
        'GPUs: clock 93 % of its maximum, lowest 88 %, up to 71 °C, held down by its power limit '
        '40 % of the time',
    ]


def test_the_time_to_an_accuracy_ends_with_the_first_evaluation_that_reached_it():
    document = sample_document(evaluations=evaluations(0.5, 0.98, 0.97, 0.99))
    flags, steps = document['command']['flags'], document['workers'][0]['steps']
    flags['stop_at_top_1_accuracy'] = 0.98
    reached = 'accuracy: top-1 0.98 reached at step 20, 20 s after the first step began'
    assert format_summary(document)[-1] == reached
    flags['stop_at_top_1_accuracy'] = 0.995
    best = 'accuracy: top-1 0.995 not reached; best 0.9900, step 40'
    assert format_summary(document)[-1] == f'{best}, 40 s after the first step began'
    # A run that goes on from step 100 does not know how long the steps before took.
    steps['global_step'] = [100 + step for step in steps['global_step']]
    assert format_summary(document)[-1] == best


def test_unknown_values_are_left_out():
    document = sample_document(seconds=[0.32])
    percentiles = dict.fromkeys(('p90', 'p95', 'p99'))
    document['statistics']['step_seconds'] |= percentiles
    document['compute'] = dict.fromkeys(document['compute']) | {'flops_per_second': 999.9e9}
    document['memory'] = {'host_peak_bytes': None, 'device_peak_bytes': {}}
    document['machine']['threads']['reason'] = None
    # Equal rates are printed once.
    document['throughput'] |= {'images_per_second': 100.0, 'images_per_second_of_steps': 100.9}
    assert format_summary(document) == ['steps: median 320 ms (1 step)', 'compute: 1 TFLOP/s']


def test_a_few_steps_have_ends_instead_of_percentiles():
    document = sample_document(seconds=[0.3, 0.1, 0.2])
    (steps, *_) = format_summary(document)
    assert steps == 'steps: median 200 ms, least 100, most 300 (3 steps)'


def test_a_machine_without_gpus_has_one_line():
    machine = sample_document(machine={'cpu_model': 'AMD EPYC 7B13'})['machine']
    assert format_machine(machine) == ['AMD EPYC 7B13, 2 cores; TensorFlow 2.21.0, Python 3.11.7']
    machine |= {'num_cores': 64, 'cgroup_cpus': 1.5}
    assert format_machine(machine)[0].startswith('AMD EPYC 7B13, 1.5 of 64 cores; ')


def test_gpus_have_a_line_with_their_software():
    machine = sample_document()['machine']
    machine['versions'] |= {'driver': '550.54', 'cuda': '12.5', 'cudnn': '9.3'}
    a100 = {'name': 'NVIDIA A100', 'memory_bytes': 40 * 2**30, 'compute_capability': '8.0'}
    software = 'driver 550.54, CUDA 12.5, cuDNN 9.3'
    machine['gpus'] = [a100] * 8
    line = f'NVIDIA A100 x 8, 40 GiB each, compute capability 8.0; {software}'
    assert format_machine(machine)[1] == line
    machine['gpus'] = [a100, {'name': 'Tesla T4', 'memory_bytes': None}]
    machine['versions'] |= {'cuda': None, 'cudnn': None}
    line = 'NVIDIA A100, 40 GiB, compute capability 8.0; Tesla T4; driver 550.54'
    assert format_machine(machine)[1] == line


def test_an_unknown_machine_has_no_line():
    assert format_machine({'cpu_model': None, 'num_cores': None, 'versions': {}, 'gpus': []}) == []


def test_a_cluster_shows_how_much_of_a_step_is_exchange_and_waiting():
    document = sample_document(seconds=[0.1] * 50, cluster={'num_workers': 2})
    for worker, seconds in zip(document['workers'], ([0.04, 0.06, 0.14], [0.1] * 3), strict=True):
        worker['alone'] = {worker['task']: {'steps': [2] * 3, 'seconds': seconds}}
    (line,) = (line for line in format_summary(document) if line.startswith('alone'))
    of_step = '60 % of a step is exchange and waiting'
    assert (
        line == f'alone: a worker computes 40 ms a step (median of 2, none stands out); {of_step}'
    )
    document['warnings'] = [{'code': 'slow_worker', 'text': 'worker 1 computes 2 times as long'}]
    assert not [line for line in format_summary(document) if line.startswith('alone')]
