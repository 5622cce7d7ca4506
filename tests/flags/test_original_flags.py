"""Flags of the original tf_cnn_benchmarks and of other versions: they work, are named in a warning,
or are refused.
"""

import csv
from pathlib import Path

import pytest

from tests.support.outputs import check_line, refused
from tf_cnn.flags.spec import ITS_DEFAULT
from tf_cnn.plan.original_flags import TABLE, Status
from tf_cnn.plan.params import SPECS, Params
from tf_cnn.plan.parsing import ParsedFlags, parse_argv

pytestmark = pytest.mark.unit

# The 137 flags of the original's last version: name, type, default, choices, bounds.
with open(Path(__file__).parent / 'original_flags.csv', encoding='utf-8', newline='') as file:
    ORIGINAL: dict[str, dict[str, str]] = {row['name']: row for row in csv.DictReader(file)}


def test_each_flag_of_the_original_has_a_row():
    assert len(ORIGINAL) == 137
    of_other_versions = {*TABLE} - {*ORIGINAL}
    assert len(of_other_versions) == 22
    assert {*ORIGINAL} <= {*TABLE}
    for name, row in TABLE.items():
        assert row.spec.name == name
        assert (name in SPECS) == (row.status is Status.WORKS), name
        assert bool(row.message) == (row.status is not Status.WORKS), name
        assert row.status is not Status.RENAMED or row.message in SPECS


def original_default(name: str) -> str:
    return ORIGINAL[name]['default'].removeprefix('[]')


def test_help_names_the_originals_default_where_it_differs():
    # Without this flag the original takes 10 warm-up steps, too.
    for name in ORIGINAL.keys() & SPECS.keys() - {'num_warmup_batches'}:
        spec, default = SPECS[name], original_default(name)
        is_same = spec.read(default) == spec.default if default else not spec.default
        is_told = (spec.original or '').startswith(ITS_DEFAULT)
        assert is_same != is_told, name


# --task_index is for clusters only.
@pytest.mark.parametrize('name', [name for name in ORIGINAL if name != 'task_index'])
def test_the_default_of_each_flag_of_the_original_is_accepted(name):
    default = original_default(name)
    parsed = parse_argv([f'--{name}={default}'] if default or TABLE[name].spec.optional else [])
    # Two defaults ask for what this program does in another way.
    warned = [f'--{name}'] if name in ('compute_lr_on_cpu', 'use_resource_vars') else []
    assert [line.partition('=')[0] for line in parsed.warnings] == warned


@pytest.mark.parametrize(
    'name', [name for name in ORIGINAL if TABLE[name].status is Status.NO_EFFECT]
)
def test_a_flag_without_effect_is_named_in_a_warning(name):
    values = {'boolean': str(not TABLE[name].accepted_value), 'integer': '2', 'float': '2'}
    parsed = parse_argv([f'--{name}={values.get(ORIGINAL[name]["type"], "x")}'])
    (line,) = parsed.warnings
    check_line(line, f'--{name}=', 'has no effect', TABLE[name].message)
    assert parsed.params == Params()


def test_only_what_would_measure_something_else_is_refused():
    for argv, *facts in (
        ('--input_preprocessor=inception', 'default', 'official_models_imagenet'),
        ('--use_datasets=True --input_pipeline=record_input',),
        ('--use_datasets=False --input_pipeline=tf_data',),
        ('--mkl=True --onednn=False',),
        ('--trt_mode=FP16', 'TensorRT', 'trtexec'),
    ):
        with refused(*argv.split(), *facts):
            parse_argv(argv.split())


def test_flags_of_other_versions_are_accepted_with_one_warning_each():
    flags = (
        '--flush_stdout=True --cache_data=True --result_storage=x --gpu_pending_cap=3 '
        '--use_data_sets=False --iters_per_step=4 --ml_perf_compliance_logging=True --log_dir=d'
    )
    parsed = parse_argv(flags.split())
    assert parsed.params == Params()
    warned = [check_line(line, 'has no effect: ').partition(' ')[0] for line in parsed.warnings]
    assert sorted(warned) == sorted(flags.split())


def test_the_flags_of_absl_stop_no_run():
    parsed = parse_argv(['--logtostderr', '--noalsologtostderr', '--stderrthreshold=error'])
    assert (parsed, parsed.absl_verbosity) == (ParsedFlags(Params(), ()), None)
    assert parse_argv(['--only_check_args']).checks_only
    assert parse_argv(['-v', '1']).absl_verbosity == 1
    assert parse_argv(['--verbosity=-2', '-v=0']).absl_verbosity == -2


def test_flowers_are_read_as_imagenet_with_a_warning():
    parsed = parse_argv(['--data_name=flowers'])
    assert parsed.params == parse_argv(['--data_name=imagenet']).params
    check_line(*parsed.warnings, '--data_name=flowers', '--data_name=imagenet', 'records')


def test_the_flags_of_intels_guides_are_accepted():
    affinity = 'granularity=fine,verbose,compact'
    argv = f'--mkl=true --kmp_blocktime=0 --kmp_settings=1 --kmp_affinity={affinity}'
    parsed = parse_argv([*argv.split(), '--use_tf_layers=False', '--num_intra_threads=28'])
    (line,) = parsed.warnings
    check_line(line, '--use_tf_layers')
    settings = parsed.params.tensorflow
    assert (settings.kmp_blocktime, settings.kmp_affinity) == (0, affinity)


def test_older_names_are_read():
    replicated = ['--variable_update=replicated', '--num_gpus=2']
    for older, argv in (
        ('--learning_rate=0.5', '--init_learning_rate=0.5'),
        ('--use_fp16', '--precision=fp16'),
        ('--use_fp16 --precision=fp16', '--precision=fp16'),
        ('--nouse_fp16 --precision=bf16', '--precision=bf16'),
        ('--use_nccl=True', '--all_reduce_spec=nccl'),
        ('--use_nccl=False', ''),
        ('--nouse_nccl --all_reduce_spec=xring', '--all_reduce_spec=xring'),
        ('--use_nccl --all_reduce_spec=nccl:32k:xring', '--all_reduce_spec=nccl:32k:xring'),
        ('--mkl=True', '--onednn=True'),
        ('--mkl=False', ''),
        ('--mkl=False --onednn=true', '--onednn=True'),
        ('--xla_compile', '--xla'),
        ('--xla --noxla_compile', '--xla'),
        ('--noxla --xla_compile', '--xla'),
    ):
        params = parse_argv([*older.split(), *replicated]).params
        assert params == parse_argv([*argv.split(), *replicated]).params, older


def test_nothing_between_two_quotes_is_empty():
    names = [name for name, row in TABLE.items() if row.spec.optional]
    for empty in ('', "''", '""'):
        assert parse_argv([f'--{name}={empty}' for name in names]) == parse_argv([])
