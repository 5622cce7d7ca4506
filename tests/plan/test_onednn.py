"""--onednn sets TensorFlow's switch before the import, and is in the result. After the import it is
refused.
"""

import json

import pytest

from tests.support.outputs import check_error, check_line
from tests.support.programs import run, run_python

pytestmark = pytest.mark.distributed

RUN = '--model=trivial --device=cpu --batch_size=2 --num_batches=1 --num_warmup_batches=1'
VARIABLE = 'TF_ENABLE_ONEDNN_OPTS'


def test_the_flag_decides_which_kernels_run_and_compare_shows_it(tmp_path):
    used = {}
    # The same switch by the flag, by its name in the original, and by TensorFlow's variable.
    for name, flag, variable in (
        ('off', '--onednn=false', None),
        ('on', '--onednn=true', None),
        ('mkl', '--mkl=True', None),
        ('variable', '', '0'),
    ):
        paths = f'--result_file={tmp_path}/{name}.json --partitioned_graph_file_prefix={tmp_path}/'
        process = run(f'{RUN} {flag} {paths}{name}', TF_ENABLE_ONEDNN_OPTS=variable)
        assert process.code == 0, process.err
        document = json.loads((tmp_path / f'{name}.json').read_text())
        graph = ''.join(path.read_text() for path in tmp_path.glob(f'{name}*.pbtxt'))
        used[name] = (document['run']['onednn'], '_Mkl' in graph, document['environment'][VARIABLE])
    on, off = (True, True, '1'), (False, False, '0')
    assert used == {'off': off, 'on': on, 'mkl': on, 'variable': off}
    compared = run('compare off.json on.json', cwd=tmp_path)
    assert 'flags: onednn False -> True' in compared.out + compared.err
    compared = run('compare on.json mkl.json', cwd=tmp_path)
    assert 'onednn' not in compared.out + compared.err


def test_a_contradicting_variable_is_refused_and_both_are_named():
    for flag, text in (('--onednn=True', '0'), ('--mkl=True', 'false'), ('--onednn=False', '1')):
        process = run(f'{RUN} {flag}', TF_ENABLE_ONEDNN_OPTS=text)
        assert process.code == 2
        check_error(process.err, flag, f'{VARIABLE}={text}')
    assert run(f'{RUN} --onednn=True', TF_ENABLE_ONEDNN_OPTS='true').code == 0


# Plans each run before it imports BenchmarkCNN, which imports TensorFlow, as the command does.
RUNS = """
import sys
from tf_cnn.system.errors import UsageError
from tf_cnn.plan.parsing import make_params
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.plan import make_plan

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
    lines = run_python(RUNS.format(steps=steps), TF_ENABLE_ONEDNN_OPTS=None).err.splitlines()
    return [line for line in lines if line.startswith(('used', 'refused'))]


def test_the_flag_is_refused_after_the_import_of_tensorflow():
    (line,) = runs_from_python('[(True, True)]')
    check_line(line, 'refused --onednn=True', 'TensorFlow was already imported', f'{VARIABLE}=1')


def test_runs_of_one_process_share_the_switch():
    first, second, *refused = runs_from_python(
        '[(False, False), (False, False), (False, True), (False, None)]'
    )
    assert (first, second, len(refused)) == ('used False', 'used False', 2)
    check_line(refused[0], '--onednn=True', 'new process')
    check_line(refused[1], VARIABLE, 'new process')
