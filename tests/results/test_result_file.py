"""No result replaces another one that the user still wants, and no two runs write one file."""

import itertools
import json
import os
import threading
from pathlib import Path

import pytest

from tests.support.sample_results import record_of, sample_document, untimed_document
from tf_cnn.results.file_names import may_replace, names_in_order, numbered_path
from tf_cnn.results.result_file import file_version, write_new, write_result

pytestmark = pytest.mark.unit


TIMED, UNTIMED = (
    (json.dumps(document), record_of(document))
    for document in (sample_document(num_steps=4), untimed_document('early'))
)


def test_a_result_replaces_the_file_that_was_there_when_its_run_began(tmp_path):
    path, link = tmp_path / 'r.json', tmp_path / 'link.json'
    path.write_text('{}')
    link.symlink_to(path)
    for name in (str(path), str(link)):
        assert write_result(*TIMED, name, file_version(name)) == name
        assert path.read_text() == f'{TIMED[0]}\n'
        path.write_text('{}')
    assert link.is_symlink()


@pytest.mark.parametrize('content', [None, '{}'])
def test_runs_that_go_on_at_the_same_time_write_different_files(content, tmp_path):
    path = tmp_path / 'r.json'
    if content:
        path.write_text(content)
    version = file_version(str(path))
    starts, targets = threading.Barrier(8), list[str | None]()

    def run(number: int) -> None:
        starts.wait()
        targets.append(write_result(str(number), TIMED[1], str(path), version))

    threads = [threading.Thread(target=run, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = ['r.json', *(f'r.{number}.json' for number in range(2, 9))]
    assert {*targets} == {str(tmp_path / name) for name in names}
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert {int(file.read_text()) for file in tmp_path.iterdir()} == {*range(8)}


def test_a_result_without_timed_steps_never_replaces_one_that_has_some(tmp_path):
    path = tmp_path / 'r.json'
    for (text, result), content in (
        (UNTIMED, UNTIMED[0]),
        (TIMED, TIMED[0]),
        (UNTIMED, TIMED[0]),
        (TIMED, TIMED[0]),
    ):
        target = write_result(text, result, str(path), file_version(str(path)))
        assert target == (str(path) if text == content else None)
        assert path.read_text() == f'{content}\n'


def test_a_name_that_the_program_chooses_is_the_next_one_that_is_free(tmp_path):
    for path, *names in (
        ('d-t.json', 'd-t.json', 'd-t.2.json', 'd-t.3.json'),
        ('m-{run}.json', 'm-1.json', 'm-2.json', 'm-3.json'),
        ('{run}/t.json', '1/t.json', '2/t.json', '3/t.json'),
    ):
        targets = [write_result(*TIMED, f'{tmp_path}/{path}', None) for _ in names]
        assert targets == [f'{tmp_path}/{name}' for name in names]
        assert all(Path(target).read_text() == f'{TIMED[0]}\n' for target in targets if target)


def test_a_repeat_gets_its_own_number_or_the_next_free_one(tmp_path):
    path = numbered_path(f'{tmp_path}/r.json')
    assert [*itertools.islice(names_in_order(path, 3), 2)] == [
        f'{tmp_path}/r.3.json',
        f'{tmp_path}/r.4.json',
    ]
    targets = [write_new('{}', names_in_order(path, number)) for number in (2, 1, 1)]
    assert targets == [f'{tmp_path}/r.{number}.json' for number in (2, 1, 3)]


def test_a_name_without_the_time_or_the_number_of_a_run_is_the_users_choice():
    assert may_replace('{model}-{batch_size}.json')
    assert not any(map(may_replace, ('{date}.json', '{time}.json', 'a-{run}.json')))
