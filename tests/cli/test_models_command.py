"""The subcommand `models` lists models and their costs, also models in a user's file."""

import json

import pytest

from models.registry import MODELS
from tests.support.outputs import check_line
from tests.support.programs import run_main

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('forget_models')]


def test_models_are_listed_as_a_table():
    out, _ = run_main('models')
    titles, _, *rows = (line.split() for line in out.splitlines())
    assert ' '.join(titles) == 'model data set parameters GMACs/image image size batch size'
    assert [row[0] for row in rows] == [facts.name for facts in MODELS.list_specs()]
    assert ['resnet50', 'imagenet', '25,559,081', '3.858', '224', '64'] in rows


def test_json_lists_the_models_of_a_pattern_as_objects():
    listed = json.loads(run_main('models', '--json', 'resnet50*')[0])
    names = [row['name'] for row in listed]
    assert names == ['resnet50', 'resnet50_v1.5', 'resnet50_v2', 'resnet50_v2.5']
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
    (vgg,) = json.loads(run_main('models', '--json', 'vgg16')[0])
    assert (vgg['default_learning_rate'], vgg['learning_rate_images']) == (0.005, None)


def test_a_part_of_a_name_suggests_a_pattern():
    for pattern, *facts in (
        ('resnet', "models 'resnet*'", 'and 17 more'),
        ('ResNet', "models 'resnet*'"),
        ('v2.5', "models '*v2.5*'", 'resnet50_v2.5'),
        ('zzqq', "models 'resnet*'"),
    ):
        check_line(run_main('models', pattern, code=2)[1], pattern, *facts)
