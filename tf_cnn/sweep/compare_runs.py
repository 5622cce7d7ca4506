"""Measures two runs or commands in turns, for `compare --run A --command B`."""

import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.environments import environment_for_runs
from tf_cnn.compare import changes
from tf_cnn.compare.config import CompareOptions
from tf_cnn.compare.run_sets import RunSet, make_run_set
from tf_cnn.lab.folder import Folder
from tf_cnn.plan.params import SPECS, Params
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.plan.plan import check_launch
from tf_cnn.results.document import AnyResult
from tf_cnn.sweep.runner import (
    InterleavedRuns,
    RepeatedCommand,
    Runner,
    command_of_flags,
    describe_outcome,
    succeeded,
)
from tf_cnn.sweep.shell_command import check_pattern, make_shell_command
from tf_cnn.system.errors import RunError, UsageError, format_flag, plural, warn
from tf_cnn.system.signals import SIGNALS


def _read_run_flags(text: str) -> tuple[list[str], Params]:
    """Returns the words and the settings of a --run; raises UsageError if they are not usable."""
    try:
        argv = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f'{format_flag("run", text)}: it is not a command line ({error}); close its quotes'
        ) from None
    params = parse_argv(argv).params
    forbidden_flags = [
        name
        for name in params.given_flags
        if name == 'repeat' or name in ROLE_FLAGS or SPECS[name].output
    ]
    if forbidden_flags:
        raise UsageError(
            f'{params.given_flags[forbidden_flags[0]]}: --run cannot have flags of '
            'clusters, repeats and output files; remove it, and use --output for the results and '
            '--rounds for the number of runs'
        )
    check_launch(params, is_single_process=True)
    return argv, params


def _check_same_work(params: Sequence[Params]) -> None:
    """Raises UsageError if the flags alone say that the runs do different work. Other differences
    are found when both have run.
    """
    for name, (before, after) in {
        'model': [each.run.model for each in params],
        'role': [each.role.value for each in params],
    }.items():
        if before != after:
            raise UsageError(
                f'--run: A and B measure different work: {name} {before} and {after}; compare runs '
                'of the same work, or use --force'
            )


def _make_commands(options: CompareOptions, flag_texts: Sequence[str]) -> list[RepeatedCommand]:
    """Raises UsageError if they are not two usable commands that can be compared."""
    if len(flag_texts) != 2:
        raise UsageError(
            f'{flag_texts[0]}: --run and --command appear {plural(len(flag_texts), "time")}; use '
            'them twice, for A and B'
        )
    if options.rate:
        check_pattern(options.rate)
    elif options.run and options.command:
        raise UsageError(
            f'{flag_texts[1]}: it has a wall time, and --run a rate; use --rate for its rate, or '
            'two commands'
        )
    flags = [_read_run_flags(text) for text in options.run]
    if len(flags) == 2 and not options.force:
        _check_same_work([params for _, params in flags])
    # A folder of results for each of them.
    names = iter(('a/a', 'b/b'))
    return [
        *(command_of_flags(next(names), argv) for argv, _ in flags),
        *(make_shell_command(next(names), text, options.rate) for text in options.command),
    ]


def measure_in_turns(options: CompareOptions) -> list[RunSet]:
    """Returns the results of both commands. Prints the ratio so far after each round."""
    flag_texts = [format_flag('run', text) for text in options.run]
    flag_texts += [format_flag('command', text) for text in options.command]
    commands = _make_commands(options, flag_texts)
    runner = Runner(
        environment=environment_for_runs(os.environ, 'compare', warn),
        timeout_secs=options.timeout_secs,
    )
    folder = Folder(Path(options.output or tempfile.mkdtemp(prefix='tf_cnn_compare-')))
    folder.create_or_resume({command.name: command.argv for command in commands})
    interleaved_runs = InterleavedRuns(commands, options.rounds, folder, runner)
    texts = (*options.run, *options.command)
    names = [f'{letter}: {text}' for letter, text in zip('AB', texts, strict=True)]

    def make_sides() -> list[RunSet]:
        results = [
            [run for run in runs if isinstance(run, AnyResult)]
            for runs in interleaved_runs.outcomes.values()
        ]
        return [make_run_set(name, runs) for name, runs in zip(names, results, strict=True)]

    try:
        with SIGNALS.storing(), folder.locked():
            for finished_run in interleaved_runs.run():
                first, second = interleaved_runs.outcomes.values()
                if not succeeded(finished_run.outcome):
                    break
                if len(first) != len(second):
                    continue
                ratio = changes.make_rows(make_sides(), force=options.force)[1].ratio
                rates = f'A {describe_outcome(first[-1])}, B {describe_outcome(second[-1])}'
                so_far = changes.format_ratio(ratio) if ratio else 'nothing to compare'
                print(
                    f'round {finished_run.round_number}: {rates}; so far {so_far}',
                    file=sys.stderr,
                    flush=True,
                )
    finally:
        print(f'The results and logs are in {folder.path}', file=sys.stderr)
    for text, runs in zip(flag_texts, interleaved_runs.outcomes.values(), strict=True):
        if failed := next((run for run in runs if not succeeded(run)), None):
            again = f'; to try this run again, delete {failed.source}' if options.output else ''
            raise RunError(f'{text}: {failed.reason}{again}')
    return make_sides()
