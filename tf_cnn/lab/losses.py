"""Whether equal machines compute equal losses, bit for bit, in runs with --deterministic.

A processor or GPU that computes wrong may be as fast as the others. Does not import TensorFlow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from tf_cnn.lab.rows import Against, Row, settings_with_references
from tf_cnn.lab.runs import equality_key, find_varying_names, group, non_default_settings
from tf_cnn.results.document import Result
from tf_cnn.results.tables import abbreviate

# The start of the remark of a row with other losses.
WRONG = 'computes '
# What decides how a machine adds.
_HARDWARE = ('cpu_model', 'cpu_features', 'num_cores', 'threads', 'versions')


def same_losses(hold: Against) -> Against:
    """Adds to another function which rows computed other losses than most rows of equal settings,
    hardware and versions, or different ones from run to run.
    """

    def hold_losses(rows: Sequence[Row]) -> Iterator[Row]:
        remarks = {
            key: text
            for peers in group(filter(_results, rows), _kind)
            for key, text in _differences(peers)
        }
        for row in hold(rows):
            remark = remarks.pop(id(row.runs), row.remark)
            yield replace(row, remark=remark)
        # A reference, which is no row of its own.
        yield from (
            replace(row, remark=remarks[id(row.runs)]) for row in rows if id(row.runs) in remarks
        )

    return hold_losses


def is_wrong(row: Row) -> bool:
    return row.remark.startswith(WRONG)


def describe_wrong(rows: Sequence[Row]) -> list[str]:
    return [f'{row.name} {row.remark}' for row in rows if is_wrong(row)]


def describe_losses(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Returns a clause for each group of rows that agree, and if there is none, for each group of
    equal settings that were not compared.
    """
    settings = [
        row for row in settings_with_references(rows) if _results(row) and not is_wrong(row)
    ]
    agree = [
        f'the losses of {abbreviate([row.name for row in peers])} agree bit for bit'
        for peers in group(settings, _kind)
        if len(peers) > 1
    ]
    return agree, [] if agree else [
        f'losses were not compared, since these differ: {", ".join(names)}'
        for peers in group(settings, _setting)
        if (names := find_varying_names([*map(_machines, peers)]))
    ]


def _results(row: Row) -> list[Result]:
    """Returns the runs with losses that repeat; --exchange_only computes none."""
    return [
        run
        for run in row.results
        if run.flags.get('deterministic') and run.workers
        if any(loss is not None for loss in run.steps.loss)
    ]


def _setting(row: Row) -> str:
    run = _results(row)[0]
    # Trainings that go on from different steps have no loss in common.
    return equality_key([run.workload, non_default_settings(run), [*run.steps.global_step[:1]]])


def _machines(row: Row) -> dict[str, Any]:
    """Returns what decides how the machines of a run add."""
    run = _results(row)[0]
    machines = [worker.machine or run.machine for worker in run.workers]
    return {
        **{name: [machine.get(name) for machine in machines] for name in _HARDWARE},
        'gpus': [[gpu.get('name') for gpu in machine.get('gpus') or ()] for machine in machines],
        'program': [run.program.version, run.program.git_commit],
        'environment': run.environment,
        'onednn': run.run.onednn,
    }


def _kind(row: Row) -> str:
    """Returns a text that is equal for rows that must compute equal losses."""
    return equality_key([_setting(row), _machines(row)])


def _differences(peers: Sequence[Row]) -> Iterator[tuple[int, str]]:
    """Yields the key and the remark of each row that differs from itself or from most others."""
    classes: list[list[Row]] = []
    for row in peers:
        first, *others = _results(row)
        steps = [step for other in others if (step := _first_difference(first, other))]
        if steps:
            text = f'{WRONG}different losses from run to run, from step {min(steps)} on'
            yield id(row.runs), text
            continue
        equal = (each for each in classes if not _first_difference(_results(each[0])[0], first))
        if (same := next(equal, None)) is not None:
            same.append(row)
        else:
            classes.append([row])
    # Of two, the second one; its remark names both.
    common, *rest = sorted(classes, key=len, reverse=True) or [[]]
    for row in chain(*rest):
        step = _first_difference(_results(common[0])[0], _results(row)[0])
        who = common[0].name if len(common) == 1 else f'{len(common)} others'
        yield id(row.runs), f'{WRONG}other losses than {who}, from step {step} on'


def _first_difference(one: Result, other: Result) -> int | None:
    """Returns the first step, by its number since the training began, with another loss."""
    steps = []
    for before, after in zip(one.workers, other.workers, strict=False):
        losses = dict(zip(before.steps.global_step, before.steps.loss, strict=True))
        steps += [
            step
            for step, loss in zip(after.steps.global_step, after.steps.loss, strict=True)
            if loss != losses.get(step, loss)
        ]
    return min(steps, default=None)
