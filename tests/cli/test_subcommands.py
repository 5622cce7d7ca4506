"""What is the same in every subcommand: its help, its errors and its paths; and the subcommand
`models`.
"""

import importlib
import json
import re
from typing import Any

import pytest

from models.registry import MODELS
from tests.support.outputs import check_line
from tests.support.programs import run, run_main
from tf_cnn.cli.help_text import describe_flag, format_help, format_page
from tf_cnn.cli.options import Declaration
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.flags.spec import specs_of

pytestmark = pytest.mark.unit


DECLARATIONS: dict[str, Declaration[Any]] = {
    name: importlib.import_module(f'tf_cnn.cli.{name}').DECLARATION for name in SUBCOMMANDS
}


def printed(*argv: str) -> str:
    out, err = run_main(*argv)
    assert err == ''
    return out.removesuffix('\n')


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_a_subcommand_prints_its_help_in_every_spelling(name):
    text = printed(name, '--help')
    usage = f'usage: tf_cnn_benchmarks {name} {DECLARATIONS[name].usage}'.rstrip()
    assert text.startswith(f'{usage}\n')
    assert f'\n  tf_cnn_benchmarks {name}' in text
    listed = re.findall(r'^  --(?:\[no\])?(\w+)', text, re.MULTILINE)
    assert listed == [*specs_of(DECLARATIONS[name].options)]
    assert text == printed('help', name) == printed(f'--help={name}')


@pytest.mark.parametrize('name', SUBCOMMANDS)
def test_all_mistakes_are_reported_together_each_in_a_line(name):
    specs = specs_of(DECLARATIONS[name].options).values()
    switches = [spec.name for spec in specs if spec.type is bool]
    wrong = [
        '--zzqq',
        *(f'--no{switch}=1' for switch in switches),
        *(f'--{switch}=x' for switch in switches),
    ]
    out, err = run_main(name, *wrong, code=2)
    assert out == ''
    start = 'tf_cnn_benchmarks: error: '
    told = [line.removeprefix(start).partition(':')[0] for line in err.splitlines()]
    assert sorted(told) == sorted(wrong)


def test_no_subcommand_forgets_to_close_a_file():
    finished = run('models lenet', PYTHONWARNINGS='error')
    assert (finished.code, finished.err) == (0, '')


@pytest.mark.parametrize('empty', ['', "''"])
def test_a_flag_with_an_empty_value_is_refused(empty):
    flags = {name: specs_of(DECLARATIONS[name].options) for name in SUBCOMMANDS}
    for name in filter(flags.get, flags):
        wrong = [f'--{flag}={empty}' for flag in flags[name]]
        _, err = run_main(name, *wrong, code=2)
        told = re.findall('^tf_cnn_benchmarks: error: (.*): it has no value', err, re.MULTILINE)
        assert told == wrong, name


def test_paths_may_begin_with_the_home_directory(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    for name, argv, positional in (
        ('compare', ['~/a.json', 'b~.json'], ('/home/me/a.json', 'b~.json')),
        ('report', ['~/results', '--output=~/page.html'], ('/home/me/results',)),
        ('sweep', ['~/modes.toml'], ('/home/me/modes.toml',)),
        ('models', ['~*'], ('~*',)),
    ):
        assert DECLARATIONS[name].parse(argv).positional == positional
    options = DECLARATIONS['report'].parse(['x', '--output=~/page.html']).options
    assert options.output == '/home/me/page.html'


def test_the_help_of_the_program_is_printed_in_every_spelling():
    for argv in (['help'], ['--help'], ['--help=true'], ['-h'], ['--help', '--model=lenet']):
        assert printed(*argv) == format_help()
    for argv in (['help', 'all'], ['--help=all']):
        assert printed(*argv) == format_help(MODELS.list_models())
    assert f'{printed("help", "--markdown")}\n' == format_page()


def test_a_flag_is_described_in_every_spelling():
    for name in ('batch_size', 'mkl', 'use_nccl', 'eval'):
        for argv in (['help', name], ['help', f'--{name}'], [f'--help={name}']):
            assert printed(*argv) == describe_flag(name)


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
