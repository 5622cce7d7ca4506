"""The terms of a step are the formulas of docs/predict.md."""

from dataclasses import replace

import pytest

from models.gradients import GradientFacts, in_pieces, read_table
from scaling.terms import (
    LARGEST_WHOLE_VALUES,
    Exchange,
    ModelledCluster,
    Rates,
    Work,
    bytes_of_links,
    bytes_of_step,
    exchange_seconds,
    slowest_of,
    terms_of,
)

pytestmark = pytest.mark.unit

# Ten million values in two layers: the last layer, of which the gradient is ready first, has nine of them.
GRADIENTS = GradientFacts(2, 9_000_000, ((9_000_000, 0.1), (1_000_000, 1.0)))
WORK = Work('a', GRADIENTS, 32)
# Nothing takes time but computing, and what a test sets.
NOTHING = Rates(1.0, 0, 0, 0, 1e30, 0, 1e30, 0, 0, 1e30, 1.0)


def ring(workers: int, hosts: int | None = None, devices: int = 1) -> ModelledCluster:
    return ModelledCluster(Exchange.RING, workers, hosts or workers, devices)


def with_servers(workers: int, servers: int, hosts: int | None = None) -> ModelledCluster:
    return ModelledCluster(Exchange.SERVERS, workers, hosts or workers, 1, servers)


@pytest.mark.parametrize('workers', [2, 3, 8])
def test_each_link_of_a_ring_carries_all_gradients_nearly_twice(workers: int) -> None:
    assert bytes_of_links(WORK, ring(workers)) == pytest.approx(2 * (workers - 1) / workers * 40e6)
    assert bytes_of_step(WORK, ring(workers)) == 2 * (workers - 1) * 40e6


def test_the_link_of_one_parameter_server_carries_the_gradients_of_all_other_hosts() -> None:
    assert bytes_of_links(WORK, with_servers(8, 1)) == 2 * 7 * 40e6
    assert bytes_of_step(WORK, with_servers(8, 1)) == 2 * 8 * 40e6


def test_alexnet_on_200_mbit_takes_as_long_as_was_measured() -> None:
    # 1 ps and 2 workers on two such hosts took 21.1 s a step, with about 1.5 s of computing.
    work = Work('alexnet', read_table()['alexnet', 'imagenet', 227], 32)
    rates = replace(NOTHING, compute=1.5, between=25e6)
    assert terms_of(work, with_servers(2, 1), rates).seconds == pytest.approx(21.1, rel=0.05)


def test_a_variable_that_is_not_sliced_makes_one_server_the_limit() -> None:
    whole, sliced = replace(WORK, slices=False), WORK
    many = with_servers(64, 64)
    assert bytes_of_links(whole, many) == 2 * 63 * 36e6
    assert bytes_of_links(sliced, many) == 2 * 63 * 4 * LARGEST_WHOLE_VALUES
    # What is sliced does not depend on the type in which it is sent.
    assert bytes_of_links(replace(sliced, value_bytes=2), many) == 2 * 63 * 2 * LARGEST_WHOLE_VALUES
    rates = replace(NOTHING, between=1e9)
    assert terms_of(whole, many, rates).server_link > 0
    assert terms_of(whole, many, rates).network == 0


def test_more_servers_than_hosts_share_their_links() -> None:
    assert bytes_of_links(WORK, with_servers(4, 8, hosts=4)) == pytest.approx(bytes_of_links(WORK, with_servers(4, 4)))


def apart(workers: int, worker_hosts: int, servers: int, server_hosts: int) -> ModelledCluster:
    return ModelledCluster(
        Exchange.SERVERS, workers, worker_hosts + server_hosts, 1, servers, server_hosts=server_hosts
    )


@pytest.mark.parametrize(
    ('cluster', 'expected'),
    [
        # One worker sends all of the 40 MB, and reads as many.
        (apart(1, 1, 1, 1), 2 * 40e6),
        # Two send them to one server, whose link carries both.
        (apart(2, 2, 1, 1), 2 * 2 * 40e6),
        # Two servers of one host are behind one link. On two hosts each gets half from both workers.
        (apart(2, 2, 2, 1), 2 * 2 * 40e6),
        (apart(2, 2, 2, 2), 2 * 40e6),
        # Four workers of two hosts: each host sends for two of them, and the server receives all four.
        (apart(4, 2, 1, 1), 2 * 4 * 40e6),
        (apart(4, 2, 4, 4), 2 * 2 * 40e6),
        # Three servers on two hosts: one has two of them.
        (apart(3, 3, 3, 2), 2 * 3 * 2 / 3 * 40e6),
    ],
)
def test_workers_apart_from_the_servers_send_everything_over_links(cluster: ModelledCluster, expected: float) -> None:
    assert bytes_of_links(WORK, cluster) == pytest.approx(expected)


def test_of_variables_that_are_not_cut_a_server_apart_receives_the_largest_from_every_worker() -> None:
    whole = replace(WORK, slices=False)
    assert bytes_of_links(whole, apart(3, 3, 2, 2)) == 2 * 3 * 36e6
    assert bytes_of_links(whole, apart(1, 1, 2, 2)) == 2 * 40e6


def test_one_worker_takes_as_long_as_its_link_to_the_server() -> None:
    rates = replace(NOTHING, between=160e6)
    assert exchange_seconds(WORK, apart(1, 1, 1, 1), rates) == pytest.approx(0.5)
    assert exchange_seconds(WORK, apart(2, 2, 1, 1), rates) == pytest.approx(1.0)
    # On the host of the server it sends nothing.
    assert exchange_seconds(WORK, with_servers(1, 1), rates) == 0
    assert terms_of(WORK, apart(1, 1, 1, 1), replace(rates, overlap=0)).network == pytest.approx(0.5)


def test_16_bits_are_half_the_bytes() -> None:
    assert bytes_of_links(replace(WORK, value_bytes=2), ring(4)) == bytes_of_links(WORK, ring(4)) / 2


def test_the_backward_pass_hides_what_is_ready_early() -> None:
    # 40 MB at 160 MB/s are 0.25 s: 0.225 of the last layer, 0.025 of the first one, which is ready at the end.
    rates = replace(NOTHING, between=160e6)
    assert terms_of(WORK, ring(2), rates).network == pytest.approx(0.025)
    late = replace(WORK, gradients=GradientFacts(1, 10_000_000, ((10_000_000, 1.0),)))
    assert terms_of(late, ring(2), rates).network == pytest.approx(0.25)


def test_without_overlap_the_exchange_follows_the_backward_pass() -> None:
    assert terms_of(WORK, ring(2), replace(NOTHING, between=160e6, overlap=0)).network == pytest.approx(0.25)


def test_reading_new_values_from_servers_is_never_hidden() -> None:
    # 40 MB in each direction; the gradients are hidden but for the tail.
    found = terms_of(WORK, with_servers(2, 1), replace(NOTHING, between=160e6))
    assert found.network == pytest.approx(0.25 + 0.025)


def test_staged_gradients_are_exchanged_during_the_next_step() -> None:
    staged = replace(WORK, is_staged=True)
    assert terms_of(staged, with_servers(2, 1), replace(NOTHING, between=160e6)).network == 0
    assert terms_of(staged, with_servers(2, 1), replace(NOTHING, between=40e6)).network == pytest.approx(1)


def test_asynchronous_workers_wait_for_nobody() -> None:
    rates = replace(NOTHING, jitter=0.1)
    assert terms_of(WORK, ring(8), rates).slowest > 0.1
    assert terms_of(replace(WORK, is_synchronous=False), ring(8), rates).slowest == 0


def test_devices_of_one_host_use_its_links_and_hosts_the_network() -> None:
    rates = replace(NOTHING, inside=1e9, between=1e9, overlap=0)
    found = terms_of(WORK, ring(2, 2, devices=4), rates)
    assert found.inside == pytest.approx(2 * 3 / 4 * 0.04)
    assert found.network == pytest.approx(0.04)


def test_processes_of_one_host_send_to_their_server_through_its_memory() -> None:
    rates = replace(NOTHING, inside=1e9, overlap=0)
    assert terms_of(WORK, with_servers(4, 1, hosts=1), rates).inside == pytest.approx(2 * 4 * 0.04)
    assert terms_of(WORK, with_servers(4, 4, hosts=1), rates).inside == pytest.approx(2 * 0.04, rel=0.1)


def test_devices_that_share_cores_compute_one_after_the_other() -> None:
    shared = replace(WORK, shares_cores=True)
    assert terms_of(shared, ring(4, 1), NOTHING).compute == 4
    assert terms_of(shared, ring(4, 4), NOTHING).compute == 1


def test_a_lone_device_only_computes() -> None:
    rates = Rates(2.0, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5)
    assert terms_of(replace(WORK, reads_images=True), ring(1), rates).seconds == 2


@pytest.mark.parametrize('cluster', [ring(4), ring(4, 2), ring(2, 2, 4), with_servers(4, 2), with_servers(8, 3, 4)])
def test_terms_are_never_negative_and_add_up(cluster: ModelledCluster) -> None:
    rates = Rates(1.0, 0.02, 0.01, 1e-4, 1e9, 1e-4, 1e8, 1e-4, 1e-4, 1e9, 0.7)
    found = terms_of(replace(WORK, reads_images=True), cluster, rates)
    assert all(value >= 0 for value in found.by_name().values())
    assert sum(found.by_name().values()) == found.seconds > 1
    assert exchange_seconds(WORK, cluster, rates) > 0


# Teichroew 1956 (doi.org/10.1214/aoms/1177728266), table I: the expected maximum of n standard normal values.
@pytest.mark.parametrize(('number', 'expected'), [(1, 0), (2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660)])
def test_the_slowest_of_n_is_the_expected_maximum(number: int, expected: float) -> None:
    assert slowest_of(number) == pytest.approx(expected, abs=0.03)


def test_gradients_in_pieces_keep_their_sum_and_order() -> None:
    found = in_pieces([(100, 0.01), *((1, number / 300) for number in range(4, 300)), (5, 0.2)])
    assert (found.tensors, found.largest, found.parameters) == (298, 100, 401)
    assert list(found.pieces) == sorted(found.pieces, key=lambda piece: piece[1])
    assert len(found.pieces) < 40
