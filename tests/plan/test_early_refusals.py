"""Most wrong uses are refused together, before the import of TensorFlow, which takes seconds."""

import json
import sys

import pytest

from tests.support.programs import ROOT, run_process
from tf_cnn.machine.gpus import has_nvidia_gpu

pytestmark = pytest.mark.unit

# Command lines, each with the beginnings of its error lines.
REPLICATED = '--variable_update=replicated --num_gpus=2 --device=cpu'
REFUSED = {
    '--device=cpu --xla_compile --num_gpus=2': ['--xla_compile=True'],
    '--variable_update=collective_all_reduce --ps_hosts=a:1 --worker_hosts=b:1,c:1 '
    '--job_name=worker': ['--variable_update=collective_all_reduce'],
    '--device=cpu --profile_steps=90,101 --profile_dir=profile': ['--profile_steps=90,101'],
    '--device=cpu --num_epochs=0.001 --batch_size=64 --profile_steps=9,90 --profile_dir=profile': [
        '--profile_steps=9,90'
    ],
    '--device=cpu --xla --num_gpus=2': ['--xla'],
    '--hierarchical_copy --variable_update=replicated --num_gpus=3 --device=cpu': [
        '--hierarchical_copy'
    ],
    '--device=cpu --backbone_model_path=a*': ['--backbone_model_path=a*'],
    '--device=cpu --data_dir=no/such': ['--data_dir=no/such'],
    '--device=cpu --data_dir=linked': ['linked/train-00001-of-00002: it cannot be read'],
    'cluster -- --device=cpu --data_dir=linked': ['linked/train-00001-of-00002: it cannot be read'],
    '--device=cpu --train_dir=new/model.ckpt-100': ['--train_dir=new/model.ckpt-100'],
    '--device=cpu --eval --train_dir=new': ['--train_dir=new: it holds no checkpoint'],
    '--device=cpu --forward_only --train_dir=new/model.ckpt-1': ['--train_dir=new/model.ckpt-1: '],
    '--device=cpu --result_file=file/{model}.json': ['--result_file=file/'],
    '--model_file=no/such': ['--model_file=no/such'],
    '--export_saved_model=m': ['--export_saved_model: unknown flag; tf.train.load_checkpoint'],
    '--worker_hosts=a:1,a:1 --task_index=0 --job_name=worker '
    '--variable_update=collective_all_reduce': ['--worker_hosts=a:1,a:1: a:1'],
    # Independent mistakes are reported together.
    f'{REPLICATED} --xla_compile --data_dir=no/such --graph_file=file/g --trace_file=file/t': [
        '--data_dir=no/such',
        '--graph_file=file/g',
        '--trace_file=file/t',
        '--xla_compile=True',
    ],
    '--device=cpu --repeat=2 --data_dir=no/such --graph_file=file/g': ['--repeat=2'],
    'cluster -- --device=gpu --num_gpus=0': ['--num_gpus=0'],
    'cluster -- --device=cpu --data_dir=no/such --graph_file=file/g': [
        '--data_dir=no/such',
        '--graph_file=file',
    ],
}
# Refused on machines without a GPU; other machines must ask TensorFlow first.
WITHOUT_GPU = {
    '--device=gpu': ['--device=gpu'],
    '--num_gpus=2': ['--num_gpus=2'],
    '--variable_update=replicated --num_gpus=2 --use_nccl': ['--num_gpus=2'],
}
# Prints for each command line the exit code, the output, and whether TensorFlow was imported.
SCRIPT = """
import contextlib, io, json, sys, tf_cnn_benchmarks
answers = []
for argv in json.loads(sys.argv[1]):
    err, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = tf_cnn_benchmarks.main(argv.split())
    answers.append([code, out.getvalue(), err.getvalue(), 'tensorflow' in sys.modules])
print(json.dumps(answers))
"""


def test_wrong_use_is_refused_without_tensorflow_in_one_answer(tmp_path):
    (tmp_path / 'file').touch()
    (tmp_path / 'linked').mkdir()
    (tmp_path / 'linked' / 'train-00000-of-00002').write_bytes(b'x')
    (tmp_path / 'linked' / 'train-00001-of-00002').symlink_to('nothing')
    cases = REFUSED if has_nvidia_gpu() else {**REFUSED, **WITHOUT_GPU}
    command = [sys.executable, '-c', SCRIPT, json.dumps([*cases])]
    process = run_process(command, tmp_path, PYTHONPATH=str(ROOT), HOME=str(tmp_path))
    for (argv, beginnings), (code, out, err, has_tensorflow) in zip(
        cases.items(), json.loads(process.out), strict=True
    ):
        assert (code, out, has_tensorflow) == (2, '', False), (argv, err)
        lines = [line.removeprefix('tf_cnn_benchmarks: error: ') for line in err.splitlines()]
        assert len(lines) == len(beginnings), (argv, err)
        for beginning in beginnings:
            assert sum(line.startswith(beginning) for line in lines) == 1, (argv, beginning, lines)
    assert not (tmp_path / 'new').exists()
