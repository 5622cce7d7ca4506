"""What a forecast says about clusters: throughput, limits, a link twice as fast, and the smallest that is enough."""

from dataclasses import replace
from typing import Any

import pytest

from errors import UsageError
from params.modes import MODES
from scaling.forecast import Candidate, Forecaster, can_cluster, dtype_of, shape_of, shapes, work_of
from scaling.links import LinkRow, priors_of_sheet
from scaling.terms import LARGEST_WHOLE_VALUES, exchange_seconds
from tests.support.sample_results import sample_record

pytestmark = pytest.mark.unit

GBIT = 125e6
OF_RESNET: dict[str, Any] = {'flags': {'model': 'resnet50'}}
ON_GPUS: dict[str, Any] = {**OF_RESNET, 'run': {'device': 'gpu'}}


def forecaster(network: float = 10 * GBIT, **changes: Any) -> Forecaster:
    return Forecaster(sample_record(**ON_GPUS, **changes), priors=priors_of_sheet(network, None))


def shape(workers: int, mode: str = 'collective_all_reduce', servers: int = 1) -> Candidate:
    return shape_of(MODES[mode], workers, workers, 1, servers)


def test_one_process_gives_what_was_measured() -> None:
    found = forecaster().forecast(shape(1))
    assert found.images_per_second == pytest.approx(100, rel=0.02)
    assert found.efficiency == pytest.approx(1)
    assert (found.limit, found.link) == ('compute', None)


def test_a_fast_network_scales_and_a_slow_one_limits() -> None:
    fast, slow = forecaster(400 * GBIT).forecast(shape(8)), forecaster(0.1 * GBIT).forecast(shape(8))
    assert fast.efficiency > 0.85
    assert fast.limit == 'compute'
    assert slow.efficiency < 0.1
    assert (slow.limit, slow.next_limit) == ('network', 'compute')
    assert slow.link == 'network'
    assert slow.with_link_doubled == pytest.approx(2 * slow.images_per_second, rel=0.1)


def test_one_parameter_server_limits_by_its_link() -> None:
    one, four = (forecaster(GBIT).forecast(shape(8, 'parameter_server', servers)) for servers in (1, 8))
    assert one.limit == "a parameter server's link"
    assert four.images_per_second > 3 * one.images_per_second
    assert one.bytes_per_step == four.bytes_per_step


def test_the_interval_holds_the_forecast() -> None:
    found = forecaster().forecast(shape(4))
    assert 0 < found.low < found.images_per_second < found.high


def test_the_smallest_cluster_is_the_first_that_is_enough() -> None:
    found = forecaster()
    mode = MODES['collective_all_reduce']
    smallest = found.smallest(mode, 1, None, 1000)
    assert smallest is not None
    workers = smallest.shape.workers
    assert found.images_per_second(shape(workers)) >= 1000 > found.images_per_second(shape(workers - 1))
    assert found.smallest(mode, 1, None, 1e9) is None
    assert found.smallest(mode, 1, None, 1000, most=2) is None
    assert found.best(mode, 1, None, most=3).shape.workers == 3


def test_measured_links_decide() -> None:
    size = 1 << 26
    rows = [LinkRow('collective', 'float32', 2, 2, 1, 0, size, 1, size, size / (0.01 * GBIT))]
    record = sample_record(**OF_RESNET)
    found = Forecaster(record, rows).forecast(shape(2))
    # 102 MB of gradients at 1.25 MB/s.
    assert found.terms.seconds == pytest.approx(82, rel=0.1)


def test_a_result_of_several_devices_is_predicted_as_measured() -> None:
    record = sample_record(rate=390.0, flags={'model': 'resnet50', 'num_gpus': 4}, run={'device': 'gpu'})
    found = Forecaster(record)
    assert found.forecast(Candidate('replicated', 1, 1, 4, 0)).images_per_second == pytest.approx(390, rel=0.01)
    assert 97 < found.images_per_second_of_one < 107


def test_results_of_clusters_are_fitted_to() -> None:
    flags = {'model': 'resnet50', 'variable_update': 'collective_all_reduce'}
    results = [sample_record(rate=60.0, seed=5, flags=flags, cluster={'num_workers': 2})]
    for number, worker in enumerate(results[0].document['workers']):
        worker['host'] = f'host{number}'
    record = sample_record(**OF_RESNET)
    with_run = Forecaster(record, results=results, priors=priors_of_sheet(GBIT, None)).forecast(shape(2))
    without = Forecaster(record, priors=priors_of_sheet(GBIT, None)).forecast(shape(2))
    assert abs(with_run.images_per_second - 60) < abs(without.images_per_second - 60)
    assert with_run.images_per_second == pytest.approx(60, rel=0.1)


@pytest.mark.parametrize(
    'changes',
    [
        {'cluster': {'num_workers': 2}},
        {'cluster': {'num_ps': 1}},
        {'run': {'role': 'forward-only'}},
        {'run': {'role': 'evaluation'}},
        {'throughput': {'images_per_second': 0.0}},
        {'flags': {'model': 'resnet51'}},
    ],
)
def test_a_result_that_cannot_be_the_start_is_refused(changes: dict[str, Any]) -> None:
    record = sample_record(**changes)
    if 'throughput' in changes:
        # No step was timed.
        record.document['workers'][0]['steps'] |= {'phase': [], 'seconds': [], 'start': []}
    with pytest.raises(UsageError) as error:
        Forecaster(record)
    assert len(error.value.lines) == 1


@pytest.mark.parametrize(
    ('precision', 'flags', 'dtype'),
    [
        ('fp32', {}, 'float32'),
        ('fp32', {'compact_gradient_transfer': True}, 'bfloat16'),
        ('fp16', {}, 'float16'),
        ('bf16', {}, 'bfloat16'),
        ('bf16', {'compact_gradient_transfer': False}, 'float32'),
    ],
)
def test_gradients_travel_in_the_type_of_the_run(precision: str, flags: dict[str, Any], dtype: str) -> None:
    assert dtype_of(sample_record(flags={'precision': precision, **flags})) == dtype


def test_flags_of_the_result_say_how_steps_are_taken() -> None:
    assert work_of(sample_record(flags={'staged_vars': True})).is_staged
    assert not work_of(sample_record(flags={'cross_replica_sync': False})).is_synchronous
    plain = work_of(sample_record())
    assert not plain.is_staged
    assert plain.is_synchronous


def test_variables_that_are_not_cut_are_predicted_so() -> None:
    # AlexNet has 151 of its 250 MB in one variable. Beside four servers all of it goes to one host.
    flags = {'model': 'alexnet'}
    cut, whole = (
        Forecaster(
            sample_record(flags={**flags, 'slice_variables': slices}, run={'device': 'gpu'}),
            priors=priors_of_sheet(GBIT, None),
        )
        for slices in (True, False)
    )
    assert cut.work.slices
    assert not whole.work.slices
    asked = shape(4, 'parameter_server', 4)
    assert whole.forecast(asked).terms.seconds > 1.5 * cut.forecast(asked).terms.seconds
    assert whole.forecast(asked).limit == "a parameter server's link"
    # One server has everything in any case.
    alone = shape(4, 'parameter_server', 1)
    assert whole.forecast(alone).terms == cut.forecast(alone).terms


def test_an_exchange_of_whole_variables_says_nothing_about_the_formula_for_slices() -> None:
    flags = {'model': 'alexnet', 'variable_update': 'parameter_server'}
    facts = work_of(sample_record(flags=flags)).gradients
    size = 4 * facts.parameters

    def rows(whole_seconds: float) -> list[LinkRow]:
        common = LinkRow('parameter_servers', 'float32', 4, 4, 1, 4, size, facts.tensors, 4 * facts.largest, 6.0)
        return [common, replace(common, seconds=whole_seconds, slices=False)]

    # By the formulas 151 and 62 MB: a ratio of 2.4. What the second exceeds goes to its own shape first.
    usual, slow = (Forecaster(sample_record(**OF_RESNET), rows(seconds)) for seconds in (14.5, 17.0))
    of = [
        [
            exchange_seconds(work, cluster, found._fit.rates(work, cluster))
            for work, cluster in ((row.measured.work, row.measured.cluster) for row in rows(1.0))
        ]
        for found in (usual, slow)
    ]
    assert of[1][1] / of[0][1] > 1.1
    assert of[1][0] / of[0][0] < 1.05


def test_a_folder_of_images_has_the_gradients_of_the_model() -> None:
    assert work_of(sample_record(run={'data_set': 'records'})).gradients == work_of(sample_record()).gradients


def test_every_combination_is_a_shape_once() -> None:
    found = shapes(['parameter_server', 'collective_all_reduce'], [1, 2], [], [1], [1, None])
    assert [(one.mode, one.workers, one.servers) for one in found] == [
        ('parameter_server', 1, 0),
        ('parameter_server', 2, 1),
        ('parameter_server', 2, 2),
        ('collective_all_reduce', 1, 0),
        ('collective_all_reduce', 2, 0),
    ]


def test_modes_of_one_process_are_no_clusters() -> None:
    assert not can_cluster(MODES['replicated'])
    assert can_cluster(MODES['parameter_server'])


def test_variables_are_cut_where_the_program_cuts_them() -> None:
    # TensorFlow is needed to import the managers.
    parameter_servers = pytest.importorskip('managers.parameter_servers')
    assert parameter_servers._LARGEST_WHOLE_BYTES == 4 * LARGEST_WHOLE_VALUES
