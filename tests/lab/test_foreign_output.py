"""What is read in the output of other programs: logs of the original as results, and whole numbers,
or a refusal, by --rate, --secs and --record.
"""

import re

import pytest

from tests.support.outputs import check_line, failed, refused
from tf_cnn.lab.original_logs import Log, read_log
from tf_cnn.lab.output_patterns import check_patterns, read_numbers, read_records
from tf_cnn.lab.runs import flag_differences, non_default_settings, settings_of
from tf_cnn.results.console import IN_TF32

pytestmark = pytest.mark.unit


BANNER = """\
TensorFlow:  1.13
Model:       resnet50
Dataset:     imagenet (synthetic)
Mode:        BenchmarkMode.TRAIN
SingleSess:  False
Batch size:  128 global
             32 per device
Num batches: 100
Num epochs:  0.01
Devices:     ['/gpu:0', '/gpu:1']
NUMA bind:   False
Data format: NCHW
Optimizer:   sgd
Variables:   parameter_server
Sync:        True
==========
Generating training model
Running warm up
Done warm up
Step\tImg/sec\ttotal_loss
"""
STEPS = """\
1\timages/sec: 95.2 +/- 0.0 (jitter = 0.0)\t7.972
10\timages/sec: 95.9 +/- 0.2 (jitter = 0.5)\t7.650
20\timages/sec: 95.8 +/- 0.1 (jitter = 0.4)\t7.427
"""
TOTAL = f'{"-" * 64}\ntotal images/sec: 95.83\n{"-" * 64}\n'
LOG = BANNER + STEPS + TOTAL


def read(text: str) -> Log:
    return read_log(text, 'run.log')


def test_a_log_of_the_original_is_read_as_a_result():
    record = read(LOG)
    assert record.is_complete
    assert (record.shape, record.images_per_second) == ('2*2', 95.83)
    assert record.workload == {
        'model': 'resnet50',
        'data_set': 'imagenet',
        'is_synthetic': True,
        'image_size': None,
        'role': 'training',
    }
    settings = settings_of(record)
    values = [settings[name] for name in ('batch_size', 'data_format', 'device')]
    assert values == [32, 'NCHW', 'gpu']
    assert record.machine['versions'] == {'tensorflow': '1.13'}
    assert dict(non_default_settings(record))['variable_update'] == 'parameter_server'
    assert 'tf32' not in settings


def test_data_format_and_precision_of_this_program_are_read():
    for text, expected in (
        ('NHWC (fp16 on GPUs of compute capability 8.0)\nPrecision: fp16', ('NHWC', 'fp16', None)),
        (f'NCHW (fp32 on GPUs)\nPrecision:   fp32{IN_TF32}', ('NCHW', 'fp32', True)),
    ):
        settings = settings_of(read(LOG.replace('NCHW', text)))
        names = ('data_format', 'precision', 'tf32')
        assert tuple(settings.get(name) for name in names) == expected


def test_staged_variables_and_the_usual_sum_are_read():
    staged = LOG.replace('Sync:        True', 'Sync:        True\nStaged vars: True')
    replicated = LOG.replace('Sync:  ', 'AllReduce:   None\nSync:  ')
    assert flag_differences([read(LOG), read(replicated)]) == {}
    assert flag_differences([read(LOG), read(staged)]) == {'staged_vars': (False, True)}


@pytest.mark.parametrize(
    ('name', 'model'),
    [
        ('lenet5', 'lenet'),
        ('official_resnet_50_v1', 'official_resnet50'),
        ('official_resnet_50_v2', 'official_resnet50_v2'),
    ],
)
def test_models_that_the_banner_of_the_original_names_otherwise_are_known(name, model):
    log = read(LOG.replace('resnet50', name))
    assert (log.workload['model'], log.flags['model']) == (model, model)


def test_a_log_is_read_with_any_text_around_its_lines():
    expected = read(LOG)
    for name, pattern, replacement in (
        ('crlf', '\n', '\r\n'),
        ('progress', '\n', '\r 10%|#\r'),
        ('spaces', '\t', '  '),
        ('worker', '(?m)^', 'worker 0 | '),
        ('mpirun', '(?m)^', '[1,0]<stdout>:'),
        ('absl', '(?m)^', 'I0504 10:00:00.123 140 benchmark_cnn.py:1824] '),
        ('kubectl', '(?m)^', '2019-05-04T10:00:00.123456789Z stdout F '),
        ('pods', '(?m)^', '[pod/bench-worker-0/tensorflow] '),
        ('compose', '(?m)^', 'bench-1  | '),
        ('ts', '(?m)^', 'May 04 10:00:00 '),
        ('journalctl', '(?m)^', 'May 04 10:00:00 host7 python3[4711]: '),
        ('srun', '(?m)^', '0: '),
        ('numbered', '(?m)^', '12:'),
        ('stderr', '\n', '\n2019-05-04 10:00:00: I tensorflow/core: 12 devices, 3 images\n'),
        ('lscpu', r'\A', 'CPU family:  6\nModel:       85\nModel name:  a processor\n'),
        ('servers', r'\A', 'ps 0 | Running parameter server\n'),
        ('mixed ranks', r'(.*)\n', r'worker 0 | \1\r\nworker 1 | \1\r\n'),
        ('ranks in turn', r'(?s)\A(.*)\Z', r'\1\1'),
    ):
        result = read(re.sub(pattern, replacement, LOG))
        assert result.workload == expected.workload, name
        assert non_default_settings(result) == non_default_settings(expected), name
        assert result.images_per_second == expected.images_per_second, name
        assert result.shape == '2*2', name


def without(*labels: str) -> str:
    return ''.join(line for line in BANNER.splitlines(True) if not line.startswith(labels))


def test_runs_of_two_models_in_one_log_are_refused():
    with refused('run.log', 'several runs'):
        read(LOG + LOG.replace('resnet50', 'vgg16'))


def test_a_log_without_its_total_is_incomplete_and_has_the_rate_of_its_last_step():
    record = read(BANNER + STEPS)
    assert not record.is_complete
    assert 'total' in str(record.reason)
    assert record.images_per_second == 95.8


def test_text_without_rates_is_refused():
    with refused('run.log'):
        read('Model: none\nnothing was measured\n')


# ---- commands ------------------------------------------------------------------------------------


USUAL, DIGITS = r'rate: (\S+)', r'rate: ([\d.]+)'


@pytest.mark.parametrize(
    ('pattern', 'output', 'expected'),
    [
        (USUAL, 'rate: 950', 950),
        (USUAL, 'rate: 1,950.25', 1950.25),
        (USUAL, 'rate: 1,234,567 images', 1234567),
        (USUAL, 'rate: 9.5e2', 950),
        (USUAL, 'rate: 1.05E+03\n', 1050),
        (USUAL, 'rate: .5', 0.5),
        (USUAL, 'rate: 1\nrate: 2\nrate: 3\n', 3),
        (DIGITS, 'rate: 950.5 tok/s', 950.5),
        (DIGITS, 'rate: 950, then the end', 950),
        (r'^(\d+) of', '12 of 20', 12),
        (r'(\S+)k tok/s', '1.5k tok/s', 1.5),
        (r'(\d+)ms', '20ms', 20),
        # What else the line of a failure names.
        (DIGITS, 'rate: 1,950.00', '1,950.00'),
        (DIGITS, 'rate: 1,0\n50.00', '1,0'),
        (DIGITS, 'rate: 9.5e2', '9.5e2'),
        (DIGITS, 'rate: 1.2k', '1.2k'),
        (r'(\d+)', 'rate: 1.05', '1.05'),
        (r'rate: (\d)', 'rate: 95', '95'),
        (r'(\d\d)$', 'rate: 195', '195'),
        (USUAL, 'rate: 1,95', '1,95'),
        (USUAL, 'rate: n/a', 'n/a'),
        (USUAL, 'rate: nan', 'nan'),
        (USUAL, 'rate: inf', 'inf'),
        (USUAL, 'rate: 0x10', '0x10'),
        (USUAL, 'rate: 1_000', '1_000'),
        (USUAL, 'rate: ٣', '٣'),
        (USUAL, 'rate: -5', '-5'),
        (USUAL, 'rate: 0', '0'),
        (USUAL, 'rate: 1e-308', '1e-308'),
        (USUAL, 'rate: 1e200', '1e200'),
        (USUAL, 'rate: 10 rate: 1,2', '1,2'),
        (r'rate: (\d+)?', 'rate: x', '--rate='),
        (USUAL, 'loss: 3', 'nothing'),
    ],
)
def test_the_last_number_is_taken_whole_or_refused_in_one_line(pattern, output, expected):
    if isinstance(expected, str):
        with failed(f'--rate={pattern}', expected):
            read_numbers('rate', [pattern], output)
    else:
        assert read_numbers('rate', [pattern], output)[0] == {'rate': expected}


def test_a_named_group_names_its_number_and_several_matches_are_counted():
    output = 'step 1: 10 tok/s, 2 GB/s\nstep 2: 12 tok/s, 3 GB/s\ntook 4 s\n'
    patterns = [r'(?P<tokens>\S+) tok/s, (?P<bus>\S+) GB/s']
    assert read_numbers('rate', patterns, output) == (
        {'tokens': 12, 'bus': 3},
        {'tokens': 2, 'bus': 2},
    )
    assert read_numbers('secs', [r'took (\S+) s'], output) == ({'seconds': 4}, {})
    assert read_records([r'step (?P<step>\d)'], output) == {'step': '2'}


@pytest.mark.parametrize(
    ('flag', 'patterns', 'facts'),
    [
        ('rate', [r'images/sec: \S+'], ['group']),
        ('rate', [r'(images)/sec: (\S+)'], ['group']),
        ('rate', [r'(?P<a>\S+) (\S+)'], ['group']),
        ('rate', [r'(\S*)'], ['every output']),
        ('secs', [r'sec: (\S+'], ['regular expression']),
        ('rate', [r'a (\S+)', r'b (\S+)'], ['(?P<']),
        ('rate', [r'a (?P<x>\S+)', r'b (?P<x>\S+)'], ['x']),
        ('record', [r'torch (\S+)'], ['named groups', '(?P<']),
    ],
)
def test_patterns_that_find_nothing_or_share_a_name_are_refused(flag, patterns, facts):
    with refused(f'--{flag}={patterns[-1]}', *facts) as caught:
        check_patterns({flag: patterns})
    check_line(caught.value)
