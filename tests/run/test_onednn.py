"""--onednn sets TensorFlow's switch before its import, and is in the result; too late, it is
refused.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.outputs import check_line

pytestmark = pytest.mark.distributed

ROOT = Path(__file__).parent.parent.parent
PROGRAM = (sys.executable, 'tf_cnn_benchmarks.py')
RUN = (
    '--model=trivial',
    '--device=cpu',
    '--batch_size=2',
    '--num_batches=1',
    '--num_warmup_batches=1',
)
VARIABLE = 'TF_ENABLE_ONEDNN_OPTS'


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=120, env=environ)


def test_the_flag_decides_which_kernels_run_and_two_values_are_two_settings(tmp_path: Path) -> None:
    # The same switch by the flag, by its name in the original, and by TensorFlow's variable.
    asked: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
        'off': (('--onednn=false',), {}),
        'on': (('--onednn=true',), {}),
        'mkl': (('--mkl=True',), {}),
        'variable': ((), {VARIABLE: '0'}),
    }
    used = {}
    for name, (flags, variables) in asked.items():
        paths = (
            f'--result_file={tmp_path}/{name}.json',
            f'--partitioned_graph_file_prefix={tmp_path}/{name}',
        )
        done = run(*PROGRAM, *RUN, *flags, *paths, **variables)
        assert done.returncode == 0, done.stderr
        document = json.loads((tmp_path / f'{name}.json').read_text())
        graph = ''.join(path.read_text() for path in tmp_path.glob(f'{name}*.pbtxt'))
        used[name] = (document['run']['onednn'], '_Mkl' in graph, document['environment'][VARIABLE])
    on, off = (True, True, '1'), (False, False, '0')
    assert used == {'off': off, 'on': on, 'mkl': on, 'variable': off}
    compared = run(*PROGRAM, 'compare', f'{tmp_path}/off.json', f'{tmp_path}/on.json')
    assert 'flags: onednn False -> True' in compared.stdout + compared.stderr
    compared = run(*PROGRAM, 'compare', f'{tmp_path}/on.json', f'{tmp_path}/mkl.json')
    assert 'onednn' not in compared.stdout + compared.stderr


def test_a_variable_of_another_value_is_refused_with_both_named() -> None:
    for flag, text in (('--onednn=True', '0'), ('--mkl=True', 'false'), ('--onednn=False', '1')):
        done = run(*PROGRAM, *RUN, flag, **{VARIABLE: text})
        assert done.returncode == 2
        check_line(done.stderr.strip(), flag, f'{VARIABLE}={text}')
    assert run(*PROGRAM, *RUN, '--onednn=True', **{VARIABLE: 'true'}).returncode == 0


# Plans each run before it imports BenchmarkCNN, which imports TensorFlow, as the command does.
RUNS = """
import sys
from tf_cnn.system.errors import UsageError
from tf_cnn.run.parsing import make_params
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.run.plan import make_plan

for before, onednn in {steps}:
    if before:
        import tensorflow
    try:
        few = dict(model='trivial', device='cpu', batch_size=2, num_batches=1)
        params = make_params(**few, onednn=onednn)
        plan = make_plan(params, ProcessEnvironment())
        from benchmark_cnn import BenchmarkCNN
        print('used', BenchmarkCNN(plan).run().run.onednn, file=sys.stderr)
    except UsageError as error:
        print('refused', error, file=sys.stderr)
"""


def runs_from_python(steps: str) -> list[str]:
    done = run(sys.executable, '-c', RUNS.format(steps=steps))
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith(('used', 'refused'))]


def test_the_flag_is_refused_where_tensorflow_was_imported_before() -> None:
    (line,) = runs_from_python('[(True, True)]')
    check_line(line, 'refused --onednn=True', 'TensorFlow was already imported', f'{VARIABLE}=1')
    # BenchmarkCNN imports TensorFlow.
    code = 'from benchmark_cnn import BenchmarkCNN; from tf_cnn.run.parsing import make_params; '
    done = run(sys.executable, '-c', f'{code}BenchmarkCNN(make_params(onednn=False))')
    check_line(
        done.stderr.splitlines()[-1],
        '--onednn=False',
        'TensorFlow was already imported',
        f'{VARIABLE}=0',
    )


def test_runs_of_one_process_share_the_switch() -> None:
    first, second, *refused = runs_from_python(
        '[(False, False), (False, False), (False, True), (False, None)]'
    )
    assert (first, second, len(refused)) == ('used False', 'used False', 2)
    check_line(refused[0], '--onednn=True', 'new process')
    check_line(refused[1], VARIABLE, 'new process')
