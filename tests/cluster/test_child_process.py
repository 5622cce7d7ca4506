"""A child process whose output is read by threads."""

import subprocess
import time

from cluster.child_process import ChildProcess


def test_all_lines_are_there_although_the_process_has_ended_and_their_reader_is_slow() -> None:
    lines: list[str] = []

    def read_slowly(line: str) -> None:
        time.sleep(0.1)
        lines.append(line)

    words = ['sh', '-c', 'exec >&-; printf "a\\nb\\nc\\n" >&2; exit 3']
    with ChildProcess(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.read_lines(print, read_slowly)
        child.wait()
        assert len(lines) < 3
        child.await_last_lines()
        assert (lines, child.exit_code()) == (['a', 'b', 'c'], 3)
