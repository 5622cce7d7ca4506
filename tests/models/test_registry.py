"""Models from a file of one's own: they are found, train and are counted, and what is wrong with the file is told."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_writers import write_cifar

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from errors import UsageError
from models import costs
from models.catalog import ModelFacts, find_model, list_facts, list_models
from models.layers import BatchNorm, LayerBuilder
from models.registry import load_model_file, register_model
from params import make_params, parse_argv

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('forget_models')]

ROOT = Path(tf_cnn_benchmarks.__file__).parent
DOC = (ROOT / 'docs' / 'models.md').read_text()
(EXAMPLE,) = re.findall(r'^```python\n(.*?)^```$', DOC, flags=re.MULTILINE | re.DOTALL)
DOC_COMMANDS = [
    shlex.split(line)[2:] for line in DOC.splitlines() if line.startswith('    python tf_cnn_benchmarks.py')
]


@pytest.fixture(scope='module')
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 images of 10 classes that a network can tell apart: the class is the grey."""
    folder = tmp_path_factory.mktemp('cifar')
    labels = np.arange(20) % 10
    images = np.broadcast_to((25 * labels).astype(np.uint8)[:, None, None, None], [20, 32, 32, 3])
    write_cifar(folder, images, labels)
    return folder


@pytest.fixture
def example(tmp_path: Path) -> str:
    path = tmp_path / 'tiny_resnet.py'
    path.write_text(EXAMPLE)
    return str(path)


def test_the_example_of_the_docs_is_short_and_trains(example: str, cifar: Path) -> None:
    assert len(EXAMPLE.splitlines()) <= 20
    params = make_params(
        model='tiny_resnet', model_file=example, data_dir=str(cifar), device='cpu', batch_size=20, num_batches=15,
        num_warmup_batches=1, optimizer='momentum', init_learning_rate=0.05, augmentation='none',
    )  # fmt: skip
    result = BenchmarkCNN(params).run()
    assert result.data_set == 'cifar10'
    assert not result.is_synthetic
    losses = [step.values.loss for step in result.steps]
    assert losses[-1] < 0.7 * losses[0]


def test_the_commands_of_the_docs_work(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(example).parent)
    run, word = DOC_COMMANDS
    assert parse_argv(run).warnings == ()
    assert tf_cnn_benchmarks.main([*word, '--json']) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told['name'], told['dataset'], told['default_batch_size']) == ('tiny_resnet', 'cifar10', 128)
    # Three blocks of two convolutions and a shortcut, each of the former with batch norm, between stem and logits.
    kernels = [27 * 16, *(9 * i * o + 9 * o * o + i * o for i, o in ((16, 16), (16, 32), (32, 64))), 64 * 10 + 10]
    assert told['parameters'] == sum(kernels) + 2 * (16 + 2 * (16 + 32 + 64))


def test_the_list_of_the_docs_is_that_of_the_catalog() -> None:
    assert costs.format_docs(costs.list_costs()) in DOC, 'write it anew with: python -m models.costs'


def logits(cnn: Any, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def test_a_registered_model_has_the_facts_it_was_given() -> None:
    register_model('mine', logits, data_set='mnist', image_size=20, batch_size=3, learning_rate=0.5)
    assert find_model('mine') == ModelFacts('mine', 'mnist', 20, 3, 0.5)
    assert find_model('mine', 'records').image_size == 20
    assert list_models('mi*') == ['mine']


@pytest.mark.parametrize('name', ['resnet50', 'mine', 'ssd300'])
def test_a_name_that_is_taken_is_refused(name: str) -> None:
    register_model('mine', logits)
    with pytest.raises(ValueError, match=f'^{name}: there is already a model of this name'):
        register_model(name, logits)


@pytest.mark.parametrize(
    ('settings', 'told'),
    [({'data_set': 'imagnet'}, "data_set='imagnet': there is no such"), ({'image_size': 0}, 'image_size=0: it must')],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        register_model('mine', logits, **settings)
    assert not list_models('mine')


def test_a_registered_model_has_its_batch_norm_and_auxiliary_head() -> None:
    def with_head(cnn: Any, x: Any, num_classes: int) -> Any:
        x = cnn.flatten(cnn.batch_norm(x, 'bn'))
        return cnn.dense(x, num_classes, 'logits'), cnn.dense(x, num_classes, 'auxiliary')

    register_model('mine', with_head, data_set='mnist', image_size=4, batch_norm=BatchNorm(scale=False))
    (cost,) = costs.list_costs('mine')
    assert cost.parameters == 1 + 2 * (16 * 10 + 10)


HEAD = 'from models.registry import register_model\n'
WRONG_FILES = {
    'no such file': (None, 'there is no such file'),
    'no model': ('x = 1\n', 'it registers no model'),
    'syntax': (f'{HEAD}def build(cnn:\n  pass\n', ', line 2: SyntaxError: '),
    'a missing module': (f'{HEAD}\nimport no_such_module\n', ", line 3: ModuleNotFoundError: No module named 'no_such"),
    'a name that is taken': (
        f'{HEAD}\n\nregister_model("lenet", print)\n',
        ', line 4: ValueError: lenet: there is already a model of this name; give it another one',
    ),
    'deep inside': (
        f'{HEAD}import json\ndef read():\n  return json.loads("{{")\nread()\n',
        ', line 4: JSONDecodeError: ',
    ),
    'an exit': (f'{HEAD}raise SystemExit(3)\n', ', line 2: SystemExit: 3'),
}


@pytest.mark.parametrize('case', WRONG_FILES)
def test_an_error_in_a_file_names_it_and_its_line(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content, told = WRONG_FILES[case]
    path = tmp_path / 'mine.py'
    if content is not None:
        path.write_text(content)
    assert tf_cnn_benchmarks.main([f'--model_file={path}', '--model=mine']) == 2
    out, err = capsys.readouterr()
    assert out == ''
    (line,) = err.splitlines()
    assert line.startswith(f'tf_cnn_benchmarks: error: --model_file={path}')
    assert told in line
    assert tf_cnn_benchmarks.main([f'--model_file={path}', '--model=mine', '--verbose']) == 2
    assert capsys.readouterr().err.startswith('Traceback')


def test_a_file_that_was_mended_is_loaded_again(tmp_path: Path) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(f'{HEAD}register_model("mine", print)\n1 / 0\n')
    with pytest.raises(UsageError, match=', line 3: ZeroDivisionError: division by zero'):
        load_model_file(str(path))
    assert not list_models('mine')
    path.write_text(f'{HEAD}register_model("mine", print)\n')
    for _ in range(2):
        load_model_file(str(path))
    assert list_models('mine') == ['mine']


def test_a_file_uses_modules_beside_it_and_prints_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, 'path', list(sys.path))
    (tmp_path / 'beside_mine.py').write_text('NAME = "mine"\n')
    path = tmp_path / 'mine.py'
    path.write_text(f'{HEAD}from beside_mine import NAME\nprint("hello")\nregister_model(NAME, print)\n')
    load_model_file(str(path))
    assert list_models('mine') == ['mine']
    assert capsys.readouterr() == ('', 'hello\n')


def test_an_error_in_the_network_names_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / 'mine.py'
    path.write_text(
        f'{HEAD}\n\ndef build(cnn, x, num_classes):\n    x = cnn.flatten(x)\n    return cnn.conv(x, 3, 3, "conv")\n\n'
        'register_model("mine", build, image_size=8)\n'
    )
    params = make_params(model='mine', model_file=str(path), device='cpu', batch_size=2)
    with pytest.raises(UsageError, match=rf'^--model_file={path}, line 6: [A-Z]\w+Error: '):
        BenchmarkCNN(params).run()


@pytest.mark.parametrize(
    ('returned', 'told'),
    [
        ('None', r'its network returns NoneType; it must return logits \[N, 10\], or these and'),
        ('cnn.dense(x, 7, "a")', r'its network returns 1 of shape \(2, 7\); it must return'),
        ('cnn.conv(images, 10, 3, "a")', r'its network returns 1 of shape \(2, 8, 8, 10\); it must return'),
        ('cnn.dense(x, 10, "a"), cnn.dense(x, 7, "b")', r'its network returns 2 of shape \(2, 7\); it must return'),
        ('(cnn.dense(x, 10, "a"),) * 3', r'its network returns 3 of shape \(2, 10\); it must return'),
        ('[cnn.dense(x, 10, name) for name in "ab"][0]', r'its loss does not depend on b/bias; use or'),
        ('x[:, :10]', 'it has no variable to train; write --forward_only'),
    ],
)
def test_a_network_that_cannot_be_trained_is_told_in_one_line(returned: str, told: str) -> None:
    def build(cnn: LayerBuilder, images: Any, num_classes: int) -> Any:
        return eval(returned, {'cnn': cnn, 'images': images, 'x': cnn.flatten(images)})

    register_model('mine', build, data_set='cifar10', image_size=8)
    with pytest.raises(UsageError, match=f'^--model=mine: {told}'):
        BenchmarkCNN(make_params(model='mine', device='cpu', batch_size=2)).run()


@pytest.mark.parametrize('single_l2_loss_op', [False, True])
def test_a_network_without_kernels_has_no_weight_decay(single_l2_loss_op: bool) -> None:
    def build(cnn: LayerBuilder, images: Any, num_classes: int) -> Any:
        return cnn.flatten(cnn.layer_scale(cnn.pad_channels(images, num_classes), 'a', 1.0))

    register_model('mine', build, data_set='cifar10', image_size=1)
    params = make_params(
        model='mine', device='cpu', batch_size=2, num_batches=2, num_warmup_batches=0, optimizer='lars',
        weight_decay=0.1, single_l2_loss_op=single_l2_loss_op,
    )  # fmt: skip
    assert BenchmarkCNN(params).run().complete


def test_every_row_of_the_catalog_is_in_the_table_of_costs() -> None:
    rows = {(facts.name, facts.data_set, facts.image_size) for facts in list_facts()}
    assert set(costs.read_table()) == rows, 'write it anew with: python -m models.costs'


# Those whose graphs are large are held to the parameters that their own tests know.
QUICK = ('trivial', 'lenet', 'mnist', 'alexnet', 'vgg16', 'resnet50*')


@pytest.mark.parametrize('pattern', QUICK)
def test_the_table_of_costs_is_what_is_counted(pattern: str) -> None:
    table = costs.read_table()
    for facts in list_facts(pattern):
        assert table[facts.name, facts.data_set, facts.image_size] == costs._count(facts), facts


@pytest.mark.all_modes
def test_all_of_the_table_of_costs_is_what_is_counted() -> None:
    for key, cost in costs.read_table().items():
        (facts,) = [row for row in list_facts(key[0]) if row.data_set == key[1]]
        assert costs._count(facts) == cost, key


def run_word(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert tf_cnn_benchmarks.main(['models', *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ''
    return out


def test_the_word_models_lists_them_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_word(capsys).splitlines()
    assert lines[1].split() == ['model', 'data', 'set', 'parameters', 'GFLOPs/image', 'image', 'size', 'batch', 'size']
    rows = [line.split() for line in lines[3:] if line.strip()]
    assert [row[0] for row in rows] == [facts.name for facts in list_facts()]
    assert ['resnet50', 'imagenet', '25,559,081', '3.858', '224', '64'] in rows
    narrow = run_word(capsys, 'lenet')
    assert 'resnet50' not in narrow
    assert 'lenet' in narrow


def test_the_word_models_lists_them_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(run_word(capsys, '--json', 'resnet50*'))
    assert [row['name'] for row in told] == ['resnet50', 'resnet50_v1.5', 'resnet50_v2']
    assert told[0] == {
        'name': 'resnet50',
        'dataset': 'imagenet',
        'parameters': 25_559_081,
        'gflops_per_image': pytest.approx(3.858, abs=5e-4),
        'image_size': 224,
        'default_batch_size': 64,
    }


@pytest.mark.parametrize(
    ('argv', 'told'),
    [
        (['lenett'], 'lenett: no model has such a name; did you mean lenet?'),
        (['x*'], "x*: no model has such a name; write a name with wildcards, as in models 'resnet*'"),
        (['a', 'b'], 'b: models takes one pattern; put it in quotes, or the shell fills it in'),
        (['--jsn'], '--jsn: models has no such flag; did you mean --json?'),
    ],
)
def test_wrong_words_are_told_in_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], told: str) -> None:
    assert tf_cnn_benchmarks.main(['models', *argv]) == 2
    assert capsys.readouterr() == ('', f'tf_cnn_benchmarks: error: {told}\n')


def test_the_word_models_starts_without_tensorflow() -> None:
    code = (
        'import sys, tf_cnn_benchmarks; code = tf_cnn_benchmarks.main(["models", "--json"]);'
        'print(sorted({"tensorflow", "numpy"} & set(sys.modules)), code, file=sys.stderr)'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, '[] 0\n')
    assert len(json.loads(done.stdout)) == len(list_facts())
