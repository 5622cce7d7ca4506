"""Flags of the original tf_cnn_benchmarks and of older versions: accepted, accepted with a warning, or refused."""

import pytest
from refusals import check_line, refused

from params import SPECS, Params, parse_argv
from params import original as legacy_flags

pytestmark = pytest.mark.unit


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


def test_flags_of_older_versions_are_accepted_with_one_warning_each() -> None:
    argv = ['--flush_stdout=true', '--cache_data', '--result_storage=x', '--gpu_pending_cap=3', '--nouse_data_sets']
    parsed = parse_argv([*argv, '--log_dir', 'd'])
    assert parsed.params == Params()
    lines = sorted(check_line(line) for line in parsed.warnings)
    names = ['--cache_data', '--flush_stdout=true', '--gpu_pending_cap=3', '--log_dir=d', '--result_storage=x']
    assert len(lines) == 6
    for line, name in zip(lines, [*names, '--use_data_sets=false'], strict=True):
        assert line.startswith(name)


@pytest.mark.parametrize(
    'argv',
    [
        '--use_fp16=False',
        '--nouse_fp16',
        '--job_name=',
        '--task_index=',
        '--eval=false',
        '--variable_consistency=strong',
        '--gpu_kt_max_bytes=0',
        '--trt_mode=',
        '--use_tf_layers',
    ],
)
def test_the_default_of_a_flag_that_is_not_here_is_accepted_in_silence(argv: str) -> None:
    assert parse_argv([argv]) == parse_argv([])


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        ('--variable_consistency=relaxed', ['--variable_consistency=relaxed', '--variable_consistency=strong']),
        ('--gpu_indices=0,1', ['--gpu_indices=0,1', 'CUDA_VISIBLE_DEVICES=0,1']),
        ('--ml_perf', ['--ml_perf=true', 'github.com/mlcommons/training']),
        ('--trt_mode=FP16', ['--trt_mode=FP16', 'TensorRT']),
    ],
)
def test_a_flag_that_is_not_here_is_refused_with_what_to_use_instead(argv: str, facts: list[str]) -> None:
    with refused(*facts):
        parse_argv([argv])


def test_each_flag_of_the_original_has_one_home() -> None:
    assert not set(SPECS) & set(legacy_flags.NAMES)
    # 137 flags; some are ours, the older names are of versions before.
    ours = {'verbose', 'num_ps', 'cluster_port', 'connect_timeout_secs', 'peer_timeout_secs', 'ps_linger_secs'}
    ours |= {'distinct_worker_data', 'label_smoothing', 'lars_eta', 'nesterov', 'augmentation', 'model_file'}
    ours |= {'precision', 'tf32', 'continue_on_nan', 'export_saved_model', 'profile_steps', 'profile_dir'}
    ours |= {'result_file', 'history', 'repeat', 'target_seconds', 'measure_peak'}
    # --use_fp16 is read as --precision.
    assert len(set(SPECS) - ours) + 1 + len(legacy_flags.NAMES) - 10 == 137
