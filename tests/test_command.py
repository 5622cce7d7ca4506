"""The command as users start it: what it answers without TensorFlow, its exit codes, and its
standard streams.
"""

import ast
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import check_error, check_line, check_warning, read_output, warnings_in
from tests.support.programs import (
    PROGRAM,
    ROOT,
    Terminal,
    catches_sigterm,
    launched,
    run,
    run_main,
    run_process,
    run_python,
)
from tf_cnn.cli.subcommands import SUBCOMMANDS

FULL = Path('/dev/full')
SMALL_RUN = '--device=cpu --batch_size=2 --num_batches=3 --num_warmup_batches=1'


def check_refusal(argv: Sequence[str], *facts: str) -> None:
    """Fails unless the command is refused in one line, with nothing on standard output."""
    out, err = run_main(*argv, code=2)
    assert out == ''
    check_line(err)
    check_error(err, *facts)


@pytest.mark.unit
def test_what_needs_no_run_imports_neither_tensorflow_nor_numpy_and_leaves_no_trace():
    quick = [['--help'], ['--help=batch_size'], ['models', '--json'], ['records', '--help']]
    code = (
        'import os, sys; before = dict(os.environ); import tf_cnn_benchmarks; from absl import '
        'flags\nassert (dict(os.environ), "batch_size" in flags.FLAGS) == (before, False)\n'
        f'for argv in {quick}: assert tf_cnn_benchmarks.main(argv) == 0, argv\n'
        'assert not {"numpy", "rich", "PIL"} & {*sys.modules}\n'
        f'for name in {[*SUBCOMMANDS]}:\n'
        '    assert [tf_cnn_benchmarks.main([name, word]) for word in ("--help", "--zzqq")] == '
        '[0, 2]\nassert tf_cnn_benchmarks.main(["--model=renset50"]) == 2\n'
        'assert "tensorflow" not in sys.modules'
    )
    run_python(code)


@pytest.mark.unit
@pytest.mark.parametrize('word', ['-h', '--help', '--helpfull', '-help'])
def test_help_is_printed_even_if_another_flag_is_wrong(word):
    out, _ = run_main('--nonsense', word)
    assert '--batch_size=VALUE' in out


@pytest.mark.unit
@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        (['--batchsize=3'], ['--batchsize', '--batch_size']),
        (['record'], ['record', 'records']),
        (['64'], ['64', '--model=resnet50', 'cluster', 'models', 'records']),
        (['--forward_only', '64'], ["'64'", '--forward_only=True']),
        (['--data_dir=/no/such'], ['--data_dir=/no/such', 'train-*-of-*']),
        (['--graph_file=/dev/null/g'], ['--graph_file=/dev/null/g']),
        (['--batch\r\nsize=3'], ['batch']),
        # Beside a flag without effect.
        (['--gpu_pending_cap=3', '--data_dir=/no/such'], ['--data_dir=/no/such']),
        (['records', '--check=/no\x1b[2Jsuch'], ['--check=']),
    ],
)
def test_wrong_use_ends_with_code_2_and_one_line(argv, facts):
    check_refusal(argv, *facts)


@pytest.mark.unit
def test_mistakes_that_do_not_depend_on_each_other_have_a_line_each():
    out, err = run_main('--batchsize=3', '--num_batches=0', '--optimizer=sdg\n', code=2)
    assert out == ''
    facts = ('--batchsize', '--num_batches=0', '--optimizer=')
    for line, fact in zip(err.splitlines(), facts, strict=True):
        check_error(line, fact)


@pytest.mark.unit
def test_verbose_adds_the_traceback():
    _, err = run_main('--verbose', '--batch_size=x', code=2)
    assert err.startswith('Traceback (most recent call last):\n')
    check_error(err, ': --batch_size=x')


@pytest.mark.unit
def test_the_version_is_one_line():
    version, *again = (run_main(word)[0] for word in ('--version', '-V', 'version'))
    facts = r'(commit [0-9a-f]{12}, )?TensorFlow 2\.\S+, Python 3\.\S+'
    assert re.fullmatch(rf'tf_cnn_benchmarks \d+\.\d+\.\d+ \({facts}\)\n', version)
    assert again == [version, version]


@pytest.mark.graph
def test_a_run_prints_results_alone_on_standard_output(tmp_path):
    files = '--flush_stdout=true --graph_file=graph.pbtxt'
    done = run(f'{SMALL_RUN} --display_every=2 {files}', tmp_path, fresh=True)
    assert done.code == 0, done.err
    found = read_output(done.out)
    # The last step is printed although --display_every does not divide it.
    assert [number for number, *_ in found.steps] == [1, 2, 3]
    # Nothing of what TensorFlow prints while it starts.
    warning, default, *progress = done.err.splitlines()
    check_warning(warning, '--flush_stdout=True')
    check_line(default, '--model=trivial', 'not a real network', '--model=resnet50')
    stages = ['Building the graph', 'Initialising the variables', 'Running 1 warm-up step']
    assert progress[:3] == stages
    assert not [line for line in progress if 'tf_cnn_benchmarks: error' in line]
    assert len(warnings_in(done.err)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ['graph.pbtxt']


@pytest.mark.graph
def test_on_a_terminal_a_run_shows_what_it_does_and_in_the_end_its_lines_alone():
    flags = f'{SMALL_RUN} --model=lenet --gpu_pending_cap=3'
    with Terminal([*PROGRAM, *flags.split()], columns=80) as seen:
        seen.read('Importing TensorFlow\x1b[K\r')
        seen.read(until=None)
        assert seen.process.returncode == 0
    # The warning is wider than the terminal; of the live line nothing is left.
    text = '\n'.join(seen.lines)
    warning, banner, rest = text.partition('\nTensorFlow:  2.')
    check_warning(warning.replace('\n', ''), '--gpu_pending_cap=3')
    assert banner
    rule = '-' * 64
    steps = r'Step +Img/sec +total_loss\n1 +images/sec: .+\n3 +images/sec: .+\n'
    assert re.search(
        rf'\n==========\n{steps}{rule}\ntotal images/sec: \d+\.\d\d\n{rule}\nsteps: median ', rest
    ), text


# Stand-ins for the plan and the benchmark: no flag makes TensorFlow write to standard output or the
# user interrupt.
SCRIPT = """
import os, signal, sys, types
import tf_cnn_benchmarks

class BenchmarkCNN:
    def __init__(self, plan, console, argv, start_time):
        self.console = console
    def run(self):
        self.console.result('before')
        {action}
        self.console.result('after')

sys.modules['benchmark_cnn'] = types.SimpleNamespace(BenchmarkCNN=BenchmarkCNN)
planning = types.SimpleNamespace(
    make_plan=lambda params, environment: params, ServerPlan=int
)
sys.modules['tf_cnn.plan.plan'] = planning
sys.exit(tf_cnn_benchmarks.main(['--model=lenet']))
"""


def run_script(action: str, stdout: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-c', SCRIPT.format(action=action)]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60
    )


@pytest.mark.unit
def test_other_output_to_standard_output_goes_to_standard_error():
    done = run_script(
        "os.write(1, b'native\\n'); print('python', flush=True)", stdout=subprocess.PIPE
    )
    assert done.returncode == 0
    assert done.stdout == 'before\nafter\n'
    assert done.stderr.splitlines() == ['native', 'python']


@pytest.mark.unit
@pytest.mark.parametrize(
    ('flag', 'kind'), [('-v', resource.RLIMIT_AS), ('-d', resource.RLIMIT_DATA)]
)
def test_a_limit_of_the_memory_is_named_before_native_code_crashes(flag, kind, monkeypatch):
    limits = {kind: 300_000 * 1024}
    monkeypatch.setattr(
        resource, 'getrlimit', lambda number: (limits.get(number, resource.RLIM_INFINITY),) * 2
    )
    check_refusal(['--model=trivial'], f'ulimit {flag} 300000: ')
    limits[kind] = 20 << 30
    # The warning comes beside the refusal of another flag.
    warning, _ = run_main('--model=nonsense', code=2)[1].splitlines()
    check_line(warning, 'warning', f'ulimit {flag} {20 << 20}')


@pytest.mark.unit
@pytest.mark.parametrize(
    ('action', 'exit_code', 'facts'),
    [
        (
            "from tf_cnn.system.errors import RunError; raise RunError('shard 3: broken')",
            1,
            ['shard 3: broken'],
        ),
        ('raise MemoryError', 1, ['memory', 'MemoryError']),
        ("raise RuntimeError('can\\'t start new thread')", 1, ['memory', 'thread']),
        (f'os.kill(os.getpid(), {int(signal.SIGINT)})', 130, []),
        ('from tf_cnn.system.signals import Stopped; raise Stopped', 143, ['SIGTERM']),
        # As native code ends that Ctrl-C interrupts while it is imported.
        (
            "raise SystemError('initialisation failed') from KeyboardInterrupt()",
            130,
            ['interrupted'],
        ),
    ],
)
def test_a_fault_or_a_signal_ends_with_its_code_and_one_line_and_what_was_printed_stays(
    action, exit_code, facts
):
    done = run_script(action, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (exit_code, 'before\n')
    check_line(done.stderr)
    check_error(done.stderr, *facts)


@pytest.mark.unit
def test_a_closed_pipe_ends_a_run_without_a_message_and_a_full_disk_with_one():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, 'w') as closed, FULL.open('w') as full:
        done, failed = (run_script('pass', stdout=file.fileno()) for file in (closed, full))
    assert (done.returncode, done.stderr) == (1, '')
    assert failed.returncode == 1
    check_line(failed.stderr)
    check_error(failed.stderr, 'No space left on device')


@pytest.mark.unit
@pytest.mark.parametrize('closed', ['<&-', '>&-', '2>&-', '<&- >&- 2>&-'])
def test_standard_streams_may_be_closed(tmp_path, closed):
    written = tmp_path / 'written'
    action = f"file = open({str(written)!r}, 'w'); os.write(1, b'native'); os.write(2, b'native')"
    started = f'exec "$0" -c "$1" {closed}'
    command = ['sh', '-c', started, sys.executable, SCRIPT.format(action=action)]
    done = run_process(command, ROOT)
    if '>&-' in closed.split():
        # The result would be lost.
        assert (done.code, done.out) == (2, '')
        assert ('standard output' in done.err) is not ('2>&-' in closed)
        return
    assert (done.code, done.out) == (0, 'before\nafter\n'), done.err
    assert written.read_text() == ''


@pytest.mark.unit
@pytest.mark.parametrize(
    ('argv', 'stream', 'exit_code'),
    [
        ('--help', 'stdout', 1),
        ('models res* --json', 'stdout', 1),
        # Standard error changes no exit code.
        ('--model=none', 'stderr', 2),
        ('--num_batches=1 --num_warmup_batches=0 --device=cpu', 'stderr', 0),
    ],
)
def test_output_into_a_full_disk_is_one_line(argv, stream, exit_code):
    with FULL.open('w') as full:
        pipes = dict.fromkeys(['stdout', 'stderr'], subprocess.PIPE)
        streams: dict[str, Any] = pipes | {stream: full}
        done = subprocess.run([*PROGRAM, *argv.split()], **streams, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == exit_code
    if stream == 'stdout':
        check_line(done.stderr, 'tf_cnn_benchmarks: error: ', os.strerror(errno.ENOSPC))


@pytest.mark.unit
def test_a_working_directory_that_was_removed_is_named(tmp_path):
    (gone := tmp_path / 'gone').mkdir()
    command = [*PROGRAM, '--export_saved_model=model', f'--train_dir={tmp_path}']
    done = run_process(['sh', '-c', 'rmdir "$PWD" && exec "$@"', 'sh', *command], gone)
    assert done.code == 1
    check_error(done.err, 'working directory')


def _has_loaded_tensorflow(pid: int) -> bool:
    return 'libtensorflow' in Path(f'/proc/{pid}/maps').read_text()


def test_an_older_python_is_told_in_one_line_which_versions_run_the_program():
    path = ROOT / 'tf_cnn_benchmarks.py'
    ast.parse(path.read_text(encoding='utf-8'), feature_version=(3, 8))
    code = (
        f'import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_path({str(path)!r}, '
        'run_name="__main__")'
    )
    done = run_process([sys.executable, '-c', code])
    assert (done.code, done.out) == (2, '')
    check_line(done.err, 'Python 3.9', '3.11')


@pytest.mark.distributed
@pytest.mark.parametrize(
    ('number', 'argv', 'is_ready', 'fact'),
    [
        (signal.SIGTERM, 'models', catches_sigterm, 'stopped by SIGTERM'),
        (signal.SIGTERM, '--model=lenet', catches_sigterm, 'stopped by SIGTERM'),
        (signal.SIGTERM, '--model=lenet', _has_loaded_tensorflow, 'stopped by SIGTERM'),
        (signal.SIGINT, '--model=lenet', _has_loaded_tensorflow, 'interrupted'),
    ],
)
def test_a_signal_while_the_command_starts_ends_with_its_code_and_one_line(
    number, argv, is_ready, fact, tmp_path
):
    with launched(argv, tmp_path, fresh=True) as process:
        deadline = time.monotonic() + 60
        while not is_ready(process.pid):
            assert not process.has_ended(0.002)
            assert time.monotonic() < deadline
        process.send(number)
        assert process.has_ended()
    assert process.exit_code == 128 + number, process.err
    assert 'Traceback' not in process.err
    check_error(process.err, fact)
