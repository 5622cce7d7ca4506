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
from tests.support.sample_results import cut_off, record_of, sample_document, step_seconds
from tf_cnn.results import advice
from tf_cnn.results.document import Result, as_json
from tf_cnn.results.sections import StatisticsSection, WarningRow

pytestmark = pytest.mark.unit

NUM_STEPS = 100


def steps(
    seed: int = 0, num_steps: int = NUM_STEPS, noise: float = 0.02, likeness: float = 0.5
) -> NDArray[np.float64]:
    """Seconds of steps of 0.3 s with normal noise; each step is like the one before it (a process
    AR(1)).
    """
    draw = np.random.default_rng(seed)
    kicks = draw.normal(0, noise * math.sqrt(1 - likeness**2), num_steps)
    found = np.empty(num_steps)
    now = draw.normal(0, noise)
    for index, kick in enumerate(kicks):
        now = likeness * now + kick
        found[index] = now
    return 0.3 * (1 + found)


def changed(section: str, **values: Any) -> dict[str, Any]:
    """A document of a clean run with other values in one of its objects."""
    document = sample_document(seconds=steps())
    return document | {section: {**document.get(section, {}), **values}}


def advise(found: Result | dict[str, Any]) -> list[WarningRow]:
    result = found if isinstance(found, Result) else record_of(found)
    return advice.find_warnings(result, ['--model=lenet'])


def the_warning(code: str, document: Result | dict[str, Any], *facts: str) -> None:
    """Fails unless this is the only warning, and it names these facts."""
    found = advise(document)
    assert [warning.code for warning in found] == [code], found
    text = found[0].text
    assert '\n' not in text
    for fact in facts:
        assert fact in text, text


@pytest.mark.parametrize('likeness', [0.0, 0.5, 0.8])
@pytest.mark.parametrize('num_steps', [20, 50, 400])
def test_clean_runs_have_no_warnings(num_steps: int, likeness: float) -> None:
    codes = Counter(
        warning.code
        for seed in range(100)
        for warning in advise(sample_document(seconds=steps(seed, num_steps, likeness=likeness)))
    )
    assert codes.total() <= 2, codes


def test_a_result_of_an_evaluation_or_without_steps_has_no_warnings() -> None:
    document = sample_document(run={'role': 'evaluation'})
    document['workers'] = []
    document['statistics'] = as_json(StatisticsSection.of([]))
    assert advise(document) == []


def test_a_slow_first_step_asks_for_more_warm_up() -> None:
    seconds = steps()
    seconds[0] = 0.93
    document = sample_document(seconds=seconds, flags={'num_warmup_batches': 2})
    the_warning('slow_first_step', document, '3.1 times', '2 steps', '--num_warmup_batches=10')
    the_warning(
        'slow_first_step',
        sample_document(seconds=seconds, flags={'num_warmup_batches': 20}),
        '--num_warmup_batches=40',
    )


def test_outliers_are_counted_and_their_time_told() -> None:
    seconds = steps()
    seconds[[30, 60]] = 2.4, 1.8
    the_warning(
        'outliers',
        sample_document(seconds=seconds),
        '2 outliers',
        '100 timed steps',
        '2400 ms',
        '11 %',
    )
    # Those that cost little are no news.
    seconds = steps(num_steps=1000)
    seconds[500] = 1.2
    assert StatisticsSection.of(seconds).num_outliers == 1
    assert advise(sample_document(seconds=seconds)) == []


def test_a_large_spread_is_told() -> None:
    the_warning(
        'spread', sample_document(seconds=steps(noise=0.3, likeness=0)), '% of their median', 'ms'
    )


@pytest.mark.parametrize(('change', 'words'), [(-0.1, 'slower'), (0.1, 'faster')])
def test_drift_beyond_noise_is_told(change: float, words: str) -> None:
    seconds = steps() * np.linspace(1 + change, 1 - change, NUM_STEPS)
    the_warning('drift', sample_document(seconds=seconds), words, '--num_batches')


def test_two_runs_of_many_steps_show_no_drift_beyond_noise() -> None:
    document = sample_document(seconds=[0.1] * 50 + [0.107] * 50)
    the_warning('drift', document, 'slower')
    assert advise({**document, 'run': {**document['run'], 'steps_per_run': 50}}) == []


def test_few_steps_are_told() -> None:
    the_warning(
        'few_steps',
        sample_document(seconds=steps(num_steps=19)),
        '19 timed steps',
        '--num_batches=20',
    )
    the_warning('few_steps', sample_document(seconds=[3.0]), '1 timed step,')


def test_a_run_under_2_seconds_is_told_that_and_nothing_that_follows() -> None:
    document = sample_document(seconds=0.01 * steps(noise=0.3, likeness=0))
    the_warning('too_short', document, '0.307 s', '--target_seconds=10')


def test_a_run_that_was_stopped_is_not_told_to_ask_for_more_steps() -> None:
    for seconds, code in (
        (step_seconds(0.01, 20), 'too_short'),
        (step_seconds(3.0, 4), 'few_steps'),
    ):
        document = sample_document(
            seconds=seconds,
            flags={'target_seconds': 600.0, 'num_batches': None},
            **cut_off('stopped by SIGINT'),
        )
        (warning,) = advise(document)
        assert warning.code == code
        check_line(warning.text, 'let the run take all of its steps')
        assert '--' not in warning.text
    stopped = record_of(sample_document(seconds=[0.1] * 10, **cut_off('stopped by SIGINT')))
    assert '--target_seconds' not in advice.noise_warnings([stopped])[0]
    complete = record_of(sample_document(seconds=[0.1] * 10))
    assert advice.noise_warnings([stopped, complete])[0].endswith('use --target_seconds=10')


def test_one_disturbance_is_one_warning() -> None:
    seconds = steps(noise=0.3, likeness=0) * np.linspace(0.5, 1.5, NUM_STEPS)
    seconds[30] = 9.0
    document = sample_document(seconds=seconds)
    assert len(advise(document)) == 1
    the_warning(
        'machine_loaded',
        document | {'noise': {'seconds': 30.0, 'other_cpu_share': 0.35}},
        '35 %',
    )


def test_steps_beside_a_checkpoint_are_no_outliers() -> None:
    seconds = steps()
    seconds[[30, 60]] = 2.4
    document = sample_document(seconds=seconds)
    assert advise(document)
    of_steps = document['workers'][0]['steps']
    num_warmup = len(of_steps['seconds']) - NUM_STEPS
    of_steps['between']['checkpoint'] = [0.0] * len(of_steps['seconds'])
    for step in (29, 60):
        of_steps['between']['checkpoint'][num_warmup + step] = 0.1
    assert advise(document) == []


def test_tables_count_the_runs_that_were_disturbed_or_too_short() -> None:
    disturbed = [
        record_of(
            changed('noise', other_cpu_share=share) | {'warnings': [{'code': code, 'text': ''}]}
        )
        for code, share in (('machine_loaded', 0.88), ('spread', None), ('powersave', 0.05))
    ]
    short = record_of(sample_document(seconds=[0.1] * 10))
    first, second = advice.noise_warnings([*disturbed, short])
    check_line(first, '! 2 of 4 runs were disturbed', 'up to 88 %')
    check_line(second, '! 1 of 4 runs was too short')
    assert [advice.doubt_mark([result]) for result in (*disturbed, short)] == ['! ', '! ', '', '! ']
    assert advice.noise_warnings(disturbed[2:]) == []
    found = [advice.format_doubtful([result]) for result in (*disturbed, short)]
    assert found == ['other programs', 'spread', '', 'too short']
    # One cause does not stand for another one.
    check_line(first, 'other programs (1 run, up to 88 % of the cores)', 'spread (1 run)')
    assert (
        advice.format_doubtful([*disturbed, short])
        == '3 of 4: other programs (1), spread (1), too short (1)'
    )
    assert advice.format_doubtful([short, disturbed[2], short]) == '2 of 3: too short'


@pytest.mark.parametrize('value', [None, math.nan])
def test_a_loss_that_is_no_number_is_told_with_its_step(value: float | None) -> None:
    result = record_of(sample_document(seconds=steps(), cluster={'num_workers': 2}))
    losses = result.workers[1].steps.loss
    result.workers[1].steps.loss = [*losses[:90], *[value] * 12]
    # Of the 2 warm-up steps and 100 timed ones, the 91st.
    the_warning(
        'loss_not_finite', result, 'worker 1', 'step 91', '12 of 102 steps', '--init_learning_rate'
    )


def test_a_run_that_waits_for_its_input_is_told() -> None:
    the_warning('input_bound', changed('input', wait_seconds=6.0, wait_share=0.2), '20 %', '6 s')
    assert advise(changed('input', wait_seconds=1.5, wait_share=0.05)) == []


def test_time_between_steps_is_told_with_its_cause() -> None:
    spent = {'printing': 1.0, 'checkpoint': 3.0, 'evaluation': 50.0}
    document = changed('throughput', wall_seconds=34.0, between_seconds=spent)
    the_warning(
        'between_steps', document, '12 %', '4 s', '3 s of it with checkpoint', '--save_model_secs'
    )
    spent = {'other': 10.0}
    the_warning(
        'between_steps',
        changed('throughput', wall_seconds=40.0, between_seconds=spent),
        '25 %',
        'other',
    )


def test_what_else_the_machine_did_is_told() -> None:
    quiet: dict[str, Any] = {
        'seconds': 30.0,
        'steal_share': 0.001,
        'other_cpu_share': 0.05,
        'thermal_throttles': 0,
    }
    assert advise(changed('noise', **quiet, cgroup_throttled_seconds=0.1)) == []
    the_warning(
        'machine_loaded',
        changed('noise', **quiet | {'other_cpu_share': 0.35}),
        '35 %',
        'taskset',
    )
    the_warning('steal', changed('noise', **quiet | {'steal_share': 0.08}), '8 %')
    the_warning(
        'thermal_throttling', changed('noise', **quiet | {'thermal_throttles': 1}), '1 time '
    )
    the_warning(
        'cpu_quota', changed('noise', **quiet, cgroup_throttled_seconds=12.0), '12 s', '30 s'
    )


def test_threads_without_cores_are_told() -> None:
    by_affinity = changed(
        'machine', num_cores=64, affinity=[0, 1], threads={'intra_op': 8, 'inter_op': 2}
    )
    the_warning(
        'fewer_cores',
        by_affinity,
        '8 threads',
        '2 of 64 cores',
        'affinity',
        '--num_intra_threads=2',
    )
    by_quota = changed('machine', num_cores=2, cgroup_cpus=1.5)
    the_warning(
        'fewer_cores', by_quota, '2 threads', '1.5 of 2 cores', 'cgroup', '--num_intra_threads=1'
    )
    cluster = {**by_quota['cluster'], 'tasks': ['worker 0', 'worker 1']}
    fewer = changed(
        'machine', num_cores=64, affinity=[0, 1], threads={'intra_op': 2, 'inter_op': 2}
    )
    the_warning('fewer_cores', fewer, '2 of the 64 cores', 'affinity')
    assert advise({**fewer, 'cluster': cluster}) == []
    quota = changed('machine', num_cores=2, cgroup_cpus=1, threads={'intra_op': 1, 'inter_op': 2})
    the_warning('fewer_cores', {**quota, 'cluster': cluster}, '1 of the 2 cores', 'cgroup')


def test_a_run_where_tensorflow_leaves_onednn_off_names_the_command_that_measures_both() -> None:
    document = changed('run', onednn=False)
    the_warning(
        'onednn_off',
        document,
        "compare --run='--model=lenet --onednn=false' --run='--model=lenet --onednn=true'",
    )
    # Somebody chose it, or it computes nothing that was measured.
    for section, values in (
        ('environment', {'TF_ENABLE_ONEDNN_OPTS': '0'}),
        ('command', {'flags': {**document['command']['flags'], 'onednn': False}}),
        ('run', {'device': 'gpu'}),
        ('run', {'role': 'input-only'}),
        ('run', {'onednn': True}),
        ('run', {'onednn': None}),
    ):
        assert advise({**document, section: {**document[section], **values}}) == [], section


def test_a_governor_that_saves_power_is_told() -> None:
    the_warning(
        'powersave', changed('machine', governor='performance, powersave'), 'powersave', 'cpupower'
    )
    assert advise(changed('machine', governor='performance')) == []
