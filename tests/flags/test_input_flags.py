"""The flags about input: what they choose, that conflict, and when they have no effect."""

from typing import Any

import pytest

from tests.support.outputs import check_line, refused
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.inputs.preprocessors import DEFAULT, ML_PERF, PREPROCESSORS, preprocessor_for
from tf_cnn.run.params import RuleContext
from tf_cnn.run.parsing import parse_argv

pytestmark = pytest.mark.unit

RECORDS = RuleContext(is_single_process=True, is_residual=False)
ARRAYS = RuleContext(is_single_process=True, is_residual=False, has_records=False)
TF_DATA, PREFETCH = '--use_datasets --data_dir=d', '--datasets_prefetch_buffer_size'
OFFICIAL = '--data_dir=d --input_preprocessor=official_models_imagenet'
OF_TF_DATA: dict[str, tuple[str, Any]] = {
    '--nodatasets_use_prefetch': ('prefetched_batches', 0),
    '--datasets_prefetch_buffer_size=3': ('prefetched_batches', 3),
    '--multi_device_iterator_max_buffer_size=4': ('multi_device_iterator_max_buffer_size', 4),
    '--datasets_parallel_interleave_cycle_length=5': ('cycle_length', 5),
    '--datasets_parallel_interleave_prefetch=6': ('datasets_parallel_interleave_prefetch', 6),
    '--datasets_sloppy_parallel_interleave': ('datasets_sloppy_parallel_interleave', True),
    '--datasets_use_caching': ('datasets_use_caching', True),
    '--datasets_repeat_cached_sample': ('datasets_repeat_cached_sample', True),
    '--datasets_num_private_threads=7': ('datasets_num_private_threads', 7),
}


@pytest.mark.parametrize(
    ('argv', 'pipeline'),
    [
        ('', 'record_input'),
        ('--deterministic', 'tf_data'),
        ('--input_pipeline=record_input', 'record_input'),
        ('--use_datasets', 'tf_data'),
        ('--nouse_datasets', 'record_input'),
        ('--use_datasets=', 'record_input'),
    ],
)
def test_the_pipeline_is_that_of_the_flags(argv: str, pipeline: str) -> None:
    params = parse_argv(argv.split()).params
    assert params.inputs.row(params).name == pipeline


@pytest.mark.parametrize('flag', OF_TF_DATA)
def test_each_flag_of_tf_data_changes_its_setting(flag: str) -> None:
    params = parse_argv(['--data_dir=d', '--use_datasets', flag]).params
    name, value = OF_TF_DATA[flag]
    assert getattr(params.inputs, name) == value != getattr(PipelineConfig(), name)
    assert params.ignored_flag_warnings(RECORDS) == []


@pytest.mark.parametrize('flag', OF_TF_DATA)
@pytest.mark.parametrize(
    ('others', 'run', 'reason'),
    [
        ('--data_dir=d', RECORDS, '--input_pipeline=tf_data'),
        ('--data_dir=d --nouse_datasets', RECORDS, '--input_pipeline=tf_data'),
        ('', RECORDS, '--data_dir'),
        ('--data_dir=d --train_dir=t --eval', RECORDS, '--eval'),
        ('--data_dir=d', ARRAYS, 'records'),
    ],
)
def test_without_tf_data_each_of_its_flags_is_named_in_a_warning(
    flag: str, others: str, run: RuleContext, reason: str
) -> None:
    [line] = parse_argv([*others.split(), flag]).params.ignored_flag_warnings(run)
    name = flag.lstrip('-').removeprefix('no').partition('=')[0]
    check_line(line, f'--{name}=', reason)


@pytest.mark.parametrize(
    ('argv', 'run', 'flags'),
    [
        ('--use_datasets', RECORDS, ['--use_datasets=True']),
        ('--use_datasets --data_dir=d', ARRAYS, ['--use_datasets=True']),
        (
            '--input_pipeline=tf_data --data_dir=d --train_dir=t --eval',
            RECORDS,
            ['--input_pipeline=tf_data'],
        ),
        ('--input_pipeline=feed_dict', RECORDS, []),
        ('--input_pipeline=device', RECORDS, ['--input_pipeline=device']),
        # Arrays are held anyway, except by an evaluation.
        ('--input_pipeline=device --data_dir=d', ARRAYS, []),
        (
            '--input_pipeline=device --data_dir=d --train_dir=t --eval',
            ARRAYS,
            ['--input_pipeline=device'],
        ),
        (
            f'{TF_DATA} --nodatasets_use_prefetch --datasets_prefetch_buffer_size=2',
            RECORDS,
            [f'{PREFETCH}=2'],
        ),
        (
            f'{TF_DATA} --datasets_use_caching --datasets_repeat_cached_sample',
            RECORDS,
            ['--datasets_use_caching=True'],
        ),
        ('--ml_perf', RECORDS, ['--ml_perf=True']),
        ('--input_preprocessor=official_models_imagenet', RECORDS, ['--input_preprocessor']),
        ('--ml_perf --data_dir=d', ARRAYS, ['--ml_perf=True']),
        (OFFICIAL, ARRAYS, ['--input_preprocessor']),
        ('--scaled_decode --data_dir=d', ARRAYS, ['--scaled_decode=True']),
        (f'--ml_perf {OFFICIAL}', RECORDS, ['--ml_perf=True']),
        (
            f'--distortions --resize_method=area {OFFICIAL}',
            RECORDS,
            ['--distortions=True', '--resize_method=area'],
        ),
    ],
)
def test_what_has_no_effect_is_named(argv: str, run: RuleContext, flags: list[str]) -> None:
    lines = parse_argv(argv.split()).params.ignored_flag_warnings(run)
    assert len(lines) == len(flags), lines
    for line, flag in zip(lines, flags, strict=True):
        check_line(line, flag, 'has no effect')


@pytest.mark.parametrize(
    ('flag', 'fact'),
    [
        ('--input_pipeline=record_input', 'tf_data'),
        ('--use_datasets=False', 'tf_data'),
        ('--datasets_sloppy_parallel_interleave', ''),
    ],
)
def test_an_order_that_depends_on_timing_is_refused_with_deterministic(
    flag: str, fact: str
) -> None:
    argv = [flag, '--deterministic', '--data_dir=d']
    with refused(flag, '--deterministic', fact):
        parse_argv(argv).params.check(RECORDS)
    parse_argv([flag, '--data_dir=d']).params.check(RECORDS)
    # Where no records are read.
    parse_argv([flag, '--deterministic']).params.check(RECORDS)
    parse_argv(argv).params.check(ARRAYS)
    parse_argv([*argv, '--train_dir=t', '--eval']).params.check(RECORDS)


def test_ml_perf_changes_the_default_preprocessor_only() -> None:
    assert preprocessor_for(DEFAULT, ml_perf=False) == PREPROCESSORS[DEFAULT]
    assert preprocessor_for(DEFAULT, ml_perf=True) == ML_PERF
    for name in PREPROCESSORS:
        if name != DEFAULT:
            assert preprocessor_for(name, ml_perf=True) == PREPROCESSORS[name]


def test_the_input_alone_is_measured_where_steps_read_something() -> None:
    for others, conflicts_with in (
        ('', '--data_dir'),
        ('--data_dir=d --eval --train_dir=t', '--eval'),
        ('--data_dir=d --eval_during_training_every_n_steps=5', '--eval_during_training'),
    ):
        with refused('--input_only=read', conflicts_with):
            parse_argv(['--input_only=read', *others.split()])


def test_without_a_model_its_flags_have_no_effect_and_those_of_the_input_have() -> None:
    idle = [
        '--optimizer=momentum',
        '--precision=bf16',
        '--variable_update=replicated',
        '--trace_file=t',
    ]
    acting = [
        '--num_gpus=2',
        '--forward_only',
        '--resize_method=area',
        '--num_warmup_batches=3',
        '--batch_size=8',
    ]
    params = parse_argv(['--input_only=transfer', '--data_dir=d', *idle, *acting]).params
    lines = params.ignored_flag_warnings(RECORDS)
    assert len(lines) == len(idle)
    for line, flag in zip(sorted(lines), sorted(idle), strict=True):
        check_line(line, flag, '--input_only')
