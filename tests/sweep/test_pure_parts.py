"""The order of runs, the search for a batch size, and why runs failed."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_cnn.sweep.runner import order_of_round
from tf_cnn.sweep.search import MAX_SIZE, next_size
from tf_cnn.system.limited_process import ERROR, MEMORY, explain_exit

pytestmark = pytest.mark.unit


@given(st.integers(1, 30), st.integers(1, 6))
def test_a_steady_drift_cancels_over_each_pair_of_rounds(count, pair):
    first, second = (order_of_round(count, number) for number in (2 * pair - 1, 2 * pair))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first == order_of_round(count, 2 * pair - 1)
    # When each configuration runs, counted over both rounds.
    assert {first.index(i) + count + second.index(i) for i in range(count)} == {2 * count - 1}


def test_the_first_round_is_in_order_and_later_ones_differ():
    assert order_of_round(8, 1) == list(range(8))
    assert len({tuple(order_of_round(8, number)) for number in range(1, 9)}) == 8
    # No configuration always follows the same one.
    orders = [order_of_round(6, number) for number in range(1, 11)]
    pairs = {pair for order in orders for pair in itertools.pairwise(order)}
    followers = Counter(first for first, _ in pairs)
    assert min(followers[i] for i in range(6)) >= 3


@given(st.integers(0, MAX_SIZE), st.integers(1, 2000))
def test_the_search_finds_the_largest_size_that_fits(limit, start):
    fits: dict[int, bool] = {}
    while size := next_size(start, fits):
        assert size not in fits
        fits[size] = size <= limit
    assert max((size for size, fitted in fits.items() if fitted), default=0) == limit
    assert len(fits) <= 35


def test_the_search_doubles_then_halves_the_interval():
    fits: dict[int, bool] = {}
    while size := next_size(32, fits):
        fits[size] = size <= 150
    assert list(fits) == [32, 64, 128, 256, 192, 160, 144, 152, 148, 150, 151]


def test_a_failure_is_explained_by_the_output_of_the_run():
    start = 'tf_cnn_benchmarks: error: '
    for output, code, reason, cause in (
        (f'step\n{start}first\n{start}second\nmore\n', 1, 'second', ERROR),
        (f'ps 0 | {start}a\n{start}ps 0 ended\n', 1, 'ps 0: a', ERROR),
        ('Traceback\nValueError: no\n', 1, 'it ended with exit code 1: ValueError: no', ERROR),
        ('', 3, 'it ended with exit code 3', ERROR),
        ('step\n', -11, 'ended by signal 11 (Segmentation fault)', ERROR),
        ('step\n', -9, 'ended by signal 9 (Killed)', MEMORY),
        ('x\nOOM when allocating tensor\ny\n', 1, 'OOM when allocating tensor', MEMORY),
        (f'{start}RESOURCE_EXHAUSTED: out\n', 1, 'RESOURCE_EXHAUSTED: out', MEMORY),
    ):
        assert explain_exit(output, code) == (reason, cause)
