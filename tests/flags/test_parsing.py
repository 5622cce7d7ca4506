"""What a command line and Python may say: the forms of a flag, its types and bounds, and flag
files.
"""

import contextlib
import copy
import dataclasses
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import benchmark_cnn
import tf_cnn_benchmarks
from models.registry import MODELS
from tests.support.outputs import check_error, refused
from tf_cnn.inputs.pipeline_stages import STAGES
from tf_cnn.plan.original_flags import TABLE
from tf_cnn.plan.params import SPECS, Params, output_flags
from tf_cnn.plan.parsing import make_params, parse_argv
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit


def test_every_flag_accepts_its_default():
    assert parse_argv([]).params == Params() == make_params()
    for name, spec in SPECS.items():
        if spec.default is not None:
            assert spec.read(spec.default) == spec.read(str(spec.default)) == spec.default, name
        assert (spec.default is None) <= spec.optional, name


def test_each_form_of_a_flag_is_read():
    # The last of two values counts; choices are read in any case; an empty value is none.
    argv = (
        '--batch_size=32 --num_gpus 2 -model=lenet --forward_only --nouse_chrome_trace_format '
        '--allow_growth=T --gradient_clip=1 --gradient_clip=1e-2 --device=CPU --data_format=nhwc '
        '--trace_file= --init_learning_rate='
    )
    assert parse_argv(argv.split()).params == Params().with_values(
        batch_size=32,
        num_gpus=2,
        model='lenet',
        forward_only=True,
        use_chrome_trace_format=False,
        allow_growth=True,
        gradient_clip=0.01,
        device='cpu',
        data_format='NHWC',
    )


def test_flags_are_read_from_files(tmp_path):
    first, second = tmp_path / 'first', tmp_path / 'second'
    first.write_text(f'--batch_size=8\n--flagfile={second}\n')
    # A file that includes itself is read once.
    second.write_text(f'--model=lenet\n--flagfile={first}\n')
    expected = Params().with_values(model='lenet', batch_size=8, num_batches=3)
    for argv in (
        [f'--flagfile={first}'],
        ['--flagfile', str(first)],
        [f'-flagfile={first}', f'--flagfile={second}'],
    ):
        assert parse_argv([*argv, '--num_batches=3']).params == expected
    with refused('--flagfile', tmp_path / 'none'):
        parse_argv([f'--flagfile={tmp_path}/none'])


def test_a_wrong_flag_file_is_refused(tmp_path):
    file = tmp_path / 'flags'
    for content, fact in (
        (b'--batch_size=8\nstray\n', "'stray'"),
        ('\u2013model=lenet'.encode(), 'use --model=lenet'),
        (b'--model=caf\xe9', 'UTF-8'),
        (b'--data_dir=a\0b\n', '--data_dir='),
    ):
        file.write_bytes(content)
        with refused(fact):
            parse_argv([f'--flagfile={file}'])


def test_an_unknown_flag_and_a_wrong_value_are_refused():
    for argv, *facts in (
        # Unknown flags and choices are refused with the nearest name.
        ('--batchsize=3', '--batchsize', '--batch_size'),
        ('--nodistortion', '--nodistortion', '--distortions'),
        ('--qqq', '--qqq', '--help'),
        ('--optimizer=sdg', '--optimizer=sdg', 'momentum', 'rmsprop', 'adam', 'lars', '=sgd'),
        ('--data_name=imagnet', '--data_name=imagnet', 'cifar10', 'mnist', 'records', '=imagenet'),
        ('--nocontinue_on_nan=1', '--nocontinue_on_nan=1'),
        # Stray words.
        ('--forward_only True', "'True'", '--forward_only=True'),
        ('--batch_size 32 64', "'64'", '--batch_size=64'),
        # Values of another type, out of bounds, or missing.
        ('--batch_size=x', '--batch_size=x', '0'),
        ('--batch_size=1.5', '--batch_size=1.5', '0'),
        ('--batch_size=1_000', '--batch_size=1_000', '0'),
        ('--batch_size=٣٢', '--batch_size=٣٢', '0'),
        ('--momentum=0.5_1', '--momentum=0.5_1', '0', '1'),
        ('--num_batches=9 --profile_steps=1,٣', '--profile_steps=1,٣'),
        ('--batch_size=', '--batch_size=', '0'),
        ('--batch_size', '--batch_size', '--batch_size=VALUE', '--help'),
        ('--batch_size=4 --input_only', '--input_only', *STAGES),
        ('--momentum=1.1', '--momentum=1.1', '0', '1'),
        ('--weight_decay=nan', '--weight_decay=nan', '0'),
        ('--summary_verbosity=4', '--summary_verbosity=4', '0', '3'),
        ('--forward_only=maybe', '--forward_only=maybe', 'true', 'false'),
        ('--learning_rate=-1', '--learning_rate=-1', '0'),
        ('--num_eval_epochs=1e300', '--num_eval_epochs=1e300', '0', '1e+09'),
        ('--batch_size=2147483648', '--batch_size=2147483648', 'from 0 to 2147483647'),
        ('--display_every=2147483648', '--display_every=2147483648', 'from 1 to 2147483647'),
        ('--tf_random_seed=2147483648', '=2147483648', 'from -2147483647 to 2147483647'),
    ):
        with refused(*facts):
            parse_argv(argv.split())


def test_an_error_about_a_value_of_two_lines_is_one_line():
    with refused("--batch_size='a\\nb'", '0'):
        parse_argv(['--batch_size=a\nb'])


def test_a_word_altered_by_a_text_processor_is_refused_with_the_plain_one():
    for word, end in (
        ('\u2013model=lenet', 'use --model=lenet'),
        ('\u2014\u2014model=lenet', 'use --model=lenet'),
        ('-\u2212model=lenet', 'use --model=lenet'),
        ('\u2013h', 'use -h'),
        ('\u2014', 'use --'),
        ('--num\u2010gpus=1', 'use --num-gpus=1'),
        ('--model=\u201clenet\u201d', 'use --model="lenet"'),
        ('\u2018lenet\u2019', "use 'lenet'"),
        ('--hosts=\u00aba,b\u00bb', 'use --hosts="a,b"'),
        ('--model=lenet\u00a0', 'use --model=lenet'),
        ('\ufeff--model=lenet', 'use --model=lenet'),
        ('--batch\u00ad_size=4', 'use --batch_size=4'),
        ('--model\u00a0lenet', 'use --model lenet'),
        ('--model=lenet\u00a0\u2013batch_size=4', 'use --model=lenet --batch_size=4'),
        ('\u00a0', 'remove it'),
    ):
        for argv in ([word], ['--model', 'lenet', word]):
            with pytest.raises(UsageError) as caught:
                parse_argv(argv)
            (line,) = caught.value.lines
            assert line.endswith(end)


def test_a_path_may_contain_typographic_characters():
    accents, screenshot = '/data/l\u2019\u00e9t\u00e9', 'Bild um\u202f3.04\u202fUhr'
    for path in (accents, screenshot, '/a\u2013b', './\u2013photos'):
        assert parse_argv([f'--data_dir={path}']).params.data.data_dir == path
        assert parse_argv(['--data_dir', path]).params.data.data_dir == path


def check_error_lines(argv: str, *starts: str) -> None:
    """Fails unless the error has exactly one line for each of these starts."""
    with pytest.raises(UsageError) as caught:
        parse_argv(argv.split())
    lines = caught.value.lines
    assert len(lines) == len(starts)
    for start in starts:
        assert any(line.startswith(start) for line in lines), start


def test_all_unreadable_words_are_reported_together_each_in_a_line():
    check_error_lines(
        '--batchsize=3 --zzqq 7 --num_batches=x --noforward_only=1 --optimizer=sdg '
        '--forward_only True --momentum',
        "'7'",
        "'True'",
        '--batchsize',
        '--zzqq',
        '--num_batches=x',
        '--noforward_only=1',
        '--optimizer=sdg',
        '--momentum',
    )


def test_all_conflicts_are_reported_together_if_all_words_can_be_read():
    check_error_lines(
        '--num_epochs=2 --num_batches=3 --profile_steps=4 --trt_mode=FP16 --staged_vars '
        '--variable_update=replicated',
        '--num_epochs',
        '--staged_vars',
        '--profile_steps',
        '--trt_mode',
    )


def test_flags_named_in_undefok_may_be_unknown():
    argv = ['--undefok=nonsense,more', '--nonsense=3', '--nomore', '--batch_size=2']
    assert parse_argv(argv).params.run.batch_size == 2
    with refused('--other'):
        parse_argv(['--undefok=nonsense', '--other=3'])


def test_python_refuses_what_the_command_line_refuses():
    for name, value, *facts in (
        ('batchsize', 1, '--batchsize', '--batch_size'),
        ('batch_size', -1, '--batch_size=-1', '0'),
        ('batch_size', True, '--batch_size=True', '0'),
        ('batch_size', 1.0, '--batch_size=1.0', '0'),
        ('batch_size', None, '--batch_size=', '0'),
        ('forward_only', 2, '--forward_only=2', 'true', 'false'),
        ('forward_only', np.float32(1), '--forward_only=1.0', 'true', 'false'),
        ('variable_update', 'ps', '--variable_update=ps', 'parameter_server'),
        ('model', ['lenet', 'vgg16'], '--model=lenet,vgg16'),
        ('momentum', [], '--momentum=[]', '0', '1'),
        ('data_dir', 3, '--data_dir=3'),
        ('trace_file', 'caf\udce9', '--trace_file=', 'UTF-8'),
        ('gradient_clip', 0, '--gradient_clip=0'),
        ('batch_size', np.arange(3), '--batch_size=[0, 1, 2]', '0'),
        ('momentum', np.ones(2), '--momentum=[1.0, 1.0]', '0', '1'),
    ):
        for make in (make_params, make_params(model='lenet')._replace):
            with refused(*facts):
                make(**{name: value})


@pytest.mark.parametrize(
    ('name', 'value', 'flag', 'expected'),
    [
        ('forward_only', 1, 'forward_only', True),
        ('distortions', 0, 'distortions', False),
        ('staged_vars', np.bool_(True), 'staged_vars', True),
        ('use_fp16', 0, 'precision', 'fp32'),
        ('use_fp16', np.int64(1), 'precision', 'fp16'),
        ('batch_size', np.int32(8), 'batch_size', 8),
        ('momentum', np.float32(0.5), 'momentum', 0.5),
        ('model', np.str_('lenet'), 'model', 'lenet'),
        ('data_dir', Path('/data'), 'data_dir', '/data'),
        ('learning_rate', 0.5, 'init_learning_rate', 0.5),
        ('worker_hosts', ['a:1', 'b:2'], 'worker_hosts', 'a:1,b:2'),
        ('worker_hosts', [], 'worker_hosts', None),
        (steps := 'eval_during_training_at_specified_steps', (1, np.int64(3)), steps, '1,3'),
        (steps, np.array([1, 3]), steps, '1,3'),
        ('data_dir', b'/data', 'data_dir', '/data'),
    ],
)
def test_python_may_give_the_types_that_the_original_takes(name, value, flag, expected):
    for params in (
        make_params(**{name: value}),
        make_params(batch_size=2)._replace(**{name: value}),
    ):
        assert (getattr(params, flag), type(params.value(flag))) == (expected, type(expected))
        assert params.given_flags.keys() - {'batch_size'} <= {flag}


def test_params_have_the_attributes_and_methods_of_a_named_tuple():
    params: Any = make_params(use_fp16=True, use_nccl=False, optimizer='sgd', num_gpus=2)
    assert (params.optimizer, params.precision, params.use_fp16) == ('sgd', 'fp16', True)
    assert (params.use_nccl, params.data_dir, params.batch_size) == (False, None, 0)
    assert {*Params._fields} == params._asdict().keys() == {*SPECS}
    assert make_params(**params._asdict()) == params
    # A replaced flag may have an older name, and counts as given.
    replaced = params._replace(use_fp16=False, batch_size=8)
    assert (replaced.precision, replaced.num_gpus, replaced.batch_size) == ('fp32', 2, 8)
    assert replaced.given_flags['batch_size'] == '--batch_size=8'
    assert params.batch_size == 0
    for copied in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert copied == params
    for name, suggestion in (
        ('replace', '_replace'),
        ('batchsize', 'batch_size'),
        ('cache_data', ''),
    ):
        with pytest.raises(AttributeError, match=f'{name}.*{suggestion}'):
            getattr(params, name)
    with refused('--learning_rate=1', '--init_learning_rate=2'):
        make_params(init_learning_rate=2)._replace(learning_rate=1)


def test_no_member_of_params_has_the_name_of_a_flag():
    assert not {*SPECS, *TABLE} & {*dir(Params), *Params.__dataclass_fields__}


@pytest.mark.parametrize('arguments', [[4], ['--model=lenet', None], 'lenet'])
def test_arguments_that_are_no_texts_are_refused(arguments, capsys):
    assert tf_cnn_benchmarks.main(arguments) == 2
    check_error(capsys.readouterr().err, 'main: ', 'list of texts', arguments)


@pytest.mark.parametrize('settings', [{}, None, 'lenet'])
def test_only_settings_of_make_params_make_a_benchmark(settings):
    with refused('BenchmarkCNN: ', 'make_params()', repr(settings)):
        benchmark_cnn.BenchmarkCNN(settings)


def test_python_is_warned_of_flags_without_effect():
    with pytest.warns(UserWarning, match='--cache_data=True'):
        assert make_params(batch_size=4, cache_data=True) == make_params(batch_size=4)


def test_python_may_give_a_path_as_path():
    assert make_params(graph_file=Path('a') / 'b').instruments.graph_file == 'a/b'


# A command line refuses the dashes, quotes and spaces of text processors.
ON_KEYBOARDS = st.characters(
    exclude_categories=('Cf', 'Cs', 'Pd', 'Pf', 'Pi', 'Ps', 'Zs'), exclude_characters='\0'
)


@given(
    st.fixed_dictionaries(
        {
            'batch_size': st.integers(0, (1 << 31) - 1),
            'tf_random_seed': st.integers(1 - (1 << 31), (1 << 31) - 1),
            'weight_decay': st.floats(0, 1e300),
            'forward_only': st.booleans(),
            'data_format': st.sampled_from([None, 'NHWC', 'NCHW']),
            'device': st.sampled_from(['CPU', 'cpu', 'gpu']),
            'graph_file': st.none() | st.text(ON_KEYBOARDS, min_size=1),
        }
    )
)
def test_python_and_the_command_line_accept_the_same_values(overrides):
    argv = [f'--{name}={"" if value is None else value}' for name, value in overrides.items()]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert make_params(**overrides) == parse_argv(argv).params


def test_params_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        # That mypy refuses it too is the point.
        make_params().run.batch_size = 3  # type: ignore[misc]  # the mistake


def test_a_path_may_begin_with_the_home_directory(monkeypatch):
    monkeypatch.setenv('HOME', '/home/me')
    paths = [name for name, spec in SPECS.items() if spec.is_path]
    inputs = {'data_dir', 'model_file', 'variable_mgr_file', 'backbone_model_path'}
    assert {*output_flags(), *inputs} == {*paths}
    for name in paths:
        assert SPECS[name].read(f'~/{name}') == f'/home/me/{name}'
        # Nobody has this home, and within a path ~ is a letter as any other.
        for path in ('~no-such-user/x', 'a/~', './-'):
            assert SPECS[name].read(path) == path
        with contextlib.nullcontext() if name == 'result_file' else refused(f'--{name}=-'):
            assert SPECS[name].read('-') == '-'
    assert make_params(result_file='~/{model}').results.result_file == '/home/me/{model}'
    with refused('--data_dir='):
        make_params(data_dir='~a\0b')


def test_a_mistyped_model_gets_the_three_nearest_and_not_the_whole_list():
    with refused('--model=resent50', 'resnet50') as caught:
        parse_argv(['--model=resent50'])
    words = re.findall(r'[\w.]+', str(caught.value))
    assert len({*words} & {*MODELS.list_models()}) == 3


def test_a_value_written_as_a_flag_suggests_its_flag():
    for name, value in (
        ('variable_update', 'horovod'),
        ('precision', 'fp16'),
        ('optimizer', 'adam'),
        ('data_format', 'NHWC'),
    ):
        for argv in ([f'--{value}'], [f'--{value}=True']):
            with refused(f'--{value}', f'did you mean --{name}={value}?'):
                parse_argv(argv)


def test_only_similar_names_are_suggested():
    with refused('--model=vit', 'models', '--model_file') as caught:
        parse_argv(['--model=vit'])
    assert 'mnist' not in str(caught.value)
    for argv in ('--model=yolov8', '--zzqq=3', '--optimizer=zzz'):
        with refused(argv.partition('=')[0]) as caught:
            parse_argv([argv])
        assert 'did you mean' not in str(caught.value)
