"""No result replaces another one that the user still wants: files of results are reserved, and
names are made once.
"""

import contextlib
import json
from pathlib import Path

import pytest

from tests.support.outputs import refused
from tests.support.sample_results import record_of, sample_document, untimed_document
from tf_cnn.results.file_names import numbered_path
from tf_cnn.results.result_file import check_not_reserved, reserve

pytestmark = pytest.mark.unit


TIMED, UNTIMED = (
    (json.dumps(document), record_of(document))
    for document in (sample_document(num_steps=4), untimed_document('early'))
)


def test_a_file_that_a_running_process_has_reserved_is_refused_until_it_ends(tmp_path):
    path, link = tmp_path / 'r.json', tmp_path / 'link.json'
    link.symlink_to(path)
    with reserve(str(path)) as file:
        for other in (path, link):
            with refused(f'--result_file={other}', 'another run'):
                check_not_reserved(str(other))
            with refused(f'--result_file={other}', 'another run'), reserve(str(other)):
                pass
        assert file.write(*TIMED)
    check_not_reserved(str(path))
    with reserve(str(link)) as file:
        assert file.write(*TIMED)
    assert link.is_symlink()


def test_a_run_that_writes_nothing_leaves_no_file_and_keeps_the_users_empty_one(tmp_path):
    (tmp_path / 'mine.json').touch()
    for name in ('new.json', 'mine.json'):
        check_not_reserved(str(tmp_path / name))
        with contextlib.suppress(OSError), reserve(str(tmp_path / name)):
            raise OSError
    assert [path.name for path in tmp_path.iterdir()] == ['mine.json']


def test_a_result_without_timed_steps_never_replaces_one_that_has_some(tmp_path):
    path = tmp_path / 'r.json'
    for (text, made), content in (
        (UNTIMED, UNTIMED[0]),
        (TIMED, TIMED[0]),
        (UNTIMED, TIMED[0]),
        (TIMED, TIMED[0]),
    ):
        with reserve(str(path)) as file:
            assert file.write(text, made) is (text == content)
        assert path.read_text() == f'{content}\n'


def test_a_name_that_the_program_chooses_is_the_next_one_that_is_free(tmp_path):
    values = {'date': 'd', 'time': 't', 'model': 'm', 'run': 1}
    for template, *names in (
        ('{date}-{time}.json', 'd-t.json', 'd-t.2.json', 'd-t.3.json'),
        ('{model}-{run}.json', 'm-1.json', 'm-2.json', 'm-3.json'),
        ('{run}/{time}.json', '1/t.json', '2/t.json', '3/t.json'),
    ):
        numbered = numbered_path(f'{tmp_path}/{template}', values)
        first, second, third = (f'{tmp_path}/{name}' for name in names)
        # Processes that run at the same time, and one after them.
        with reserve(first, numbered) as file, reserve(first, numbered) as other:
            assert (file.path, other.path) == (first, second)
            file.write(*TIMED)
            other.write(*TIMED)
        with reserve(first, numbered) as file:
            assert file.path == third
        assert [Path(path).exists() for path in (first, second, third)] == [True, True, False]


def test_a_name_without_the_time_or_the_number_of_a_run_is_the_users_choice():
    assert numbered_path('{model}-{batch_size}.json', {'model': 'm', 'batch_size': 1}) is None
