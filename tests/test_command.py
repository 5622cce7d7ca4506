"""The command as users start it: answers without TensorFlow, exit codes and standard streams."""

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

from tests.support.files import quoted
from tests.support.outputs import check_error, check_line, check_warning, read_output, warnings_in
from tests.support.programs import (
    PROGRAM,
    ROOT,
    Finished,
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
def test_commands_without_a_run_import_no_tensorflow_and_change_no_variables():
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
@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        (['record'], ['record', 'records']),
        (['64'], ['64', '--model=resnet50', 'cluster', 'models', 'records']),
        (['--batch\r\nsize=3'], ['batch']),
        # With an ignored flag.
        (['--gpu_pending_cap=3', '--data_dir=/no/such'], ['--data_dir=/no/such']),
        (['records', '--check=/no\x1b[2Jsuch'], ['--check=']),
    ],
)
def test_wrong_use_ends_with_code_2_and_one_line(argv, facts):
    check_refusal(argv, *facts)


@pytest.mark.unit
def test_the_version_is_one_line():
    version, *again = (run_main(word)[0] for word in ('--version', '-V', 'version'))
    facts = r'(commit [0-9a-f]{12}(-dirty)?, )?TensorFlow 2\.\S+, Python 3\.\S+'
    assert re.fullmatch(rf'tf_cnn_benchmarks \d+\.\d+\.\d+ \({facts}\)\n', version)
    assert again == [version, version]


@pytest.mark.graph
def test_only_check_args_ends_before_the_run(tmp_path):
    flags = [*SMALL_RUN.split(), '--only_check_args', f'--result_file={tmp_path}/r.json']
    out, err = run_main(*flags, '--momentum=0.5', '--repeat=2')
    assert (out, [*tmp_path.iterdir()]) == ('', [])
    check_warning(err, '--momentum=0.5')
    check_error(run_main(*flags, '--num_gpus=0', '--device=gpu', code=2)[1], '--num_gpus=0')


@pytest.mark.distributed
@pytest.mark.parametrize(('flags', 'shown'), [('', 1), ('-v=0', 2), ('--verbosity=-2', 0)])
def test_verbosity_is_the_level_of_absls_messages(flags, shown, tmp_path):
    path = tmp_path / 'logs.py'
    path.write_text(
        'from absl import logging\nlogging.info("absl says")\nlogging.warning("absl says")\n'
    )
    process = run(f'{SMALL_RUN} --model_file={quoted(path)} {flags}')
    # The file registers no model.
    assert (process.code, process.err.count('absl says')) == (2, shown), process.err
    assert 'before flag parsing' not in process.err


@pytest.mark.surroundings
@pytest.mark.graph
def test_a_run_prints_results_alone_on_standard_output(tmp_path):
    files = '--flush_stdout=true --graph_file=graph.pbtxt'
    process = run(f'{SMALL_RUN} --display_every=2 {files}', tmp_path, fresh=True)
    assert process.code == 0, process.err
    assert read_output(process.out).steps
    # TensorFlow's own notices are hidden.
    warning, default, *progress = process.err.splitlines()
    check_warning(warning, '--flush_stdout=True')
    check_line(default, '--model=trivial', 'not a real network', '--model=resnet50')
    assert progress[:2] == ['Building the graph', 'Initialising the variables']
    assert not [line for line in progress if 'tf_cnn_benchmarks: error' in line]
    assert len(warnings_in(process.err)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ['graph.pbtxt']


@pytest.mark.graph
def test_a_run_on_a_terminal_shows_a_live_line_that_disappears():
    flags = f'{SMALL_RUN} --model=lenet --gpu_pending_cap=3'
    with Terminal([*PROGRAM, *flags.split()], columns=80) as terminal:
        terminal.read('Importing TensorFlow\x1b[K\r')
        terminal.read(until=None)
        assert terminal.process.returncode == 0
    # The warning is wider than the terminal, and the live line has disappeared.
    text = '\n'.join(terminal.lines)
    warning, banner, rest = text.partition('\nTensorFlow:  2.')
    check_warning(warning.replace('\n', ''), '--gpu_pending_cap=3')
    assert banner
    rule = '-' * 64
    steps = r'Step +Img/sec +total_loss\n1 +images/sec: .+\n3 +images/sec: .+\n'
    assert re.search(
        rf'\n==========\nRunning warm up\nDone warm up\n{steps}{rule}\n'
        rf'total images/sec: \d+\.\d\d\n{rule}\nsteps: median ',
        rest,
    ), text


# Stand-ins for the plan and the benchmark: no flag makes TensorFlow write to standard output, or a
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
# A fork has imported it with the real plan.
sys.modules.pop('tf_cnn.cli.benchmark', None)
sys.exit(tf_cnn_benchmarks.main(['--model=lenet']))
"""


def run_script(action: str, **streams: Any) -> subprocess.CompletedProcess[str]:
    """Runs the stand-ins in a new process with these standard streams; the others are pipes."""
    command = [sys.executable, '-c', SCRIPT.format(action=action)]
    pipes = dict.fromkeys(['stdout', 'stderr'], subprocess.PIPE)
    return subprocess.run(command, **(pipes | streams), text=True, cwd=ROOT, timeout=60)


def fork_script(action: str, folder: Path) -> Finished:
    """Runs the stand-ins in a fork."""
    script = folder / 'script.py'
    script.write_text(SCRIPT.format(action=action))
    with launched([sys.executable, str(script)], folder) as process:
        assert process.has_ended()
    return Finished(process.exit_code or 0, process.out, process.err)


@pytest.mark.distributed
def test_other_output_to_standard_output_goes_to_standard_error(tmp_path):
    process = fork_script("os.write(1, b'native\\n'); print('python', flush=True)", tmp_path)
    assert (process.code, process.out) == (0, 'before\nafter\n')
    assert process.err.splitlines() == ['native', 'python']


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
    # The warning comes with the refusal of another flag.
    warning, _ = run_main('--model=nonsense', code=2)[1].splitlines()
    check_line(warning, 'warning', f'ulimit {flag} {20 << 20}')


@pytest.mark.distributed
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
        # Native code ends so if Ctrl-C interrupts its import.
        (
            "raise SystemError('initialisation failed') from KeyboardInterrupt()",
            130,
            ['interrupted'],
        ),
    ],
)
def test_a_fault_or_a_signal_ends_with_its_code_and_one_line_after_the_earlier_output(
    action, exit_code, facts, tmp_path
):
    process = fork_script(action, tmp_path)
    assert (process.code, process.out) == (exit_code, 'before\n')
    check_line(process.err)
    check_error(process.err, *facts)


@pytest.mark.unit
def test_a_closed_pipe_ends_a_run_without_a_message_and_a_full_disk_with_one():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, 'w') as closed, FULL.open('w') as full:
        on_pipe, on_disk = (run_script('pass', stdout=file) for file in (closed, full))
    assert (on_pipe.returncode, on_pipe.stderr) == (1, '')
    assert on_disk.returncode == 1
    check_line(on_disk.stderr)
    check_error(on_disk.stderr, 'No space left on device')


@pytest.mark.unit
@pytest.mark.parametrize('closed', ['<&-', '>&-', '2>&-', '<&- >&- 2>&-'])
def test_standard_streams_may_be_closed(tmp_path, closed):
    written = tmp_path / 'written'
    action = f"file = open({str(written)!r}, 'w'); os.write(1, b'native'); os.write(2, b'native')"
    shell_line = f'exec "$0" -c "$1" {closed}'
    command = ['sh', '-c', shell_line, sys.executable, SCRIPT.format(action=action)]
    process = run_process(command, ROOT)
    if '>&-' in closed.split():
        # The result would be lost.
        assert (process.code, process.out) == (2, '')
        assert ('standard output' in process.err) is not ('2>&-' in closed)
        return
    assert (process.code, process.out) == (0, 'before\nafter\n'), process.err
    assert written.read_text() == ''


@pytest.mark.unit
@pytest.mark.parametrize(
    ('argv', 'stream', 'exit_code'),
    [
        ('--help', 'stdout', 1),
        ('models res* --json', 'stdout', 1),
        # A full disk for standard error changes no exit code.
        ('--model=none', 'stderr', 2),
    ],
)
def test_output_into_a_full_disk_is_one_line(argv, stream, exit_code):
    with FULL.open('w') as full:
        pipes = dict.fromkeys(['stdout', 'stderr'], subprocess.PIPE)
        streams: dict[str, Any] = pipes | {stream: full}
        process = subprocess.run(
            [*PROGRAM, *argv.split()], **streams, text=True, timeout=60, cwd=ROOT
        )
    assert process.returncode == exit_code
    if stream == 'stdout':
        check_line(process.stderr, 'tf_cnn_benchmarks: error: ', os.strerror(errno.ENOSPC))


@pytest.mark.unit
def test_a_run_goes_on_if_standard_error_is_on_a_full_disk():
    with FULL.open('w') as full:
        process = run_script("self.console.note('a note')", stderr=full)
    assert (process.returncode, process.stdout) == (0, 'before\nafter\n')


@pytest.mark.unit
def test_a_removed_working_directory_is_named(tmp_path):
    (folder := tmp_path / 'folder').mkdir()
    command = [*PROGRAM, '--backbone_model_path=model', f'--train_dir={tmp_path}']
    process = run_process(['sh', '-c', 'rmdir "$PWD" && exec "$@"', 'sh', *command], folder)
    assert process.code == 1
    check_error(process.err, 'working directory')


def _has_loaded_tensorflow(pid: int) -> bool:
    return 'libtensorflow' in Path(f'/proc/{pid}/maps').read_text()


def test_an_older_python_gets_one_line_with_the_supported_versions():
    path = ROOT / 'tf_cnn_benchmarks.py'
    ast.parse(path.read_text(encoding='utf-8'), feature_version=(3, 8))
    code = (
        f'import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_path({str(path)!r}, '
        'run_name="__main__")'
    )
    process = run_process([sys.executable, '-c', code])
    assert (process.code, process.out) == (2, '')
    check_line(process.err, 'Python 3.9', '3.11')


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
