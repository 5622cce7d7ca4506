"""The order of runs, the search for a batch size, sizes as text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.limited_process import ERROR, MEMORY, explain_end
from sweeps.runner import order_of_round
from sweeps.search import LARGEST, largest_size, next_size
from sweeps.settings import Settings
from tests.support.outputs import refused

pytestmark = pytest.mark.unit


@given(st.integers(1, 30), st.integers(1, 6), st.integers(0, 5))
def test_a_steady_drift_cancels_over_each_pair_of_rounds(count: int, pair: int, seed: int) -> None:
    first, second = (order_of_round(count, number, seed) for number in (2 * pair - 1, 2 * pair))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first == order_of_round(count, 2 * pair - 1, seed)
    # When each configuration runs, counted over both rounds.
    assert {first.index(one) + count + second.index(one) for one in range(count)} == {2 * count - 1}


def test_the_first_round_is_in_order_and_later_ones_differ() -> None:
    assert order_of_round(8, 1, 1234) == list(range(8))
    assert len({tuple(order_of_round(8, number, 1234)) for number in range(1, 9)}) == 8
    assert order_of_round(8, 3, 1234) != order_of_round(8, 3, 1235)
    # No configuration always follows the same one.
    orders = [order_of_round(6, number, 1234) for number in range(1, 11)]
    followers = {pair for order in orders for pair in itertools.pairwise(order)}
    assert all(len({second for first, second in followers if first == one}) >= 3 for one in range(6))


@given(st.integers(0, LARGEST), st.integers(1, 2000))
def test_the_search_finds_the_largest_size_that_fits(limit: int, start: int) -> None:
    fits: dict[int, bool] = {}
    while size := next_size(start, fits):
        assert size not in fits
        fits[size] = size <= limit
    assert largest_size(fits) == (limit or None)
    assert len(fits) <= 35


def test_the_search_doubles_then_halves_what_is_left() -> None:
    fits: dict[int, bool] = {}
    while size := next_size(32, fits):
        fits[size] = size <= 150
    assert list(fits) == [32, 64, 128, 256, 192, 160, 144, 152, 148, 150, 151]


def test_sizes_have_units() -> None:
    sizes = {'1000': 1000, '8GiB': 8 * 2**30, '8GB': 8 * 10**9, '8G': 8 * 2**30, '8g': 8 * 2**30, '1.5 MiB': 3 * 2**19}
    for text, size in sizes.items():
        settings = Settings(memory_limit=text)
        settings.check()
        assert settings.memory_bytes == size
    with refused('--memory_limit=8x'):
        Settings(memory_limit='8x').check()


@pytest.mark.parametrize(
    ('output', 'code', 'reason', 'cause'),
    [
        ('step\ntf_cnn_benchmarks: error: first\ntf_cnn_benchmarks: error: second\nmore\n', 1, 'second', ERROR),
        ('ps 0 | tf_cnn_benchmarks: error: a\ntf_cnn_benchmarks: error: ps 0 ended\n', 1, 'ps 0: a', ERROR),
        ('Traceback\nValueError: boom\n', 1, 'it ended with exit code 1: ValueError: boom', ERROR),
        ('', 3, 'it ended with exit code 3', ERROR),
        ('step\n', -11, 'ended by signal 11 (Segmentation fault)', ERROR),
        ('step\n', -9, 'ended by signal 9 (Killed)', MEMORY),
        ('x\nOOM when allocating tensor\ny\n', 1, 'OOM when allocating tensor', MEMORY),
        ('tf_cnn_benchmarks: error: RESOURCE_EXHAUSTED: out\n', 1, 'RESOURCE_EXHAUSTED: out', MEMORY),
    ],
)
def test_a_failure_is_explained_by_what_the_run_said(output: str, code: int, reason: str, cause: str) -> None:
    assert explain_end(output, code) == (reason, cause)
