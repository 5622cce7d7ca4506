"""The live line on real pseudo-terminals: it shows while a run goes on, and leaves nothing
behind.
"""

import os
import pty
import sys

import pytest

from tests.support.programs import ROOT, Terminal, run_process
from tf_cnn.results.live import LiveLine

pytestmark = pytest.mark.unit

PREAMBLE = """
import os, signal, sys, time
from tf_cnn.system.signals import SIGNALS
from tf_cnn.results.console import Console, format_total
console = Console(sys.stdout, sys.stderr)
"""


def command(code: str) -> list[str]:
    return [sys.executable, '-c', PREAMBLE + code]


def lines_on_screen(terminal: Terminal) -> list[str]:
    """The lines on the screen; tabs are spaces there."""
    assert terminal.screen.cursor.x == 0
    assert not terminal.screen.cursor.hidden
    return terminal.lines


def test_a_run_leaves_its_lines_whole_and_nothing_of_the_live_line():
    code = """
console.progress('Building the graph'); input()
console.result('==========')
console.steps('step', 56, 100); console.steps('step', 57, 100, '812.3 +/- 4.1 images/sec'); input()
console.warning('odd')
console.result('1\\timages/sec: 812.3'); console.note('Continuing from model.ckpt-7')
console.result(format_total(812.3)); input()
console.close()
"""
    with Terminal(command(code)) as terminal:
        terminal.read('Building the graph')
        assert lines_on_screen(terminal) == ['Building the graph']
        terminal.type('\n')
        terminal.read(' left')
        assert lines_on_screen(terminal)[0] == '=========='
        assert lines_on_screen(terminal)[1].startswith(
            'step 57 of 100, 812.3 +/- 4.1 images/sec, 0:00:0'
        )
        terminal.type('\n')
        # After the last of three drawings the live line is below the printed lines.
        terminal.read('total images/sec')
        terminal.read(' left\x1b[K\r')
        assert lines_on_screen(terminal)[-1].startswith('step 57 of 100')
        terminal.type('\n')
        terminal.read(until=None)
        rule = '-' * 64
        assert lines_on_screen(terminal) == [
            '==========',
            'tf_cnn_benchmarks: warning: odd',
            '1       images/sec: 812.3',
            'Continuing from model.ckpt-7',
            rule,
            'total images/sec: 812.30',
            rule,
        ]


@pytest.mark.parametrize(('columns', 'text'), [(20, 'Evaluating ' * 20), (9, 'a\nb\x1b[5mc')])
def test_progress_is_one_line_even_in_a_narrow_terminal_or_with_line_breaks(columns, text):
    code = command(f'console.progress({text!r}); input()')
    with Terminal(code, columns=columns) as terminal:
        terminal.read('\x1b[K\r')
        (line,) = lines_on_screen(terminal)
        assert text.replace('\n', ' ').replace('\x1b', ' ').startswith(line)
        assert line


@pytest.mark.parametrize(
    ('end', 'exit_code', 'last'),
    [
        ("raise ValueError('why')", 1, 'ValueError: why'),
        # A signal that comes just before a long sleep begins would not end it.
        ("console.result('waiting')\nwhile True: time.sleep(0.1)", -2, 'KeyboardInterrupt'),
        (
            'with SIGNALS.storing(): signal.raise_signal(signal.SIGTERM)',
            1,
            'tf_cnn.system.signals.Stopped: 15',
        ),
    ],
    ids=['error', 'Ctrl-C', 'SIGTERM'],
)
def test_nothing_is_left_however_a_process_ends(end, exit_code, last):
    code = f"console.progress('Building'); input(); console.result('ending'); input()\n{end}"
    with Terminal(command(code)) as terminal:
        terminal.read('Building')
        terminal.type('\n')
        # It is drawn again below the other line.
        terminal.read('ending\r\n')
        terminal.read('Building\x1b[K\r')
        terminal.type('\n')
        if 'waiting' in end:
            # Ctrl-C removes a line that the process has not read yet.
            terminal.read('waiting')
            terminal.type('\x03')
        terminal.read(until=None)
        assert terminal.process.returncode == exit_code
        lines = lines_on_screen(terminal)
        assert (lines[0], lines[-1]) == ('ending', last)
        assert not [line for line in lines if 'Building' in line and not line.startswith(' ')]


def test_a_process_in_the_background_does_not_draw():
    code = """
if os.fork():
    os.wait()
else:
    os.setpgid(0, 0)
    console.progress('Building')
    # The first drawing is over.
    console.close()
    console.result('done')
"""
    with Terminal(command(code)) as terminal:
        terminal.read(until=None)
        assert terminal.written == b'done\r\n'


def test_without_control_sequences_progress_is_lines():
    code = (
        "console.progress('Building'); console.phase('a'); console.steps('b', 1, 2); "
        "console.result('c')"
    )
    with Terminal(command(code), TERM='dumb') as terminal:
        terminal.read(until=None)
        assert terminal.written == b'Building\r\nc\r\n'
    assert run_process(command(code), ROOT) == (0, 'c\n', 'Building\n')


def test_the_steps_so_far_give_the_time_left(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    now = 0.0
    controller, screen = pty.openpty()
    with open(screen, 'w') as stream:
        line = LiveLine(stream, clock=lambda: now)
        line.steps('warm-up step', 1, 10)
        assert line.text == 'warm-up step 1 of 10'
        now = 100.0
        line.steps('step', 10, 100)
        assert line.text == 'step 10 of 100'
        now = 120.0
        line.steps('step', 20, 100, '5.0 images/sec')
        assert line.text == 'step 20 of 100, 5.0 images/sec, 0:02:40 left'
        # A new run.
        line.steps('step', 1, 100)
        assert line.text == 'step 1 of 100'
        line.close()
        assert line.text == ''
    os.close(controller)


def test_a_closed_terminal_is_no_error(monkeypatch):
    monkeypatch.setenv('TERM', 'xterm')
    controller, screen = pty.openpty()
    with open(screen, 'w') as stream:
        line = LiveLine(stream)
        os.close(controller)
        line.phase('Building')
        with line.hidden():
            pass
        line.close()
