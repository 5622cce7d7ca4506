"""What --rate, --secs and --record read in the output of a command: whole numbers, or a refusal."""

import pytest

from tests.support.outputs import check_line, failed, refused
from tf_cnn.lab.output_patterns import check_patterns, read_numbers, read_records

pytestmark = pytest.mark.unit

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
