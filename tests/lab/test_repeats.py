"""Runs are repeats if they do the same work with the same settings, however these are given."""

from typing import Any

import pytest

from tests.support.sample_results import record_of, sample_document
from tf_cnn.lab.against import same_batch_size
from tf_cnn.lab.rows import make_rows
from tf_cnn.lab.runs import flag_differences, format_differences, repeat_key, workload_differences
from tf_cnn.lab.sides import Side
from tf_cnn.plan.params import SPECS

pytestmark = pytest.mark.unit


def key_of(document: dict[str, Any] | None = None, **flags: Any) -> str:
    return repeat_key(record_of(document or sample_document(flags=flags)))


def test_a_flag_of_a_later_version_counts_if_it_was_given_and_is_not_at_its_default():
    older = sample_document()
    flags = older['command']['flags']
    changed = {name: value for name, value in flags.items() if value != SPECS[name].default}
    assert len(changed) < len(flags) / 2
    older['command']['flags'] = changed
    assert key_of(older) == key_of()
    assert key_of(xla=True) != key_of(xla=False) == key_of()
    assert key_of(some_later_flag=1) != key_of()
    older['command']['flags'] = {**flags, 'some_later_flag': 1}
    assert key_of(older) == key_of()


@pytest.mark.parametrize('flag', ['model_file', 'variable_mgr_file'])
def test_the_content_of_a_users_file_counts_and_not_its_path(flag):
    def key(path: str, content: str) -> str:
        return key_of(sample_document(flags={flag: path}, run={f'{flag}_sha256': content}))

    assert key('a/mine.py', '1') == key('b/mine.py', '1') != key('a/mine.py', '2') != key_of()


def test_a_value_that_the_run_chose_equals_the_same_explicit_value():
    def key(name: str, flag: object, used: object) -> str:
        document = sample_document()
        document['command']['flags'][name], document['run'][name] = flag, used
        return key_of(document)

    for name, unset, value, other in (
        ('device', None, 'cpu', 'gpu'),
        ('data_format', None, 'NHWC', 'NCHW'),
        ('batch_size', 0, 64, 32),
        ('precision', 'fp32', 'fp16', 'bf16'),
    ):
        assert key(name, unset, value) == key(name, value, value) != key(name, unset, other)


def test_fp32_and_fp32_in_tf32_are_two_settings_and_their_difference_is_named():
    older, on_cpu = sample_document(), sample_document()
    del older['run']['tf32'], older['command']['flags']['tf32']
    assert (on_cpu['run']['tf32'], on_cpu['command']['flags']['tf32']) == (False, True)
    in_tf32 = sample_document(run={'tf32': True})
    assert key_of(older) == key_of(on_cpu) != key_of(in_tf32)
    assert flag_differences([record_of(on_cpu), record_of(in_tf32)]) == {'tf32': (False, True)}


def test_work_between_steps_belongs_to_the_setting_and_lengths_and_files_do_not():
    assert key_of(display_every=1) != key_of(display_every=100)
    assert key_of(train_dir='a', save_model_steps=10) != key_of(train_dir='a')
    assert key_of(train_dir='a') == key_of(train_dir='b') != key_of()
    first = key_of(num_batches=10, result_file='a', tf_random_seed=1, repeat=2)
    assert first == key_of(num_batches=20, measure_peak=True)
    cluster: dict[str, Any] = {'worker_hosts': 'a:1,b:1', 'variable_update': 'parameter_server'}
    assert key_of(ps_hosts='c:1', **cluster) == key_of(ps_hosts='d:1', **cluster)


def test_machines_versions_and_variables_tell_runs_apart():
    first, other_version, variable, machine = (sample_document() for _ in range(4))
    other_version['machine']['versions']['tensorflow'] = '2.20.0'
    variable['environment'] = {'TF_XLA_FLAGS': '--tf_xla_auto_jit=2'}
    machine['machine']['fingerprint'] = 'another'
    records = [record_of(document) for document in (first, other_version, variable, machine)]
    assert len({*map(repeat_key, records)}) == 4
    assert len({repeat_key(record, across_versions=True) for record in records}) == 3


def test_runs_of_different_work_are_no_repeats_even_with_the_same_flags():
    for name, values in (('image_size', (28, 32)), ('data_set', ('imagenet', 'cifar10'))):
        first, other = (record_of(sample_document(run={name: value})) for value in values)
        assert repeat_key(first) != repeat_key(other)
        assert workload_differences(first, other) == {name: values}


# What limited a run: a property of its machine, without the limit and with it.
LIMITS: dict[str, tuple[Any, Any]] = {
    'affinity': ([0, 1], [0]),
    'cgroup_cpus': (None, 1.0),
    'cgroup_memory_bytes': (None, 2**31),
    'governor': (None, 'powersave'),
    'frequency_driver': (None, 'acpi-cpufreq'),
    'energy_preference': ('balance_performance', 'power'),
    'kernel': ('6.1.0', '6.2.0'),
    'num_physical_cores': (2, 1),
    'cpu_features': (['avx2', 'avx512f'], ['avx2']),
    'gpus.power_limit_watts': ([300.0], [200.0]),
}


def limited(name: str, value: Any, **changes: Any) -> dict[str, Any]:
    """Returns a result of a run on a machine with this value of a property."""
    if name.startswith('gpus.'):
        gpus = [{'name': 'A100', 'uuid': 'GPU-1', name.partition('.')[2]: limit} for limit in value]
        return sample_document(machine={'gpus': gpus}, **changes)
    return sample_document(machine={name: value}, **changes)


@pytest.mark.parametrize('name', LIMITS)
def test_runs_under_another_limit_are_no_repeats_and_the_limit_is_named(name):
    values = LIMITS[name]
    before, after = (record_of(limited(name, value)) for value in values)
    assert before.machine['fingerprint'] == after.machine['fingerprint']
    for across in (False, True):
        keys = {repeat_key(record, across_versions=across) for record in (before, after)}
        assert len(keys) == 2
    runs = [
        record_of(limited(name, values[number % 2], rate=100 - 50 * (number % 2), noise=0))
        for number in range(6)
    ]
    baseline, row = make_rows([Side('', runs)], same_batch_size)
    assert (len(baseline.runs), len(row.runs), row.verdict) == (3, 3, 'slower')
    assert row.setting[name] != baseline.setting[name]


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ((['avx2', 'f16c', 'fma'], ['avx2', 'avx512f', 'fma']), 'cpu_features f16c -> avx512f'),
        ((['avx2', 'fma'], ['avx2']), 'cpu_features fma -> none'),
        (([], ['avx2']), 'cpu_features none -> avx2'),
        ((['avx2', 'fma'], None), 'cpu_features avx2, fma -> none'),
    ],
)
def test_only_the_processor_features_that_differ_are_named(values, text):
    assert format_differences({'cpu_features': values}) == text


def test_load_reserved_memory_and_an_unknown_limit_are_no_limits():
    assert 'energy_preference' not in sample_document()['machine']
    for name, value in (
        ('energy_preference', None),
        ('load_average', [9.0] * 3),
        ('memory_bytes', 25276502010),
    ):
        assert key_of(limited(name, value)) == key_of()
