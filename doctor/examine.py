"""Chooses the checks that apply to this machine, and runs them."""

import fnmatch
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from doctor.check_runner import run_checks
from doctor.check_table import ARCHITECTURE, CHECKS, DEVICES, Check, Needs
from doctor.verdicts import NO_GPU, Finding, Outcome, skipped
from hardware.gpus import has_nvidia_gpu

# The driver needs half an hour, on one core, to compile all kernels. The shortest limit of a check that uses a GPU is
# one minute; most have two to five.
_PATIENCE = 8.0


def matching(pattern: str | None, *, with_long: bool) -> list[Check]:
    """Returns the checks whose names match one of the patterns, in the order of the table.

    Args:
      pattern: shell wildcards, separated by commas. A family ('host') stands for all checks in it, None for all checks.
      with_long: whether to include checks that take long.
    """
    words = _words(pattern)
    return [check for check in CHECKS if _fits(check, words) and (with_long or not check.is_long)]


def unknown_names(pattern: str | None) -> list[str]:
    """Returns the patterns that match no check at all."""
    return [word for word in _words(pattern) if not any(_fits(check, [word]) for check in CHECKS)]


def _words(pattern: str | None) -> list[str]:
    return [word.strip() for word in ('*' if pattern is None else pattern).split(',')]


def _fits(check: Check, words: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(check.name, word) or fnmatch.fnmatchcase(check.name, f'{word.rstrip("/")}/*')
        for word in words
    )


def examine(
    checks: Sequence[Check],
    device: str | None = None,
    time_limit: float = 1.0,
    show: Callable[[str, str], None] = lambda name, doing: None,
) -> Iterator[Finding]:
    """Runs the checks that apply, and yields the finding of each; for the others, why they do not apply.

    On a machine with GPUs, it always runs the check of TensorFlow's devices, since the others depend on it.

    Args:
      checks: the checks, in the order of the table.
      device: what computes, cpu or gpu; None for gpu where there is one.
      time_limit: as for run_checks.
      show: as for run_checks.

    Raises:
      RunError: no process can be started.
    """
    run = functools.partial(run_checks, hides_gpus=device == 'cpu', time_limit=time_limit, show=show)
    num_gpus, waiting = 0, list(checks)
    if device == 'gpu' or (device is None and has_nvidia_gpu()):
        names = {check.name for check in checks} | {DEVICES}
        in_order = [check for check in CHECKS if check.name in names]
        count = next(index for index, check in enumerate(in_order) if check.name == DEVICES)
        asks_devices = replace(in_order[count], arguments={'expects_gpu': device == 'gpu'})
        yield from _skipped(in_order[:count], device, num_gpus)
        yield from run(_applying(in_order[:count], device, num_gpus))
        run = functools.partial(run, patience=patience(time_limit, show))
        (finding,) = run([asks_devices])
        yield finding
        num_gpus, waiting = finding.verdict.figures.get('num_gpus', 0), in_order[count + 1 :]
    yield from _skipped(waiting, device, num_gpus)
    yield from run(_applying(waiting, device, num_gpus), num_gpus)


def patience(time_limit: float = 1.0, show: Callable[[str, str], None] = lambda name, doing: None) -> float:
    """Returns the factor of all time limits for these GPUs: large if the driver must compile kernels for one of them.

    Any check may be the first to use a kernel. A check in a process of its own finds this out, since this process must
    not wait for a driver.

    Args:
      time_limit: as for run_checks.
      show: as for run_checks.
    """
    asks_driver = next(check for check in CHECKS if check.name == ARCHITECTURE)
    (finding,) = run_checks([asks_driver], time_limit=time_limit, show=show)
    return _PATIENCE if finding.verdict.outcome is Outcome.WARNING else 1.0


def _applying(checks: Sequence[Check], device: str | None, num_gpus: int) -> list[Check]:
    return [check for check in checks if why_not(check.needs, device, num_gpus) is None]


def _skipped(checks: Sequence[Check], device: str | None, num_gpus: int) -> Iterator[Finding]:
    for check in checks:
        if why := why_not(check.needs, device, num_gpus):
            yield Finding(check.name, check.asks, skipped(why))


def why_not(needs: Needs, device: str | None, num_gpus: int) -> str | None:
    """Returns why a check that needs this does not apply; None if it does.

    Args:
      needs: what the check needs.
      device: what computes, cpu or gpu; None for gpu where there is one.
      num_gpus: how many GPUs TensorFlow sees.
    """
    if needs is Needs.NOTHING:
        return None
    if needs is Needs.CPU:
        return 'the GPUs compute here; doctor --device=cpu checks the CPU' if num_gpus else None
    if device == 'cpu':
        return '--device=cpu'
    if needs is Needs.DRIVER and not has_nvidia_gpu():
        return NO_GPU if not has_nvidia_gpu({}) else 'CUDA_VISIBLE_DEVICES hides the GPUs'
    if needs in (Needs.GPU, Needs.TWO_GPUS) and not num_gpus:
        return 'TensorFlow sees no GPU'
    if needs is Needs.TWO_GPUS and num_gpus < 2:
        return 'TensorFlow sees one GPU only'
    return None
