"""The bandwidths of measured exchanges, held against numbers computed by hand."""

from dataclasses import replace

import pytest

from commands.all_reduce import read_sizes, table_of
from scaling.exchanges import algorithm_bandwidth, bus_bandwidth, fit_line, link_bandwidth
from scaling.links import LinkRow
from tests.support.outputs import refused

# 8 MB in 0.5 s on 4 workers of 4 hosts.
ROW = LinkRow('collective', 'float32', 4, 4, 1, 0, 8_000_000, 1, 8_000_000, 0.5)


def test_bandwidths_are_those_of_nccls_tests() -> None:
    assert algorithm_bandwidth(ROW) == 16e6
    # 2 (n - 1) / n = 1.5.
    assert bus_bandwidth(ROW) == 24e6
    assert bus_bandwidth(replace(ROW, devices=2)) == 16e6 * 2 * 7 / 8
    assert bus_bandwidth(replace(ROW, workers=1, hosts=1)) is None


def test_the_busiest_link_carries_what_its_exchange_sends_over_it() -> None:
    assert link_bandwidth(ROW) == pytest.approx(24e6)
    # Three workers of other hosts send to the server and receive from it, one after the other.
    servers = replace(ROW, exchange='parameter_servers', servers=1)
    assert link_bandwidth(servers) == pytest.approx(2 * 3 * 16e6)
    assert link_bandwidth(replace(ROW, hosts=1)) is None
    # All four are on other hosts than the server; one alone fills its link once in each direction.
    assert link_bandwidth(replace(servers, hosts=5, server_hosts=1)) == pytest.approx(2 * 4 * 16e6)
    assert link_bandwidth(replace(servers, workers=1, hosts=2, server_hosts=1)) == pytest.approx(2 * 16e6)


def test_latency_and_rate_are_those_of_a_line() -> None:
    rows = [replace(ROW, bytes=size, seconds=2e-3 + size / 5e7) for size in (4096, 65_536, 1 << 20, 1 << 24)]
    line = fit_line(rows)
    assert line
    assert (line.latency, line.rate) == (pytest.approx(2e-3), pytest.approx(5e7))
    # A relative error of 10 % counts as much at each size.
    disturbed = [*rows[:-1], replace(rows[-1], seconds=rows[-1].seconds * 1.1)]
    again = fit_line(disturbed)
    assert again
    assert again.latency == pytest.approx(2e-3, rel=0.02)
    assert 5e7 / 1.1 <= again.rate < 5e7
    assert fit_line(rows[:1]) is None
    # Never a latency below 0.
    steep = fit_line([replace(ROW, bytes=1000, seconds=1e-6), replace(ROW, bytes=2000, seconds=1e-5)])
    assert steep
    assert steep.latency == 0


def test_the_table_has_a_row_for_each_exchange() -> None:
    rows = [replace(ROW, bytes=size, seconds=2e-3 + size / 5e7) for size in (4096, 1 << 20)]
    first, second = table_of(rows).rows
    assert second == ['collective', '4*1', '1048576', '1', '22.972', '45.6', '68.5', '547.8', '2.000', '50.0']
    assert first[-2:] == second[-2:]


def test_whole_variables_are_a_row_and_a_line_of_their_own_from_4_mib_on() -> None:
    servers = replace(ROW, exchange='parameter_servers', servers=2)
    rows = [
        replace(servers, bytes=size, largest=size, seconds=1e-3 + size / rate, slices=slices)
        for size, rate, slices in (
            (1 << 12, 1e9, True),
            (1 << 20, 1e9, True),
            (1 << 24, 1e9, True),
            (1 << 24, 5e8, False),
        )
    ]
    table = table_of(rows)
    titles = [column.title for column in table.columns]
    cells = [dict(zip(titles, row, strict=True)) for row in table.rows]
    assert [row['exchange'] for row in cells] == ['parameter_servers'] * 3 + ['parameter_servers_whole']
    assert [row['rate MB/s'] for row in cells[:3]] == ['1000.0'] * 3
    # The small tensors, which nothing cuts, are on its line, too.
    line = fit_line([*rows[:2], rows[3]])
    assert line
    assert cells[3]['rate MB/s'] == f'{line.rate / 1e6:.1f}'
    assert 500 < line.rate / 1e6 < 1000
    # Three workers of other hosts send all of it to one server, or half of it to each.
    assert [row['link Mbit/s'] for row in cells[2:]] == [
        f'{8e-6 * link_bytes / row.seconds:.1f}' for link_bytes, row in zip((3 << 24, 6 << 24), rows[2:], strict=True)
    ]


def test_sizes_have_units() -> None:
    assert read_sizes('4k,1m,64KiB,256M') == [4096, 1 << 20, 1 << 16, 1 << 28]
    for text in ('1k', '4k,4k', '4x', '', '512m', '4097'):
        with refused('--sizes'):
            read_sizes(text)
