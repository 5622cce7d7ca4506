"""The document of a result: whole, true to its schema, and written however a run ends."""

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmark_cnn import BenchmarkCNN
from commands import benchmark
from params import make_params
from results import result as results
from results.console import Console
from results.document import Record, as_json, read_result_file
from results.sections import Ending, Phase
from tests.support.images import write_digits
from tests.support.outputs import failed, refused

pytestmark = [pytest.mark.graph, pytest.mark.long]

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(results.__file__).parent / 'result.schema.json').read_text(encoding='utf-8'))
)
SHORT: dict[str, Any] = {
    'model': 'lenet',
    'device': 'cpu',
    'batch_size': 4,
    'num_batches': 5,
    'num_warmup_batches': 2,
    'display_every': 2,
}


def read(path: Path) -> Record:
    record = read_result_file(path)
    assert isinstance(record, Record)
    SCHEMA.validate(json.loads(path.read_text()))
    return record


def test_a_result_file_has_what_the_run_printed_and_every_raw_value(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    path = tmp_path / '{model}-{batch_size}-{shape}.json'
    settings = {**SHORT, 'num_gpus': 2, 'variable_update': 'replicated', 'train_dir': str(tmp_path / 'train')}
    params = make_params(
        **settings, save_model_steps=3, print_training_accuracy=True, wait_for_idle=1, result_file=str(path)
    )
    result = BenchmarkCNN(params, Console(out, err)).run()
    record = read(tmp_path / 'lenet-4-1*2.json')
    document = as_json(record)
    assert record.is_complete
    assert record.shape == '1*2'
    # The wait for idle cores came before the time to the first step.
    assert document['disturbance']['waited_seconds'] >= 2
    assert document['disturbance']['other_cpu_share_before'] >= 0
    assert (document['disturbance']['other_cpu_share_before'] > 0.1) is ('--wait_for_idle=1' in err.getvalue())
    assert sum(document['phases'][name] or 0 for name in ('import', 'join')) < 1
    assert f'total images/sec: {record.images_per_second:.2f}' in out.getvalue()
    steps = document['workers'][0]['steps']
    assert steps['phase'] == ['warmup'] * 2 + ['timed'] * 5
    assert steps['global_step'] == [1, 2, 3, 4, 5, 6, 7]
    assert steps['seconds'] == [step.seconds for step in result.steps]
    assert steps['loss'] == [step.values.loss for step in result.steps]
    assert len(steps['top_1']) == len(steps['learning_rate']) == 7
    # Checkpoints after the global steps 3 and 6; lines after the timed steps 1, 2 and 4, and after the last one.
    assert [bool(seconds) for seconds in steps['between']['checkpoint']] == [
        False,
        False,
        True,
        False,
        False,
        True,
        False,
    ]
    assert [bool(seconds) for seconds in steps['between']['printing']] == [False, False, True, True, False, True, False]
    wall = steps['start'][-1] + steps['seconds'][-1] - steps['start'][2]
    assert document['throughput']['wall_seconds'] == pytest.approx(wall, abs=1e-5)
    assert record.images_per_second == pytest.approx(5 * 8 / wall, rel=1e-4)
    assert record.wall_seconds().sum() == pytest.approx(wall, abs=1e-5)
    assert document['phases']['build'] > 0
    assert document['model']['parameters'] > 1e6
    assert document['compute']['flops_per_image'] == pytest.approx(6e9 * document['model']['gflops_per_image'])
    assert document['command']['given']['model'] == '--model=lenet'
    assert document['command']['flags']['momentum'] == 0.9


def test_the_document_goes_to_standard_output_alone(capfd: pytest.CaptureFixture[str]) -> None:
    flags = [f'--{name}={value}' for name, value in SHORT.items()]
    assert benchmark.main([*flags, '--result_file=-']) == 0
    out, err = capfd.readouterr()
    document = json.loads(out)
    SCHEMA.validate(document)
    assert f'total images/sec: {document["throughput"]["images_per_second"]:.2f}' in err
    assert document['command']['argv'][-1] == '--result_file=-'


def test_a_run_that_fails_leaves_its_steps_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / 'r.json'
    with failed('--init_learning_rate'):
        # Weights of 1e38 overflow in the first product.
        flags = {**SHORT, 'model': 'mnist', 'data_dir': write_digits(tmp_path / 'digits')}
        BenchmarkCNN(make_params(**flags, init_learning_rate=1e38, result_file=str(path)), Console()).run()
    record = read(path)
    assert not record.is_complete
    assert '--init_learning_rate' in (record.reason or '')
    assert record.ended.exit_code == 1
    assert record.workers[0].steps.loss[-1] is None
    assert 'loss' in ' '.join(warning.text for warning in record.warnings)


def test_a_run_that_is_interrupted_between_two_steps_leaves_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / 'r.json'
    steps = BenchmarkCNN(make_params(**SHORT, result_file=str(path)), Console(io.StringIO(), io.StringIO())).steps()
    for step in steps:
        if step.phase is Phase.TIMED and step.index == 3:
            with pytest.raises(KeyboardInterrupt):
                steps.throw(KeyboardInterrupt())
            break
    record = read(path)
    assert record.ended == Ending(130, 'interrupted')
    assert len(record.step_seconds()) == 3


class _LeftReader(io.StringIO):
    """A stream whose reader leaves at the first step."""

    def write(self, text: str) -> int:
        if text.startswith('1\t'):
            raise BrokenPipeError
        return super().write(text)


def test_a_run_whose_output_nobody_reads_any_more_leaves_its_steps(tmp_path: Path) -> None:
    path = tmp_path / 'r.json'
    with pytest.raises(BrokenPipeError):
        BenchmarkCNN(make_params(**SHORT, result_file=str(path)), Console(_LeftReader(), io.StringIO())).run()
    record = read(path)
    assert not record.is_complete
    assert len(record.step_seconds()) == 1


def test_an_evaluation_has_a_result_too(tmp_path: Path) -> None:
    train_dir, path = str(tmp_path / 'train'), tmp_path / 'r.json'
    BenchmarkCNN(make_params(**SHORT, train_dir=train_dir)).run()
    params = make_params(
        model='lenet', device='cpu', batch_size=4, eval=True, num_eval_batches=2, train_dir=train_dir, result_file=path
    )
    BenchmarkCNN(params, Console(io.StringIO(), io.StringIO())).run()
    record = read(path)
    assert record.run.role == 'evaluation'
    (found,) = record.evaluations
    assert (found.step, found.num_images) == (7, 8)
    assert record.throughput.images_per_second is None


def test_a_run_for_some_seconds_ends_with_the_step_that_passes_them(tmp_path: Path) -> None:
    settings = {name: value for name, value in SHORT.items() if name != 'num_batches'}
    out = io.StringIO()
    params = make_params(**settings, target_seconds=0.2, result_file=str(tmp_path / 'r.json'))
    result = BenchmarkCNN(params, Console(out, io.StringIO())).run()
    assert result.complete
    timed = result.timed_steps
    assert timed[-2].end - timed[0].start < 0.2 <= timed[-1].end - timed[0].start + 0.02
    # The last line is that of the last step.
    assert out.getvalue().splitlines()[-4].startswith(f'{len(timed)}\t')
    assert read(tmp_path / 'r.json').run.num_timed is None


@pytest.mark.parametrize(
    ('flags', 'facts'),
    [
        ({'result_file': '/dev/null/r.json'}, ['--result_file=/dev/null/r.json']),
        ({'result_file': '{modell}.json'}, ['--result_file={modell}.json', '{modell}']),
        ({'result_file': '/dev/null/{model}.json'}, ['--result_file=/dev/null/lenet.json']),
        ({'target_seconds': 3, 'num_batches': 5}, ['--target_seconds=3', '--num_batches=5']),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_the_run(flags: dict[str, Any], facts: list[str]) -> None:
    with refused(*facts):
        BenchmarkCNN(make_params(model='lenet', device='cpu', **flags))


def test_a_full_disk_loses_the_file_but_not_the_printed_result(tmp_path: Path) -> None:
    out = io.StringIO()
    run = BenchmarkCNN(make_params(**SHORT, result_file='/dev/full'), Console(out, io.StringIO()))
    with failed('--result_file=/dev/full') as caught:
        run.run()
    assert out.getvalue().count('total images/sec:') == 1
    assert caught.value.result is not None
