"""Flags of the original tf_cnn_benchmarks and of other versions: they work, are named in a warning, or are refused."""

import csv
from pathlib import Path

import pytest

from params import SPECS, Params, parse_argv
from params.original import NAMES, TABLE, Fate
from tests.support.outputs import check_line, refused

pytestmark = pytest.mark.unit

# The 137 flags of the original's last version: name, type, default, choices, bounds.
with open(Path(__file__).parent / 'original_flags.csv', encoding='utf-8', newline='') as file:
    ORIGINAL: dict[str, dict[str, str]] = {row['name']: row for row in csv.DictReader(file)}
# Another value than the default, for flags of which the type alone does not give one.
OTHER_VALUES = {
    'all_reduce_spec': 'xring',
    'data_name': 'imagenet',
    'gpu_indices': '0',
    'gpu_thread_mode': 'global',
    'horovod_device': 'cpu',
    'input_preprocessor': 'official_models_imagenet',
    'kmp_settings': '0',
    'model': 'lenet',
    'piecewise_learning_rate_schedule': '0.3;10;0.1',
    'resize_method': 'area',
    'save_summaries_steps': '5',
    'summary_verbosity': '1',
    'eval_during_training_at_specified_epochs': '1',
    'eval_during_training_at_specified_steps': '10',
    'fp16_loss_scale': '256',
    'variable_update': 'replicated',
}
# What each needs beside it.
COMPANIONS = {
    'eval': ['--train_dir=t'],
    'eval_interval_secs': ['--eval', '--train_dir=t'],
    'resnet_base_lr': ['--model=resnet50'],
    'num_eval_epochs': ['--eval', '--train_dir=t', '--data_dir=d'],
    'num_epochs_per_decay': ['--learning_rate_decay_factor=0.9', '--init_learning_rate=0.1'],
    'learning_rate_decay_factor': ['--num_epochs_per_decay=1', '--init_learning_rate=0.1'],
    'minimum_learning_rate': [
        '--num_epochs_per_decay=1',
        '--learning_rate_decay_factor=0.5',
        '--init_learning_rate=0.1',
    ],
    'stop_at_top_1_accuracy': ['--eval_during_training_every_n_steps=1'],
}
NUMBERS = {'integer': '1', 'float': '0.5'}


def another_value(row: dict[str, str]) -> str:
    """A value that differs from the default, of the original or of what this program always does."""
    name, kind = row['name'], row['type']
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    if TABLE[name].fate is Fate.NO_EFFECT and kind == 'boolean':
        return str(not TABLE[name].silent)
    if kind == 'boolean':
        return 'false' if row['default'] == 'True' else 'true'
    if row['choices']:
        return next(choice for choice in row['choices'].split('|') if choice not in ('', row['default']))
    if kind in NUMBERS:
        return '2' if row['default'] == NUMBERS[kind] else NUMBERS[kind]
    return 'x'


def test_each_flag_of_the_original_has_a_row() -> None:
    assert len(ORIGINAL) == 137
    of_other_versions = {*TABLE} - {*ORIGINAL}
    assert len(of_other_versions) == 15
    assert {*ORIGINAL} <= {*TABLE}
    for name, row in TABLE.items():
        assert row.spec.name == name
        assert (name in SPECS) == (row.fate is Fate.WORKS), name
        assert (name in NAMES) == (row.fate in (Fate.NO_EFFECT, Fate.REFUSED)), name
        assert bool(row.says) == (row.fate is not Fate.WORKS), name
        assert row.fate is not Fate.RENAMED or row.says in SPECS


@pytest.mark.parametrize('name', ORIGINAL)
def test_the_default_of_each_flag_of_the_original_is_accepted(name: str) -> None:
    default = ORIGINAL[name]['default'].removeprefix('[]')
    if name == 'task_index':
        # It is for clusters only.
        default = ''
    parsed = parse_argv([f'--{name}={default}'] if default or TABLE[name].spec.optional else [])
    # Two defaults ask for what this program does in another way.
    assert [line.partition('=')[0] for line in parsed.warnings] == (
        [f'--{name}'] if name in ('compute_lr_on_cpu', 'use_resource_vars') else []
    )


@pytest.mark.parametrize('name', ORIGINAL)
def test_each_flag_of_the_original_changes_the_settings_or_is_named(name: str) -> None:
    row = TABLE[name]
    argv = [f'--{name}={another_value(ORIGINAL[name])}', *COMPANIONS.get(name, [])]
    if row.fate is Fate.REFUSED:
        with refused(f'--{name}='):
            parse_argv([*argv, '--data_dir=d', '--forward_only'])
        if name == 'trt_mode':
            return
    parsed = parse_argv(argv)
    if row.fate in (Fate.NO_EFFECT, Fate.REFUSED):
        (line,) = parsed.warnings
        check_line(line, f'--{name}=', 'has no effect')
        assert parsed.params == Params()
    else:
        field = row.says if row.fate is Fate.RENAMED else name
        assert parsed.warnings == ()
        assert getattr(parsed.params, field) != getattr(Params(), field)


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        ('--input_preprocessor=inception', ['--input_preprocessor=inception', 'default', 'official_models_imagenet']),
        ('--use_datasets --input_pipeline=record_input', ['--use_datasets=True', '--input_pipeline=record_input']),
        ('--nouse_datasets --input_pipeline=tf_data', ['--use_datasets=False', '--input_pipeline=tf_data']),
        ('--trt_mode=fp16', ['--trt_mode=fp16', 'TensorRT', 'trtexec']),
    ],
)
def test_only_what_would_measure_something_else_is_refused(argv: str, facts: list[str]) -> None:
    with refused(*facts):
        parse_argv(argv.split())


def test_flags_of_other_versions_are_accepted_with_one_warning_each() -> None:
    argv = ['--flush_stdout=true', '--cache_data', '--result_storage=x', '--gpu_pending_cap=3', '--nouse_data_sets']
    argv += ['--iters_per_step=4', '--ml_perf_compliance_logging', '--pretrain_dir=p', '--log_dir', 'd']
    parsed = parse_argv(argv)
    assert parsed.params == Params()
    named = {check_line(line, 'has no effect: ').partition(' ')[0] for line in parsed.warnings}
    assert named == {*argv[:1], '--cache_data=true', *argv[2:4], '--use_data_sets=false', *argv[5:6]} | {
        '--ml_perf_compliance_logging=true',
        '--pretrain_dir=p',
        '--log_dir=d',
    }


def test_flags_of_intels_guides_are_accepted_together() -> None:
    argv = '--mkl=true --kmp_blocktime=0 --kmp_settings=1 --kmp_affinity=granularity=fine,verbose,compact,1,0'
    parsed = parse_argv([*argv.split(), '--use_tf_layers=False', '--num_intra_threads=28'])
    assert [line.partition('=')[0] for line in parsed.warnings] == ['--mkl', '--use_tf_layers']
    assert (parsed.params.kmp_blocktime, parsed.params.kmp_affinity) == (0, 'granularity=fine,verbose,compact,1,0')


def test_older_names_are_read() -> None:
    assert parse_argv(['--learning_rate=0.5']).params == Params(init_learning_rate=0.5)
    replicated = ['--variable_update=replicated', '--num_gpus=2']
    assert parse_argv(['--use_fp16']).params == parse_argv(['--use_fp16', '--precision=fp16']).params
    assert parse_argv(['--use_fp16']).params == Params(precision='fp16')
    assert parse_argv(['--nouse_fp16', '--precision=bf16']).params == Params(precision='bf16')
    params = parse_argv(['--use_nccl=True', *replicated]).params
    assert params == Params(all_reduce_spec='nccl', variable_update='replicated', num_gpus=2)
    assert parse_argv(['--use_nccl=False', *replicated]).params.all_reduce_spec is None
    assert parse_argv(['--nouse_nccl', '--all_reduce_spec=xring', *replicated]).params.all_reduce_spec == 'xring'
    both = parse_argv(['--use_nccl', '--all_reduce_spec=nccl:32k:xring', *replicated])
    assert both.params.all_reduce_spec == 'nccl:32k:xring'
    assert parse_argv(['--xla_compile']).params == Params(xla=True)
    assert parse_argv(['--xla', '--noxla_compile']).params == Params(xla=True)
    assert parse_argv(['--noxla', '--xla_compile']).params == Params(xla=True)


@pytest.mark.parametrize('empty', ['', "''", '""'])
def test_nothing_between_two_quotes_is_empty(empty: str) -> None:
    argv = [f'--{name}={empty}' for name, row in TABLE.items() if row.spec.optional]
    assert parse_argv(argv) == parse_argv([])
