"""The flags about input: their choices, their conflicts, and when they have no effect."""

import pytest

from tests.support.outputs import check_line, refused
from tf_cnn.inputs.catalog import DEFAULT, ML_PERF, PREPROCESSORS, preprocessor_for
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.plan.params import RuleContext
from tf_cnn.plan.parsing import parse_argv

pytestmark = pytest.mark.unit

RECORDS = RuleContext(is_single_process=True, is_residual=False)
ARRAYS = RuleContext(is_single_process=True, is_residual=False, has_records=False)


def ignored(argv: str, run: RuleContext = RECORDS) -> list[str]:
    """Returns the warnings about ignored flags."""
    return parse_argv(argv.split()).params.ignored_flag_warnings(run)


def test_flags_choose_the_pipeline():
    for argv, pipeline in (
        ('', 'record_input'),
        ('--deterministic', 'tf_data'),
        ('--input_pipeline=record_input', 'record_input'),
        ('--use_datasets', 'tf_data'),
        ('--nouse_datasets', 'record_input'),
        ('--use_datasets=', 'record_input'),
    ):
        params = parse_argv(argv.split()).params
        assert params.inputs.row(params).name == pipeline, argv


# Flags of tf_data: what they set.
OF_TF_DATA = {
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


@pytest.mark.parametrize('flag', OF_TF_DATA)
def test_each_flag_of_tf_data_changes_its_setting(flag):
    params = parse_argv(['--data_dir=d', '--use_datasets', flag]).params
    name, value = OF_TF_DATA[flag]
    assert getattr(params.inputs, name) == value != getattr(PipelineConfig(), name)
    assert params.ignored_flag_warnings(RECORDS) == []


@pytest.mark.parametrize('flag', OF_TF_DATA)
def test_without_tf_data_each_of_its_flags_is_named_in_a_warning(flag):
    name = flag.lstrip('-').removeprefix('no').partition('=')[0]
    for other_flags, run, reason in (
        ('--data_dir=d', RECORDS, '--input_pipeline=tf_data'),
        ('--data_dir=d --nouse_datasets', RECORDS, '--input_pipeline=tf_data'),
        ('', RECORDS, '--data_dir'),
        ('--data_dir=d --train_dir=t --eval', RECORDS, '--eval'),
        ('--data_dir=d', ARRAYS, 'records'),
    ):
        (line,) = ignored(f'{other_flags} {flag}', run)
        check_line(line, f'--{name}=', reason)


def test_ignored_input_flags_are_named():
    tf_data = '--use_datasets --data_dir=d'
    official = '--data_dir=d --input_preprocessor=official_models_imagenet'
    evaluation = '--data_dir=d --train_dir=t --eval'
    for run, argv, *flags in (
        (RECORDS, '--use_datasets', '--use_datasets=True'),
        (ARRAYS, '--use_datasets --data_dir=d', '--use_datasets=True'),
        (RECORDS, f'--input_pipeline=tf_data {evaluation}', '--input_pipeline=tf_data'),
        (RECORDS, '--input_pipeline=feed_dict'),
        (RECORDS, '--input_pipeline=device', '--input_pipeline=device'),
        # Arrays are in memory anyway, except in an evaluation.
        (ARRAYS, '--input_pipeline=device --data_dir=d'),
        (ARRAYS, f'--input_pipeline=device {evaluation}', '--input_pipeline=device'),
        (
            RECORDS,
            f'{tf_data} --nodatasets_use_prefetch --datasets_prefetch_buffer_size=2',
            '--datasets_prefetch_buffer_size=2',
        ),
        (
            RECORDS,
            f'{tf_data} --datasets_use_caching --datasets_repeat_cached_sample',
            '--datasets_use_caching=True',
        ),
        (RECORDS, '--ml_perf', '--ml_perf=True'),
        (RECORDS, '--input_preprocessor=official_models_imagenet', '--input_preprocessor'),
        (ARRAYS, '--ml_perf --data_dir=d', '--ml_perf=True'),
        (ARRAYS, official, '--input_preprocessor'),
        (ARRAYS, '--scaled_decode --data_dir=d', '--scaled_decode=True'),
        (RECORDS, f'--ml_perf {official}', '--ml_perf=True'),
        (
            RECORDS,
            f'--distortions --resize_method=area {official}',
            '--distortions=True',
            '--resize_method=area',
        ),
    ):
        lines = ignored(argv, run)
        assert len(lines) == len(flags), argv
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
def test_an_order_that_depends_on_timing_is_refused_with_deterministic(flag, fact):
    argv = [flag, '--deterministic', '--data_dir=d']
    with refused(flag, '--deterministic', fact):
        parse_argv(argv).params.check(RECORDS)
    parse_argv([flag, '--data_dir=d']).params.check(RECORDS)
    # Where no records are read.
    parse_argv([flag, '--deterministic']).params.check(RECORDS)
    parse_argv(argv).params.check(ARRAYS)
    parse_argv([*argv, '--train_dir=t', '--eval']).params.check(RECORDS)


def test_ml_perf_changes_the_default_preprocessor_only():
    with_ml_perf = {name: preprocessor_for(name, ml_perf=True) for name in PREPROCESSORS}
    assert with_ml_perf == {**PREPROCESSORS, DEFAULT: ML_PERF}
    assert preprocessor_for(DEFAULT, ml_perf=False) == PREPROCESSORS[DEFAULT]


def test_the_input_alone_is_measured_where_steps_read_something():
    for other_flags, conflicting in (
        ('', '--data_dir'),
        ('--data_dir=d --eval --train_dir=t', '--eval'),
        ('--data_dir=d --eval_during_training_every_n_steps=5', '--eval_during_training'),
    ):
        with refused('--input_only=read', conflicting):
            parse_argv(['--input_only=read', *other_flags.split()])


def test_without_a_model_its_flags_are_ignored_and_input_flags_work():
    of_model = '--optimizer=momentum --precision=bf16 --variable_update=replicated --trace_file=t'
    of_input = '--num_gpus=2 --forward_only --resize_method=area --num_warmup_batches=3'
    lines = ignored(f'--input_only=transfer --data_dir=d {of_model} {of_input} --batch_size=8')
    for line, flag in zip(sorted(lines), sorted(of_model.split()), strict=True):
        check_line(line, flag, '--input_only')
