"""--onednn sets TensorFlow's switch before the import, and is in the result. After the import it is
refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line, refused, warnings_in
from tests.support.programs import run, run_main, run_python
from tests.support.runs import params_of
from tests.support.surroundings import WITHOUT_ONEDNN
from tf_cnn.machine.this_process import ProcessEnvironment, ProcessSettings, ThisProcess
from tf_cnn.plan.cluster_role import find_cluster_role
from tf_cnn.plan.process_settings import choose_start

pytestmark = pytest.mark.distributed

RUN = '--model=trivial --device=cpu --batch_size=2 --num_batches=1 --num_warmup_batches=1'
VARIABLE = 'TF_ENABLE_ONEDNN_OPTS'
# Plans each run before it imports BenchmarkCNN, which imports TensorFlow, as the command does.
RUNS = """
import shlex, sys
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import make_plan
from tf_cnn.system.errors import UsageError

for flags in sys.argv[1:]:
    try:
        plan = make_plan(parse_argv(shlex.split(flags)).params, ProcessEnvironment())
        from benchmark_cnn import BenchmarkCNN
        benchmark = BenchmarkCNN(plan)
        benchmark.run()
        print('used', benchmark.result.run.onednn, file=sys.stderr)
    except UsageError as error:
        print('refused', error, file=sys.stderr)
"""


def files_of(name: str, folder: Path) -> str:
    """The flags that write the result of a run, and its graph as TensorFlow runs it."""
    prefix = quoted(folder / name)
    return f'--result_file={prefix}.json --partitioned_graph_file_prefix={prefix}'


def test_the_flag_decides_which_kernels_run_and_runs_of_one_process_share_it(tmp_path):
    off = f'{RUN} --onednn=false'
    flags = [f'{off} {files_of("off", tmp_path)}', off, f'{RUN} --onednn=true', RUN]
    process = run_python(RUNS, *flags, TF_ENABLE_ONEDNN_OPTS=None)
    lines = [line for line in process.err.splitlines() if line.startswith(('used', 'refused'))]
    assert lines[:2] == ['used False', 'used False']
    other_value, no_value = lines[2:]
    check_line(other_value, 'refused --onednn=True', 'new process')
    check_line(no_value, f'refused {VARIABLE}', 'new process')

    # The flag's name in the original.
    process = run(f'{RUN} --mkl=True {files_of("on", tmp_path)}', TF_ENABLE_ONEDNN_OPTS=None)
    assert process.code == 0, process.err
    for name, is_on in (('off', False), ('on', True)):
        document = json.loads((tmp_path / f'{name}.json').read_text())
        assert document['run']['onednn'] is is_on
        assert document['environment'][VARIABLE] == str(int(is_on))
        graph = ''.join(path.read_text() for path in tmp_path.glob(f'{name}*.pbtxt'))
        assert ('_Mkl' in graph) is is_on
    comparison, _ = run_main('compare', tmp_path / 'off.json', tmp_path / 'on.json')
    assert 'onednn False -> True' in comparison


@pytest.mark.surroundings
def test_where_tensorflow_leaves_onednn_off_one_warning_says_so_and_no_test_counts_it(tmp_path):
    flags = f'{RUN} --result_file={quoted(tmp_path)}/r.json'
    process = run(flags, PYTHONPATH=str(WITHOUT_ONEDNN), TF_ENABLE_ONEDNN_OPTS=None)
    [result] = process.results
    assert (process.code, result.run.onednn) == (0, False)
    assert 'onednn_off' in [warning.code for warning in result.warnings]
    assert process.err.count('[onednn_off]') == 1
    assert warnings_in(process.err) == []


def start_settings(flags: str, variables: Mapping[str, str]) -> ProcessSettings:
    """Returns the settings that TensorFlow reads when it starts, in a process with these variables;
    this process has imported TensorFlow.
    """
    environment = ProcessEnvironment(variables, ThisProcess({}))
    params = params_of(f'{RUN} {flags}')
    return choose_start(params, environment, find_cluster_role(params, environment, []), None, [])


def test_a_contradicting_variable_is_refused_and_both_are_named():
    for flag, text in (('--onednn=True', '0'), ('--mkl=True', 'false'), ('--onednn=False', '1')):
        with refused(flag, f'{VARIABLE}={text}'):
            start_settings(flag, {VARIABLE: text})


def test_after_the_import_of_tensorflow_the_variable_stays_and_the_flag_is_refused():
    environ = {VARIABLE: '0'}
    process = ThisProcess(environ)
    process.start_tensorflow(start_settings('', environ))
    assert environ == {VARIABLE: '0'}
    # A variable with the value of the flag does not contradict it.
    for variables in ({}, {VARIABLE: 'true'}):
        with refused('--onednn=True', 'TensorFlow was already imported', f'{VARIABLE}=1'):
            start_settings('--onednn=True', variables)
