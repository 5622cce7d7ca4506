"""No result replaces another one that the user still wants: files of results are reserved, and
names are made once.
"""

import contextlib
import json
from pathlib import Path

import pytest

from tests.support.outputs import refused
from tests.support.sample_results import sample_document, step_seconds, untimed_document
from tf_cnn.results.document import Result, read_document, read_result
from tf_cnn.results.file_names import numbered_path
from tf_cnn.results.result_file import check_not_reserved, reserve

pytestmark = pytest.mark.unit


def result(document: dict) -> tuple[str, Result]:
    text = json.dumps(document)
    found = read_document(text, 'made')
    assert isinstance(found, Result)
    return text, found


UNTIMED_DOCUMENT = untimed_document('early')
UNTIMED_DOCUMENT['statistics']['num_steps'] = 0
TIMED, UNTIMED = (
    result(document)
    for document in (sample_document(seconds=step_seconds(num_steps=4)), UNTIMED_DOCUMENT)
)


def test_a_file_that_a_running_process_has_reserved_is_refused_until_it_ends(
    tmp_path: Path,
) -> None:
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


def test_a_run_that_writes_nothing_leaves_no_file_and_an_empty_one_of_the_user_stays(
    tmp_path: Path,
) -> None:
    (tmp_path / 'mine.json').touch()
    for name in ('new.json', 'mine.json'):
        check_not_reserved(str(tmp_path / name))
        with contextlib.suppress(OSError), reserve(str(tmp_path / name)):
            raise OSError
    assert [path.name for path in tmp_path.iterdir()] == ['mine.json']


def test_a_result_without_timed_steps_never_replaces_one_that_has_some(tmp_path: Path) -> None:
    path = tmp_path / 'r.json'
    for (text, made), is_written in (
        (UNTIMED, True),
        (TIMED, True),
        (UNTIMED, False),
        (TIMED, True),
    ):
        before = path.read_bytes() if path.exists() else b''
        with reserve(str(path)) as file:
            assert file.write(text, made) is is_written
        assert (path.read_bytes() == before) is not is_written or text == TIMED[0]
    found = read_result(path)
    assert isinstance(found, Result)
    assert found.statistics.num_steps == 4


@pytest.mark.parametrize(
    ('template', 'names'),
    [
        ('{date}-{time}.json', ['d-t.json', 'd-t.2.json', 'd-t.3.json']),
        ('{model}-{run}.json', ['m-1.json', 'm-2.json', 'm-3.json']),
        ('{run}/{time}.json', ['1/t.json', '2/t.json', '3/t.json']),
    ],
)
def test_a_name_that_the_program_chooses_is_made_once_and_the_next_free_one_is_taken(
    template: str, names: list[str], tmp_path: Path
) -> None:
    values = {'date': 'd', 'time': 't', 'model': 'm', 'run': 1}
    numbered = numbered_path(f'{tmp_path}/{template}', values)
    with contextlib.ExitStack() as stack:
        # Processes that run at the same time, and one after them.
        for name in names[:2]:
            file = stack.enter_context(reserve(f'{tmp_path}/{names[0]}', numbered))
            assert file.path == f'{tmp_path}/{name}'
            file.write(*TIMED)
    with reserve(f'{tmp_path}/{names[0]}', numbered) as file:
        assert file.path == f'{tmp_path}/{names[2]}'
    assert sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob('*.json')
    ) == sorted(names[:2])
    assert numbered_path('{model}-{batch_size}.json', {**values, 'batch_size': 1}) is None
