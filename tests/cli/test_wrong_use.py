"""Wrong use of each subcommand: exit code 2 and one line that names it, before anything is written
or started.
"""

import shlex
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tests.support.programs import run_main
from tests.support.sample_results import (
    command_document,
    sample_document,
    sample_failure,
    untimed_document,
    write_document,
    write_sample,
)

pytestmark = pytest.mark.unit

MODE = '--variable_update='


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contains two results, files that are not results, and an empty folder."""
    folder = tmp_path_factory.mktemp('wrong')
    write_sample(folder / 'one.json')
    write_sample(folder / 'two.json', seed=2)
    write_sample(folder / 'other.json', run={'role': 'forward-only'}, flags={'model': 'trivial'})
    write_document(folder / 'damaged.json', sample_document() | {'workers': [{'steps': 5}]})
    write_document(folder / 'newer.json', sample_document() | {'schema_version': 9})
    write_document(folder / 'failure.json', sample_failure(reason='out of memory'))
    write_document(folder / 'untimed.json', untimed_document('interrupted early'))
    evaluation = untimed_document('', run={'role': 'evaluation'})
    write_document(folder / 'evaluation.json', evaluation | {'workers': []})
    (folder / 'cut.json').write_text((folder / 'one.json').read_text()[:5000])
    write_document(folder / 'time.json', command_document(3, None))
    (folder / 'empty.json').touch()
    (folder / 'log.txt').write_text('Model: resnet50\ntotal images/sec: 95.83\n')
    (folder / 'role_flags').write_text('--worker_hosts=a:1,b:1\n')
    (folder / 'garbage').write_bytes(bytes(range(256)) * 9)
    (folder / 'empty').mkdir()
    return folder


@pytest.mark.parametrize(
    'row',
    # Command lines, the start of the error, and what else it names.
    [
        ('cluster --ps=0', '--ps=0', '--variable_update=parameter_server'),
        (
            f'cluster --ps=1 -- {MODE}collective_all_reduce',
            '--ps=1',
            f'{MODE}collective_all_reduce',
        ),
        (f'cluster -- {MODE}independent', f'{MODE}independent', 'cluster', 'parameter_server'),
        (f'cluster -- {MODE}horovod', f'{MODE}horovod', 'cluster', 'parameter_server'),
        (
            f'cluster -- {MODE}distributed_replicated --nocross_replica_sync',
            '',
            '--cross_replica_sync=False',
            MODE,
        ),
        (
            f'cluster -- {MODE}collective_all_reduce --forward_only',
            '',
            '--forward_only',
            MODE,
            '--ps_hosts',
        ),
        (
            'cluster -- --precision=bf16 --fp16_vars',
            '',
            '--fp16_vars',
            '--variable_update=parameter_server',
        ),
        ('cluster --workers=0', '--workers=0', '1'),
        ('cluster --worker=3', '--worker', 'cluster', '--workers'),
        ('cluster lenet', 'lenet', 'cluster', 'after --'),
        ('cluster -- -- --model=lenet', '--'),
        ('cluster -- --modle=lenet', '--modle', '--model'),
        ('cluster -- --flagfile=/no/such', '--flagfile: ', '/no/such'),
        ('cluster -- --flagfile=role_flags', '--worker_hosts=a:1,b:1', 'cluster'),
        ('cluster -- --job_name=ps', '--job_name=ps', 'cluster'),
        ('cluster --ssh=x', '--ssh=x', '--hosts'),
        ('cluster --hosts=a --hostfile=b', '--hostfile=b', '--hosts'),
        ('cluster --hosts=a --each', '--each', '--hosts'),
        ('cluster --hosts=a --pairs', '--pairs', '--hosts'),
        ('cluster --each', '--each', '--hosts'),
        ('cluster --hosts=a,a --each', '--hosts=a,a', 'twice'),
        ('cluster --hosts=a,b --each --pairs', '--pairs', '--each'),
        ('cluster --hosts=a,b --each --ps=1', '--ps', '--each'),
        ('cluster --hosts=a,b --rounds=2', '--rounds', '--each'),
        ('cluster --hosts=a,b --each --fail_below=95', '--fail_below=95', 'from 0 to 1.9'),
        ('cluster --hosts=a,b --each -- --result_file=x', '--result_file=x', '--output'),
        (f'cluster --hosts=a,b --pairs -- {MODE}replicated', f'{MODE}replicated', '--pairs'),
        ('cluster --hosts=a,b --each -- --modle=lenet', '--modle', '--model'),
        ('cluster --remote_python=python3', '--remote_python=python3', '--hosts'),
        (f'cluster --hosts=a,b -- {MODE}horovod', '', f'{MODE}horovod'),
        ('\u2013model=lenet', '\u2013model=lenet', '--model=lenet'),
        ('sweep precision \u2013repeats=2', '\u2013repeats=2', '--repeats=2'),
        ('cluster -- \u2014model=lenet', '\u2014model=lenet', '--model=lenet'),
        ('compare one.json cut.json', 'cut.json'),
        ('compare one.json newer.json', 'newer.json', '9'),
        ('compare one.json damaged.json', 'damaged.json'),
        ('compare one.json failure.json', 'failure.json', 'out of memory'),
        ('compare one.json untimed.json', 'untimed.json', 'interrupted early'),
        ('compare one.json evaluation.json', 'evaluation.json'),
        ('compare one.json garbage', 'garbage'),
        ('compare one.json empty.json', 'empty.json', 'empty'),
        ('compare one.json empty', 'empty'),
        ('compare one.json', 'one.json', 'two settings'),
        ('compare one.json one.json', '', 'one.json', 'the same 1 run'),
        ('compare', 'compare'),
        ('compare one.json --against=missing', 'missing'),
        ('compare empty --against=empty', 'empty'),
        (
            'compare one.json other.json',
            '',
            'one.json',
            'other.json',
            'lenet',
            'trivial',
            'forward-only',
            '--force',
        ),
        ('compare a b --rounds=3', '--rounds', '--run'),
        ('compare --run=--model=lenet --run=--model=lenet --rounds=2', '--rounds=2', '3'),
        ('compare --run=--model=lenet', '--run=--model=lenet', '1 time'),
        ('compare --run=--model=lenet --run=--model=lenet a', '--run', 'RESULT'),
        ("compare --run=--model=lenet --run='--model=lenet --repeat=2'", '--repeat=2'),
        ('compare --run=--model=lenet --run=--model=lenett', '--model=lenett'),
        ('compare --run=--model=lenet "--run=--model=\'lenet"', '--run'),
        ('compare one.json one.json --force', '', 'one.json', 'the same 1 run'),
        ('compare one.json missing', 'missing'),
        ('compare one.json time.json --force', '', 'wall times'),
        ('compare . - -', '-', 'only once'),
        ('compare . --fail_below=95', '--fail_below=95:', 'from 0 to 1.9'),
        ('compare . --fail_below=2', '--fail_below=2:', 'from 0 to 1.9'),
        ('compare . --across=hosts --against=.', '--across=hosts', '--against'),
        ('compare . --across=hosts --force', '--across=hosts', '--force'),
        ('compare one.json two.json --price_per_hour=one=x', '--price_per_hour=one=x', 'x'),
        ('compare one.json two.json --price_per_hour=uno=1', '--price_per_hour=uno=1', 'uno'),
        ('compare one.json two.json --published=empty.json', '--published=empty.json'),
        ('compare . --output=x', '--output', '--run'),
        ("compare . '--rate=x(.)'", '--rate', '--command'),
        ('compare --run=--model=lenet --run=--model=vgg16', '--run', 'lenet and vgg16', '--force'),
        ('compare --run=--model=lenet --command=true', '--command=true', '--rate'),
        ("compare --run=-a --run=-b '--rate=x(.)'", '--rate=x(.)', '--command'),
        ('compare --command=a --command=b --rate=x', '--rate=x', 'group'),
        ('compare --command=a --command=b --grid=n=1,2', '--command=a', '{n}'),
        ('compare --command=a --command=b --grid=rate=1,2', '--grid=rate', 'name'),
        ('sweep --command=a --grid=n=1,2', '--command=a', '{n}', '--grid=N='),
        ("sweep --command='a {n}' --grid=n=1,2 -- --model=lenet", '--model=lenet', '--command'),
        ('sweep --command=a --command=b --grid=N=1', '--command=b'),
        ('sweep --grid=batch_size=1,2 --fail_below=95', '--fail_below=95:'),
        ("cluster --hosts=a,b --each --command='a {rank}' --grid=rank=1", '--grid=rank'),
        ('cluster --hosts=a,b --each --command=a -- --model=lenet', '--model=lenet', '--command'),
        ('cluster --hosts=a,b --command=a', '--command', '--each'),
        ('cluster --hosts=a:2222,b --each', '--hosts=a:2222', '--ssh'),
        ('cluster --hosts=[..],b --each', '--hosts=[..],b'),
        ('doctor --only=gpus', '--only=gpus', 'did you mean gpu'),
        ('doctor --only=gpu,xyz', '--only=gpu,xyz', "'xyz'", 'all_reduce'),
        ('doctor --only=processor', '--only=processor', 'docs/results.md'),
        ('doctor --only=gpu,', '--only=gpu,', "''"),
        ('doctor gpu', 'gpu', 'doctor --help'),
        ('help batchsize', '--help=batchsize', 'batch_size'),
        ('--help=recrods', '--help=recrods', 'records'),
        ("'--help=x\ny'", '--help='),
        ('help batch_size --markdown', '--markdown', 'batch_size'),
        ('models lenett', 'lenett', 'did you mean lenet?'),
        ("models 'x*'", 'x*', "models 'resnet*'"),
        ('models a b', 'b', 'models'),
        ('predict one.json', 'predict', 'docs/distributed.md', 'How far will it scale?'),
        ('records photos', 'photos', 'records --help'),
        ('records --jpeg_quality=0', '--jpeg_quality=0', '100'),
        ('records --input=/missing --output=x', '--input=/missing'),
        ('records --input=x', '--output', 'records --help'),
        ('records --output=x', '--input', 'records --help'),
        ('records --check=x --shards=4', '--check=x', '--shards'),
        ('records --check=/missing', '', '--check', '/missing'),
        ('report missing', 'missing'),
        ('report empty', 'empty'),
        ('report one.json --output=empty', '--output=empty'),
        ('report one.json --output=one.json', '--output=one.json'),
        ('report one.json --output=one.json/page.html', '--output=one.json', 'a file'),
        ('report one.json --plots=one.json', '--plots=one.json'),
        ('sweep', 'sweep', '--grid'),
        ('sweep precision --grid=batch_size=1,2', 'sweep', 'precision', '--grid'),
        ('sweep precison', 'precison', 'precision'),
        ('sweep precision -- --precision=fp32', '', '--precision=fp32'),
        ('sweep exchange -- --hosts=a,a', '', '--hosts=a,a'),
        ('sweep exchange -- --ssh=ssh', '--ssh=ssh', '--hosts'),
        (
            f'sweep --grid=shape=4*1 -- --hosts=a:1,b:1 {MODE}collective_all_reduce',
            '',
            '--hosts=a:1,b:1',
        ),
    ],
    ids=lambda row: row[0],
)
def test_wrong_use_is_refused_in_one_line_and_changes_nothing(row, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
    line, start, *facts = row
    out, err = run_main(*shlex.split(line), code=2)
    assert out == ''
    assert err.startswith(f'tf_cnn_benchmarks: error: {start}')
    check_line(err, *facts)
    assert before == {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}
