"""Each warning comes with what causes it, names its figures and a remedy, and does not come with a
clean run.
"""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.outputs import check_line
from tests.support.sample_results import cut_off, record_of, sample_document, sample_record
from tf_cnn.results import advice
from tf_cnn.results.document import Result
from tf_cnn.results.sections import StatisticsSection, WarningRow
from tf_cnn.system.documents import as_json

pytestmark = pytest.mark.unit


def steps(
    seed: int = 0, num_steps: int = 100, noise: float = 0.02, likeness: float = 0.5
) -> NDArray[np.float64]:
    """Seconds of steps of 0.3 s with normal noise; each step is like the one before it (a process
    AR(1)).
    """
    draw = np.random.default_rng(seed)
    kicks = draw.normal(0, noise * math.sqrt(1 - likeness**2), num_steps)
    deviations = np.empty(num_steps)
    now = draw.normal(0, noise)
    for index, kick in enumerate(kicks):
        now = likeness * now + kick
        deviations[index] = now
    return 0.3 * (1 + deviations)


def steps_with(slow: dict[int, float], num_steps: int = 100) -> NDArray[np.float64]:
    """The same, with other seconds of these steps."""
    seconds = steps(num_steps=num_steps)
    seconds[[*slow]] = [*slow.values()]
    return seconds


def changed(section: str, **values: Any) -> dict[str, Any]:
    """A document of a clean run with other values in one of its objects."""
    document = sample_document(seconds=steps())
    return document | {section: {**document.get(section, {}), **values}}


def codes(document: dict[str, Any]) -> list[str]:
    return [warning.code for warning in advice.find_warnings(record_of(document))]


def check_warning(run: Result | dict[str, Any], code: str, *facts: str) -> str:
    """Returns the text of the only warning; fails unless it names these facts."""
    result = run if isinstance(run, Result) else record_of(run)
    (warning,) = advice.find_warnings(result, ['--model=lenet'])
    assert warning.code == code
    return check_line(warning.text, *facts)


@pytest.mark.parametrize('likeness', [0.0, 0.5, 0.8])
@pytest.mark.parametrize('num_steps', [20, 50, 400])
def test_clean_runs_have_no_warnings(num_steps, likeness):
    counts = Counter(
        code
        for seed in range(100)
        for code in codes(sample_document(seconds=steps(seed, num_steps, likeness=likeness)))
    )
    assert counts.total() <= 2, counts


def test_the_machines_of_all_workers_count():
    document = sample_document(seconds=steps(), cluster={'num_workers': 3})
    names = [f'{worker["task"]} ({worker["host"]})' for worker in document['workers']]
    for worker, share in zip(document['workers'], (0.2, 0.05, 0.7), strict=True):
        worker |= {
            'machine': document['machine'],
            'noise': {'seconds': 30, 'other_cpu_share': share},
        }
    document['workers'][1]['machine'] = {**document['machine'], 'cgroup_cpus': 0.15}
    document['workers'][1]['noise'] |= {'cgroup_throttled_seconds': 20.0}
    texts = {warning.code: warning.text for warning in advice.find_warnings(record_of(document))}
    assert texts['machine_loaded'].startswith(f'{names[2]}, also {names[0]}: other processes')
    assert '70 %' in texts['machine_loaded']
    assert texts['cpu_quota'].startswith(f'{names[1]}: ')
    assert texts['fewer_cores'].startswith(f'{names[1]}: ')
    assert '0.15' in texts['fewer_cores']
    result = record_of(document)
    result.warnings = advice.find_warnings(result)
    assert advice.doubtful_codes(result) == ['machine_loaded', 'cpu_quota']
    [line] = advice.noise_warnings([result])
    assert 'up to 70 % of the cores' in line
    # Runs with and without a worker's quota are no repeats.
    assert result.limits['worker 1.cgroup_cpus'] == 0.15


def alone(*means: float) -> dict[str, Any]:
    """Returns the result of workers with five values of steps alone, which spread by 2 %."""
    document = sample_document(seconds=steps(), cluster={'num_workers': len(means)})
    for number, (worker, mean) in enumerate(zip(document['workers'], means, strict=True)):
        seconds = np.random.default_rng(number).normal(2 * mean, 0.04 * mean, 5).tolist()
        worker['alone'] = {
            f'{worker["task"]} (node{number})': {'steps': [2] * 5, 'seconds': seconds}
        }
    return document


@pytest.mark.parametrize(
    ('means', 'facts'),
    [
        ((0.1, 0.1, 0.41, 0.1), ['worker 2 (node2) computes 4.1 times']),
        ((0.1, 0.4), ['worker 1 (node1) computes 4 times']),
        ((0.4, 0.1, 0.1, 0.1, 0.3), ['worker 0 (node0) computes 4 times', 'worker 4 (node4)']),
        # The steps of a second do not show less.
        ((0.1, 0.1, 0.11, 0.1), []),
        ((0.1, 0.1, 0.1, 0.02), []),
        ((0.1, 0.104), []),
    ],
)
def test_a_worker_that_computes_longer_than_the_others_is_named(means, facts):
    texts = [row.text for row in advice.find_warnings(record_of(alone(*means)))]
    assert len(texts) == bool(facts)
    for text in texts:
        check_line(text, *facts)


def test_a_worker_that_is_stopped_now_and_then_is_named():
    document = alone(0.017, 0.017, 0.017, 0.017)
    (steps,) = document['workers'][3]['alone'].values()
    # One step when it was stopped, and 13 in two parts.
    steps |= {'steps': [1, 6, 7], 'seconds': [0.321, 0.408, 0.392]}
    [warning] = advice.find_warnings(record_of(document))
    check_line(warning.text, 'worker 3')


def test_a_result_of_an_evaluation_or_without_steps_has_no_warnings():
    document = sample_document(run={'role': 'evaluation'})
    document |= {'workers': [], 'statistics': as_json(StatisticsSection.of([]))}
    assert codes(document) == []


def test_a_slow_first_step_asks_for_more_warm_up():
    for num_warmup, facts in ((2, ['3.1 times', '2 steps', '=10']), (20, ['=40'])):
        flags = {'num_warmup_batches': num_warmup}
        document = sample_document(seconds=steps_with({0: 0.93}), flags=flags)
        check_warning(document, 'slow_first_step', '--num_warmup_batches=', *facts)


def test_unsteady_and_few_steps_give_one_warning():
    noisy, trend = steps(noise=0.3, likeness=0), np.linspace(0.9, 1.1, 100)
    outliers = steps_with({30: 2.4, 60: 1.8})
    for seconds, code, *facts in (
        (outliers, 'outliers', '2 outliers', '100 timed steps', '2400 ms', '11 %'),
        (noisy, 'spread', '% of their median', 'ms'),
        (noisy * trend**5, 'spread'),
        (steps() * trend, 'drift', 'slower', '--num_batches'),
        (steps() / trend, 'drift', 'faster', '--num_batches'),
        (steps(num_steps=19), 'few_steps', '19 timed steps', '--num_batches=20'),
        ([3.0], 'few_steps', '1 timed step,'),
        (0.01 * noisy, 'too_short', '0.307 s', '--target_seconds=10'),
    ):
        check_warning(sample_document(seconds=seconds), code, *facts)


def test_outliers_that_cost_little_give_no_warning():
    seconds = steps_with({500: 1.2}, num_steps=1000)
    assert StatisticsSection.of(seconds).num_outliers == 1
    assert codes(sample_document(seconds=seconds)) == []


def test_two_runs_of_many_steps_show_no_drift_beyond_noise():
    document = sample_document(seconds=[0.1] * 50 + [0.107] * 50)
    assert codes(document) == ['drift']
    document['run']['steps_per_run'] = 50
    assert codes(document) == []


def test_the_cause_of_unsteady_steps_is_reported_in_their_place():
    document = sample_document(seconds=steps(noise=0.3, likeness=0))
    document['noise'] = {'seconds': 30.0, 'other_cpu_share': 0.35}
    check_warning(document, 'machine_loaded', '35 %')


def test_a_stopped_run_gets_no_advice_to_take_more_steps():
    for seconds, code in (([0.01] * 20, 'too_short'), ([3.0] * 4, 'few_steps')):
        flags = {'target_seconds': 600.0, 'num_batches': None}
        document = sample_document(seconds=seconds, flags=flags, **cut_off('stopped by SIGINT'))
        text = check_warning(document, code, 'let the run take all of its steps')
        assert '--' not in text


def test_steps_beside_a_checkpoint_are_no_outliers():
    document = sample_document(seconds=steps_with({30: 2.4, 60: 2.4}))
    assert codes(document) == ['outliers']
    section = document['workers'][0]['steps']
    num_warmup = len(section['seconds']) - 100
    pauses = [0.0] * len(section['seconds'])
    for step in (29, 59):
        pauses[num_warmup + step] = 0.1
    section['between']['checkpoint'] = pauses
    assert codes(document) == []


def test_tables_count_the_runs_that_were_disturbed_or_too_short():
    loaded, spread, saving = (
        record_of(
            changed('noise', other_cpu_share=share) | {'warnings': [{'code': code, 'text': ''}]}
        )
        for code, share in (('machine_loaded', 0.88), ('spread', None), ('powersave', 0.05))
    )
    short = sample_record(seconds=[0.1] * 10)
    results = [loaded, spread, saving, short]
    disturbed, too_short = advice.noise_warnings(results)
    check_line(disturbed, '! 2 of 4 runs were disturbed')
    # Each run counts for its own cause.
    check_line(disturbed, 'other programs (1 run, up to 88 % of the cores)', 'spread (1 run)')
    check_line(too_short, '! 1 of 4 runs was too short')
    assert advice.noise_warnings([saving]) == []
    assert [advice.doubt_mark([result]) for result in results] == ['! ', '! ', '', '! ']
    reasons = [advice.format_doubtful([result]) for result in results]
    assert reasons == ['other programs', 'spread', '', 'too short']
    reasons_of_all = advice.format_doubtful(results)
    assert reasons_of_all == '3 of 4: other programs (1), spread (1), too short (1)'
    assert advice.format_doubtful([short, saving, short]) == '2 of 3: too short'


@pytest.mark.parametrize('value', [None, math.nan])
def test_a_loss_that_is_no_number_is_reported_with_its_step(value):
    result = sample_record(seconds=steps(), cluster={'num_workers': 2})
    losses = result.workers[1].steps.loss
    result.workers[1].steps.loss = [*losses[:90], *[value] * 12]
    # The 91st of the 2 warm-up steps and 100 timed steps.
    facts = ('worker 1', 'step 91', '12 of 102 steps', '--init_learning_rate')
    check_warning(result, 'loss_not_finite', *facts)


def test_a_run_that_waits_for_its_input_has_a_warning():
    check_warning(
        changed('input', wait_seconds=6.0, wait_share=0.2),
        'input_bound',
        '20 %',
        '6 s',
        'depends on',
    )
    check_warning(
        changed('input', wait_seconds=18.0, wait_share=0.6), 'input_bound', '60 %', 'bottleneck'
    )
    assert codes(changed('input', wait_seconds=1.5, wait_share=0.05)) == []


def test_time_between_steps_is_reported_with_its_cause():
    spent = {'printing': 1.0, 'checkpoint': 3.0, 'evaluation': 50.0}
    document = changed('throughput', wall_seconds=34.0, between_seconds=spent)
    facts = ('12 %', '4 s', '3 s of it with checkpoint', '--save_model_secs')
    check_warning(document, 'between_steps', *facts)
    document = changed('throughput', wall_seconds=40.0, between_seconds={'other': 10.0})
    check_warning(document, 'between_steps', '25 %', 'other')


def test_other_work_and_limits_of_the_machine_give_warnings():
    quiet = {
        'seconds': 30.0,
        'steal_share': 0.001,
        'other_cpu_share': 0.05,
        'thermal_throttles': 0,
        'cgroup_throttled_seconds': 0.1,
    }
    assert codes(changed('noise', **quiet)) == []
    for name, value, code, *facts in (
        ('other_cpu_share', 0.35, 'machine_loaded', '35 %', 'taskset'),
        ('steal_share', 0.08, 'steal', '8 %'),
        ('thermal_throttles', 1, 'thermal_throttling', '1 time '),
        ('cgroup_throttled_seconds', 12.0, 'cpu_quota', '12 s', '30 s'),
    ):
        check_warning(changed('noise', **quiet | {name: value}), code, *facts)


QUIET_GPU = {
    'gpu_clock_share': 0.93,
    'gpu_lowest_clock_share': 0.62,
    'gpu_heat_share': 0.0,
    'gpu_power_cap_share': 0.0,
    'gpu_hardware_slowdown_share': 0.0,
    'gpu_max_celsius': 71,
    'gpu_other_processes': 0,
    'gpus_lost': 0,
}


def on_gpu(*, power_limit: float = 400.0, **noise: Any) -> dict[str, Any]:
    """A document of a clean run on a GPU with a default limit of 400 W, with other noise."""
    gpu = {'name': 'A100', 'power_limit_watts': power_limit, 'default_power_limit_watts': 400.0}
    machine = {**sample_document()['machine'], 'gpus': [gpu]}
    return changed('noise', **QUIET_GPU | noise) | {'machine': machine}


def test_a_quiet_gpu_has_no_warnings():
    assert codes(on_gpu()) == []
    assert codes(on_gpu(gpu_heat_share=0.05, gpu_hardware_slowdown_share=0.05)) == []
    unknown: dict[str, Any] = dict.fromkeys(QUIET_GPU)
    assert codes(on_gpu(**unknown)) == []


@pytest.mark.parametrize(
    ('noise', 'code', 'facts'),
    [
        ({'gpu_heat_share': 0.3}, 'gpu_slowdown', ('30 %', '71 °C', '62 %', 'cooling')),
        (
            {'gpu_heat_share': 0.1, 'gpu_hardware_slowdown_share': 0.3},
            'gpu_slowdown',
            ('30 %', '62 %', 'not for heat', 'nvidia-smi -q -d PERFORMANCE'),
        ),
        ({'gpu_other_processes': 2}, 'gpu_shared', ('2 processes', '--gpu_indices')),
        ({'gpus_lost': 1}, 'gpu_lost', ('1 GPU ', 'Xid')),
    ],
)
def test_a_disturbed_gpu_gives_a_warning_and_a_doubtful_run(noise, code, facts):
    document = on_gpu(**noise)
    check_warning(document, code, *facts)
    warned = record_of(document | {'warnings': [{'code': code, 'text': ''}]})
    assert advice.doubtful_codes(warned) == [code]


def test_a_power_limit_is_reported_if_it_is_below_the_default_and_lowers_the_clock():
    facts = ('300 W', '400 W', '80 %', '93 %', '--power-limit')
    limited = on_gpu(power_limit=300.0, gpu_power_cap_share=0.8)
    check_warning(limited, 'gpu_power_limit', *facts)
    assert codes(on_gpu(gpu_power_cap_share=0.8)) == []
    assert codes(on_gpu(power_limit=300.0, gpu_power_cap_share=0.1)) == []


def test_threads_without_cores_give_a_warning():
    def on_cores(num_threads: int, **machine: Any) -> dict[str, Any]:
        return changed('machine', threads={'intra_op': num_threads, 'inter_op': 2}, **machine)

    bound = {'num_cores': 64, 'affinity': [0, 1]}
    facts = ('8 threads', '2 of 64 cores', 'affinity', '--num_intra_threads=2')
    check_warning(on_cores(8, **bound), 'fewer_cores', *facts)
    facts = ('2 threads', '1.5 of 2 cores', 'cgroup', '--num_intra_threads=1')
    check_warning(on_cores(2, num_cores=2, cgroup_cpus=1.5), 'fewer_cores', *facts)
    check_warning(on_cores(2, **bound), 'fewer_cores', '2 of the 64 cores', 'affinity')
    # Several workers on one host share its cores.
    workers = {'cluster': {**sample_document()['cluster'], 'tasks': ['worker 0', 'worker 1']}}
    assert codes(on_cores(2, **bound) | workers) == []
    quota = on_cores(1, num_cores=2, cgroup_cpus=1) | workers
    check_warning(quota, 'fewer_cores', '1 of the 2 cores', 'cgroup')


def test_where_tensorflow_leaves_onednn_off_the_flag_is_advised():
    document = changed('run', onednn=False)
    (warning,) = advice.find_warnings(record_of(document))
    assert warning.text.endswith('add --onednn')
    runs = "compare --run='--model=lenet --onednn=false' --run='--model=lenet --onednn=true'"
    check_warning(document, 'onednn_off', 'add --onednn', runs)
    # The user chose the value, or oneDNN computes none of the steps.
    for section, values in (
        ('environment', {'TF_ENABLE_ONEDNN_OPTS': '0'}),
        ('command', {'flags': {**document['command']['flags'], 'onednn': False}}),
        ('run', {'device': 'gpu'}),
        ('run', {'role': 'input-only'}),
        ('run', {'onednn': True}),
        ('run', {'onednn': None}),
    ):
        assert codes({**document, section: {**document[section], **values}}) == [], section


def clocked(governor: str, driver: str | None, preference: str | None = None) -> dict[str, Any]:
    names = ('governor', 'frequency_driver', 'energy_preference')
    return changed('machine', **dict(zip(names, (governor, driver, preference), strict=True)))


@pytest.mark.parametrize('driver', ['acpi-cpufreq', 'intel_cpufreq', 'amd-pstate', 'cppc_cpufreq'])
def test_powersave_gives_a_warning_where_it_holds_the_lowest_clock(driver):
    facts = ('performance, powersave', driver, 'cpupower')
    check_warning(clocked('performance, powersave', driver), 'powersave', *facts)
    assert codes(clocked('performance', driver)) == []


@pytest.mark.parametrize('driver', ['intel_pstate', 'amd-pstate-epp'])
def test_where_the_cpu_chooses_its_clock_only_a_preference_for_low_power_gives_a_warning(driver):
    for preference in ('power', 'balance_performance, balance_power'):
        facts = (preference, driver, 'cpupower')
        check_warning(clocked('powersave', driver, preference), 'powersave', *facts)
    for usual in (None, 'default', 'performance', 'balance_performance'):
        assert codes(clocked('powersave', driver, usual)) == []


def test_clusters_with_other_ports_have_one_warning_of_open_ports():
    texts = [
        f'anyone who can connect to port {ports} can read files; close the ports by '
        f'`iptables --dports {in_rule} -j DROP`'
        for ports, in_rule in (('7, 8', '7,8'), ('7, 8, 9', '7,8,9'), ('1 to 20', '1:20'))
    ]
    groups = advice.group_warnings(
        (number, [WarningRow('settings', text)]) for number, text in enumerate(texts)
    )
    [(warning, owners, is_equal)] = groups
    assert (warning.text, owners, is_equal) == (texts[0], [0, 1, 2], False)
