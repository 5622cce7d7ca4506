"""The subcommand `models` lists models and their costs, those of a user's own file too."""

import json
from pathlib import Path

import pytest

import tf_cnn_benchmarks
from models.registry import MODELS
from tests.support.outputs import check_line

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('forget_models')]


def run_models(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the subcommand prints."""
    assert tf_cnn_benchmarks.main(['models', *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ''
    return out


def test_models_are_listed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_models(capsys).splitlines()
    assert lines[0].split() == [
        'model',
        'data',
        'set',
        'parameters',
        'GMACs/image',
        'image',
        'size',
        'batch',
        'size',
    ]
    rows = [line.split() for line in lines[2:]]
    assert [row[0] for row in rows] == [facts.name for facts in MODELS.list_specs()]
    assert ['resnet50', 'imagenet', '25,559,081', '3.858', '224', '64'] in rows
    narrow = run_models(capsys, 'lenet')
    assert 'resnet50' not in narrow
    assert 'lenet' in narrow


def test_json_lists_models_as_objects(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(run_models(capsys, '--json', 'resnet50*'))
    assert [row['name'] for row in listed] == [
        'resnet50',
        'resnet50_v1.5',
        'resnet50_v2',
        'resnet50_v2.5',
    ]
    assert listed[0] == {
        'name': 'resnet50',
        'dataset': 'imagenet',
        'parameters': 25_559_081,
        'gmacs_per_image': pytest.approx(3.858, abs=5e-4),
        'image_size': 224,
        'default_batch_size': 64,
        'default_learning_rate': 0.128,
        'learning_rate_images': 256,
    }
    (vgg,) = json.loads(run_models(capsys, '--json', 'vgg16'))
    assert (vgg['default_learning_rate'], vgg['learning_rate_images']) == (0.005, None)


@pytest.mark.parametrize(
    ('pattern', 'facts'),
    [
        ('resnet', ("models 'resnet*'", 'and 17 more')),
        ('ResNet', ("models 'resnet*'",)),
        ('v2.5', ("models '*v2.5*'", 'resnet50_v2.5')),
        ('lenett', ('did you mean lenet?',)),
        ('zzqq', ("models 'resnet*'",)),
    ],
)
def test_a_part_of_names_is_answered_with_the_pattern_that_lists_them(
    pattern: str, facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tf_cnn_benchmarks.main(['models', pattern]) == 2
    check_line(capsys.readouterr().err.strip(), pattern, *facts)


@pytest.mark.parametrize('body', ["raise ValueError('oops')", 'return images'])
def test_a_network_that_fails_is_an_error_of_one_line(
    body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'mine.py'
    register = "register_model('mine', lambda cnn, images, num_classes: mine(images))"
    path.write_text(
        'from models.registry import register_model\n\n\ndef mine(images):\n    '
        f'{body}\n\n\n{register}\n'
    )
    assert tf_cnn_benchmarks.main(['models', 'mine', f'--model_file={path}']) == 2
    check_line(capsys.readouterr().err, 'mine')
