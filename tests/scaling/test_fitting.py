"""Fitted rates are those that made the measurements; what is not known stays uncertain."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from models.gradients import read_table
from scaling.fitting import PRIORS, Fit, Measured, usual
from scaling.links import LinkRow, priors_of_sheet
from scaling.terms import Exchange, ModelledCluster, Rates, Work, exchange_seconds, terms_of

pytestmark = pytest.mark.unit

WORK = Work('a', read_table()['resnet50', 'imagenet', 224], 64)
TRUE = Rates(0.5, 0.01, 0.01, 2e-5, 8e9, 2e-5, 110e6, 3e-5, 5e-5, 3e9, 0.7)
ALONE = ModelledCluster(Exchange.NONE, 1, 1)


def on_hosts(hosts: int) -> ModelledCluster:
    return ModelledCluster(Exchange.RING, hosts, hosts, label='collective')


def in_host(devices: int) -> ModelledCluster:
    return ModelledCluster(Exchange.RING, 1, 1, devices, label='copies')


def steps(*clusters: ModelledCluster) -> list[Measured]:
    return [Measured(WORK, cluster, terms_of(WORK, cluster, TRUE).seconds) for cluster in clusters]


def links(sizes: Sequence[int] = (1 << 16, 1 << 20, 1 << 24, 1 << 28)) -> list[Measured]:
    rows = []
    for size in sizes:
        row = LinkRow('collective', 'float32', 2, 2, 1, 0, size, 1, size, 1.0).measured
        rows.append(replace(row, seconds=exchange_seconds(row.work, row.cluster, TRUE)))
    return rows


def test_a_step_of_one_device_is_predicted_as_measured() -> None:
    found = Fit(steps(ALONE)).predict(WORK, ALONE)
    assert found.seconds == pytest.approx(0.5, rel=1e-3)
    assert found.low < 0.5 < found.high < 0.54


def test_measured_links_give_their_rate() -> None:
    found = Fit([*steps(ALONE), *links()])
    assert found.rates(WORK, on_hosts(2)).between == pytest.approx(TRUE.between, rel=0.1)
    predicted = found.predict(WORK, on_hosts(2))
    expected = terms_of(WORK, on_hosts(2), TRUE).seconds
    assert predicted.seconds == pytest.approx(expected, rel=0.1)
    assert predicted.low < expected < predicted.high


def test_a_worker_alone_with_a_server_on_another_host_gives_the_rate_of_its_link() -> None:
    rows = []
    for size in (1 << 20, 1 << 24, 1 << 28):
        row = LinkRow('parameter_servers', 'float32', 2, 1, 1, 1, size, 1, size, 1.0, server_hosts=1).measured
        rows.append(replace(row, seconds=exchange_seconds(row.work, row.cluster, TRUE)))
    servers = ModelledCluster(Exchange.SERVERS, 2, 2, servers=1, label='parameter_servers')
    assert Fit(rows).rates(WORK, servers).between == pytest.approx(TRUE.between, rel=0.15)


def test_each_thing_that_is_known_narrows_the_interval() -> None:
    def width(fit: Fit) -> float:
        found = fit.predict(WORK, on_hosts(2))
        return found.high / found.low

    nothing = width(Fit(steps(ALONE), {**PRIORS, 'between': usual(125e6, PRIORS['between'].spread)}))
    sheet = width(Fit(steps(ALONE), {**PRIORS, **priors_of_sheet(125e6, 50)}))
    measured = width(Fit([*steps(ALONE), *links()]))
    run = width(Fit([*steps(ALONE, on_hosts(2)), *links()]))
    assert nothing > sheet > measured > run > 1


def test_results_of_small_clusters_predict_larger_ones() -> None:
    clusters = [in_host(devices) for devices in (1, 2, 4)]
    found = Fit(steps(ALONE, *clusters[1:])).predict(WORK, in_host(8))
    assert found.seconds == pytest.approx(terms_of(WORK, in_host(8), TRUE).seconds, rel=0.06)


def test_the_largest_clusters_are_less_certain() -> None:
    fit = Fit(steps(ALONE, in_host(2)))
    widths = [fit.predict(WORK, in_host(devices)) for devices in (2, 4, 16)]
    ratios = [found.high / found.low for found in widths]
    assert ratios == sorted(ratios)


def test_nothing_measured_is_what_is_usual() -> None:
    found = Fit([]).rates(WORK, in_host(2))
    assert found.inside == pytest.approx(12e9)


def test_measurements_that_contradict_each_other_still_give_a_fit() -> None:
    contradicting = [Measured(WORK, on_hosts(2), seconds) for seconds in (0.6, 60.0)]
    assert 0.6 < Fit([*steps(ALONE), *contradicting]).predict(WORK, on_hosts(2)).seconds < 60


def test_less_of_an_exchange_overlaps_on_cpus() -> None:
    nothing = Fit([])
    on_cpu = nothing.rates(replace(WORK, shares_cores=True), on_hosts(2))
    assert on_cpu.overlap < 0.2 < nothing.rates(WORK, on_hosts(2)).overlap


def test_a_measured_exchange_counts_more_than_its_formula() -> None:
    with_servers = [
        ModelledCluster(Exchange.SERVERS, 2, 2, servers=count, label='parameter_servers') for count in (1, 2)
    ]
    measured = [
        Measured(WORK, cluster, factor * exchange_seconds(WORK, cluster, TRUE), is_exchange=True)
        for cluster, factor in zip(with_servers, (1.0, 1.4), strict=True)
    ]
    found = Fit([*steps(ALONE), *measured])
    for one in measured:
        own = found.rates(WORK, one.cluster)
        assert exchange_seconds(WORK, one.cluster, own) == pytest.approx(one.seconds, rel=0.05)
