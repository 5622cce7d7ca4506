"""Files and folders that a run is to write: tried before the run, and refused by flag and path."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import refused
from tests.support.sample_results import write_sample
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.outputs import check_file, check_outputs, check_path_conflicts
from tf_cnn.plan.params import Params
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import make_plan
from tf_cnn.system.atomic import write_atomically

pytestmark = pytest.mark.unit


def outputs(folder: Path, **names: str) -> Params:
    paths: dict[str, Any] = {name: str(folder / path) for name, path in names.items()}
    return Params().with_values(**paths)


def test_outputs_that_can_be_written_leave_no_trace(tmp_path):
    (tmp_path / 'old').write_text('kept')
    (tmp_path / 'link').symlink_to(tmp_path / 'not yet')
    check_outputs(outputs(tmp_path, trace_file='old', graph_file='new', tfprof_file='link'))
    check_outputs(outputs(tmp_path, partitioned_graph_file_prefix='part'))
    assert sorted(path.name for path in tmp_path.iterdir()) == ['link', 'old']
    assert (tmp_path / 'old').read_text() == 'kept'
    assert (tmp_path / 'link').is_symlink()


def test_missing_folders_of_outputs_are_made(tmp_path):
    check_outputs(outputs(tmp_path, train_dir='a/b', result_file='c/d/r.json'))
    check_outputs(outputs(tmp_path, trace_file='e/t', partitioned_graph_file_prefix='f/p'))
    folders = {path for path in tmp_path.rglob('*') if path.is_dir()}
    assert folders == {tmp_path / folder for folder in ('a', 'a/b', 'c', 'c/d', 'e', 'f')}


def test_only_the_chief_prepares_outputs_of_the_chief(tmp_path):
    params = outputs(tmp_path, profile_dir='p')
    check_outputs(params, is_chief=False)
    assert list(tmp_path.iterdir()) == []
    check_outputs(params)
    assert list(tmp_path.iterdir()) == [tmp_path / 'p']


def test_an_output_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'file').touch()
    for name, path, fact in (
        ('graph_file', '.', 'is a directory'),
        ('tfprof_file', 'file/t', ''),
        ('train_dir', 'file', ''),
        ('train_dir', 'x' * 300, 'file name too long'),
        ('result_file', 'x' * 256, 'file name too long'),
        ('partitioned_graph_file_prefix', 'x' * 250, 'file name too long'),
        ('profile_dir', 'file/p', ''),
    ):
        flag = f'--{name}={tmp_path / path}'
        with refused(flag) as caught:
            check_outputs(outputs(tmp_path, **{name: path}))
        assert fact in str(caught.value).removeprefix(flag).lower()


@pytest.mark.parametrize('flag', ['train_dir', 'backbone_model_path'])
def test_a_folder_in_which_tensorflow_finds_no_checkpoint_is_refused(flag, tmp_path):
    for name in ('a*b', 'a?b', 'a[b]', 'a\\b'):
        with refused(f'--{flag}={tmp_path}/{name}'):
            check_outputs(outputs(tmp_path, **{flag: name}))
    assert list(tmp_path.iterdir()) == []


def test_an_output_may_be_a_device_or_a_pipe():
    for path in ('/dev/stderr', '/dev/null'):
        check_file('trace_file', path)
        write_atomically('', path)


def test_the_device_of_standard_output_is_standard_output():
    assert make_params(result_file='/dev/stdout').results.result_file == '-'
    with refused('--trace_file=/dev/stdout', 'standard', './-'):
        make_params(trace_file='/dev/stdout')


def test_a_path_elsewhere_than_on_this_machine_is_refused():
    for name in ('train_dir', 'data_dir', 'result_file'):
        with refused(f'--{name}=gs://b/t', 'this machine'):
            make_params(**{name: 'gs://b/t'})


def test_outputs_at_the_same_path_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('link').symlink_to('r.json')
    Path('folder').mkdir()
    Path('of').symlink_to('folder')
    for flags in (
        '--trace_file=t.json --result_file=./t.json',
        '--graph_file=link --result_file=r.json',
        '--trace_file=of/t.json --graph_file=folder/t.json',
        '--result_file=folder/../td --train_dir=td',
        '--trace_file=a --graph_file=a/b',
        '--graph_file=m.py --model_file=./m.py',
    ):
        paths = dict(flag.removeprefix('--').split('=') for flag in flags.split())
        with refused(*flags.split()):
            check_path_conflicts(paths)


def test_outputs_at_different_paths_are_allowed():
    for paths in (
        {'train_dir': 'td', 'eval_dir': 'td', 'result_file': 'td/r.json', 'trace_file': 'td/t'},
        {'trace_file': '/dev/null', 'graph_file': '/dev/null', 'result_file': '-'},
    ):
        check_path_conflicts(paths)


def test_outputs_at_the_same_path_after_filling_in_a_name_are_refused(tmp_path):
    trace, result = f'{tmp_path}/lenet.json', f'{tmp_path}/{{model}}.json'
    params = make_params(model='lenet', trace_file=trace, result_file=result)
    with refused('--trace_file', '--result_file'):
        make_plan(params, ProcessEnvironment())


def test_a_result_replaces_a_result_or_an_empty_file_only(tmp_path):
    notes = tmp_path / 'notes.json'
    notes.write_text('{"mine": 1}')
    with refused(f'--result_file={notes}'):
        check_file('result_file', str(notes))
    check_file('trace_file', str(notes))
    (tmp_path / 'empty').touch()
    check_file('result_file', str(tmp_path / 'empty'))
    check_file('result_file', str(write_sample(tmp_path / 'result.json')))
    assert notes.read_text() == '{"mine": 1}'


def test_a_result_file_is_not_named_after_a_flag_without_a_value():
    values = {'data_dir': '/data', 'train_dir': '/train', 'device': 'cpu', 'num_epochs': 2.0}
    for name, value in values.items():
        template = f'{{{name}}}-x.json'
        with refused(f'--result_file={template}', f'--{name}=VALUE'):
            make_params(result_file=template)
        params = make_params(result_file=template, **{name: value})
        assert params.results.result_file == template
