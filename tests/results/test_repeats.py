"""Which runs are repeats of each other: the same work with the same settings, wherever these were said."""

from typing import Any

import pytest

from comparison.differences import flag_differences
from params.table import SPECS
from results.repeats import repeat_key
from tests.support.sample_results import record_of, sample_document, sample_record

pytestmark = pytest.mark.unit


def key_of(document: dict[str, Any] | None = None, **flags: Any) -> str:
    return repeat_key(record_of(document) if document else sample_record(flags=flags))


def test_a_flag_of_a_later_version_counts_if_it_was_given_and_is_not_at_its_default() -> None:
    older = sample_document()
    flags = older['command']['flags']
    older['command']['flags'] = {name: value for name, value in flags.items() if value != SPECS[name].default}
    assert len(older['command']['flags']) < len(flags) / 2
    assert key_of(older) == key_of()
    assert key_of(xla=True) != key_of(xla=False) == key_of()
    assert key_of(some_later_flag=1) != key_of()
    flags['some_later_flag'] = 1
    assert key_of(older | {'command': {**older['command'], 'flags': flags}}) == key_of()


@pytest.mark.parametrize('flag', ['model_file', 'variable_mgr_file'])
def test_the_content_of_a_file_of_a_user_counts_and_not_its_path(flag: str) -> None:
    def key(path: str, content: str) -> str:
        document = sample_document(flags={flag: path})
        document['run'][f'{flag}_sha256'] = content
        return key_of(document)

    assert key('a/mine.py', '1') == key('b/mine.py', '1') != key('a/mine.py', '2') != key_of()


@pytest.mark.parametrize(
    ('name', 'unset', 'value', 'other'),
    [
        ('device', None, 'cpu', 'gpu'),
        ('data_format', None, 'NHWC', 'NCHW'),
        ('batch_size', 0, 64, 32),
        ('precision', 'fp32', 'fp16', 'bf16'),
    ],
)
def test_a_value_that_was_chosen_by_the_run_is_the_same_as_one_that_was_given(
    name: str, unset: object, value: object, other: object
) -> None:
    def key(flag: object, used: object) -> str:
        document = sample_document()
        document['command']['flags'][name], document['run'][name] = flag, used
        return key_of(document)

    assert key(unset, value) == key(value, value)
    assert key(unset, value) != key(unset, other)


def test_fp32_and_fp32_in_tf32_are_two_settings_and_their_difference_is_named() -> None:
    older, on_cpu, in_tf32 = (sample_document() for _ in range(3))
    del older['run']['tf32'], older['command']['flags']['tf32']
    assert (on_cpu['run']['tf32'], on_cpu['command']['flags']['tf32']) == (False, True)
    in_tf32['run']['tf32'] = True
    assert key_of(older) == key_of(on_cpu) != key_of(in_tf32)
    assert flag_differences([record_of(on_cpu), record_of(in_tf32)]) == {'tf32': (False, True)}


def test_what_is_done_between_steps_belongs_to_the_setting_and_the_length_of_a_run_and_its_files_do_not() -> None:
    assert key_of(display_every=1) != key_of(display_every=100)
    assert key_of(train_dir='a', save_model_steps=10) != key_of(train_dir='a')
    assert key_of(train_dir='a') == key_of(train_dir='b') != key_of()
    first = key_of(num_batches=10, result_file='a', tf_random_seed=1, repeat=2)
    assert first == key_of(num_batches=20, measure_peak=True)


def test_machines_versions_and_variables_tell_runs_apart() -> None:
    documents = [sample_document() for _ in range(4)]
    documents[1]['machine']['versions']['tensorflow'] = '2.20.0'
    documents[2]['environment'] = {'TF_XLA_FLAGS': '--tf_xla_auto_jit=2'}
    documents[3]['machine']['fingerprint'] = 'another'
    records = [record_of(document) for document in documents]
    assert len(set(map(repeat_key, records))) == 4
    assert len({repeat_key(record, across_versions=True) for record in records}) == 3
