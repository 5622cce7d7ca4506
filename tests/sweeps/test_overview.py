"""The table of a sweep."""

import pytest

from comparison.intervals import estimate_runs
from sweeps.overview import SweepRow, format_results

pytestmark = pytest.mark.unit


def test_a_table_has_speed_ups_against_the_first_row() -> None:
    rows = [
        SweepRow({'variable_update': 'replicated', 'batch_size': '32', 'shape': '1*1'}, estimate_runs([100.0])),
        SweepRow(
            {'variable_update': 'parameter_server', 'batch_size': '32', 'shape': '2*1+1'}, estimate_runs([154.321])
        ),
    ]
    assert format_results(('variable_update', 'batch_size', 'shape'), rows).splitlines() == [
        '| variable_update  | batch size | W*G+P | images/sec | speed-up |',
        '| ---------------- | ---------- | ----- | ---------: | -------: |',
        '| replicated       | 32         | 1*1   |     100.00 |     1.00 |',
        '| parameter_server | 32         | 2*1+1 |     154.32 |     1.54 |',
    ]


def test_repeats_have_an_interval_and_failures_a_reason() -> None:
    rows = [
        SweepRow({'shape': '1*1'}, None, 'failed: a | b'),
        SweepRow({'shape': '1*2'}, estimate_runs([90.0, 100.0, 110.0])),
        SweepRow({'shape': '1*4'}, estimate_runs([200.0, 200.0]), 'failed: c'),
        SweepRow({'shape': '1*8'}, estimate_runs([50.0, 100.0, 200.0])),
    ]
    lines = format_results(('shape',), rows).splitlines()
    cells = [[cell.strip() for cell in line.replace('\\|', '/').strip('|').split('|')] for line in lines]
    assert cells[0] == ['W*G+P', 'images/sec', '95 % interval', 'runs', 'speed-up', 'status']
    assert cells[2:] == [
        ['1*1', '', '', '0', '', 'failed: a / b'],
        # 3 / (1/90 + 1/100 + 1/110); the seconds have a relative standard error of 0.058, times Student's t, 4.303.
        ['1*2', '99.33', '77.39 to 127.50', '3', '1.00', 'ok'],
        ['1*4', '200.00', '', '2', '2.01', 'failed: c'],
        ['1*8', '85.71', 'too disturbed', '3', '0.86', 'ok'],
    ]
    assert len({len(line) for line in lines}) == 1
