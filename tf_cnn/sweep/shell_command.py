"""Measures a command of any program, for `compare --command`."""

import contextlib
import functools
import json
import math
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tf_cnn.machine.meters import NoiseMeter
from tf_cnn.machine.run_environment import describe_machine, library_variables
from tf_cnn.results.advice import find_warnings
from tf_cnn.results.document import SCHEMA_VERSION, CommandResult
from tf_cnn.sweep.runner import RepeatedCommand, make_failure
from tf_cnn.system.documents import as_json
from tf_cnn.system.errors import UsageError, format_flag
from tf_cnn.system.limited_process import ProcessExit, run_process

_UNKNOWN_THREADS = {'intra_op': None, 'inter_op': None}


def _measure(
    flags: Mapping[str, str], log: Path, result_file: Path, timeout_secs: float | None
) -> ProcessExit:
    """Runs the command of the flags once; writes its result unless it fails."""
    # The software and the threads of the command are unknown.
    machine: Any = describe_machine() | {'versions': {}, 'threads': _UNKNOWN_THREADS}
    started_at, meter = datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%SZ'), NoiseMeter()
    meter.start()
    process_exit = run_process(['/bin/sh', '-c', flags['command']], log, timeout_secs)
    noise: Any = meter.stop()
    if process_exit.reason:
        return process_exit
    rate = None
    if pattern := flags.get('rate'):
        output = log.read_text(encoding='utf-8', errors='replace')
        last_match = re.findall(pattern, output, re.MULTILINE)[-1:]
        with contextlib.suppress(ValueError):
            rate = float(*last_match)
        if not rate or not 0 < rate < math.inf:
            reason = (
                f'{format_flag("rate", pattern)}: no number above 0 in the output; last match: '
                f'{last_match or "nothing matches"!s:.60}'
            )
            return replace(process_exit, reason=reason)
    result = CommandResult(
        schema_version=SCHEMA_VERSION,
        id=uuid.uuid4().hex,
        flags=flags,
        started_at=started_at,
        seconds=process_exit.seconds,
        rate=rate,
        machine=machine,
        environment=library_variables(os.environ),
        noise=noise,
    )
    result.warnings = find_warnings(result)
    result_file.write_text(json.dumps(as_json(result)), encoding='utf-8')
    return process_exit


def make_shell_command(name: str, text: str, pattern: str | None) -> RepeatedCommand:
    """Returns a command of any program. The last match of the pattern's group in its output is its
    rate; without a pattern its wall time counts.
    """
    flags = {'command': text} | ({'rate': pattern} if pattern else {})
    flag_texts = {flag: format_flag(flag, value) for flag, value in flags.items()}
    argv = [*flag_texts.values()]
    failure = make_failure(argv, flag_texts, CommandResult.shape)
    return RepeatedCommand(name, name, argv, failure, measure=functools.partial(_measure, flags))


def check_pattern(text: str) -> None:
    """Raises UsageError unless --rate can find a number."""
    reason = 'it has more or less than one group, or matches every output'
    try:
        pattern = re.compile(text, re.MULTILINE)
        if pattern.groups == 1 and not pattern.search(''):
            return
    except re.error as error:
        reason = f'it is not a regular expression ({error})'
    raise UsageError(
        f'{format_flag("rate", text)}: {reason}; use one such as ' r"'images/sec: (\S+)'"
    )
