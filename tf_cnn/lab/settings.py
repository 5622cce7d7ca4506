"""The settings of a run: the values of its flags that make it comparable with another run. Does not
import TensorFlow.
"""

from typing import Any

from tf_cnn.lab.original_logs import Run
from tf_cnn.plan.params import SPECS
from tf_cnn.results.document import CommandResult, Result


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the shape, and the values of flags that affect a step or the time between steps: of
    given flags what the run used, of others the default.

    A flag that names an output has the value True if the run wrote there, else False. A few flags,
    such as --batch_size, always have the value that the run used.
    """
    settings: dict[str, Any] = {} if isinstance(run, CommandResult) else {'shape': run.shape}
    flags = run.command.flags if isinstance(run, Result) else run.flags
    for name, value in flags.items():
        if not is_setting(name):
            continue
        if name not in SPECS:
            settings[name] = value
        elif name not in run.given_flags:
            settings[name] = default_setting(name)
        else:
            settings[name] = value is not None if SPECS[name].output else value
    return settings | _resolved_settings(run)


def environment_of(run: Run) -> dict[str, Any]:
    """Returns the environment variables of a run that no given flag sets."""
    set_by_flags = {SPECS[name].target for name in run.given_flags if name in SPECS}
    return {
        name: value for name, value in (run.environment or {}).items() if name not in set_by_flags
    }


def non_default_settings(run: Run) -> tuple[tuple[str, Any], ...]:
    """Returns the settings that are not defaults, sorted by name. Runs with equal ones have one
    configuration.

    Defaults are left out, so that a new flag does not separate older results from newer ones.
    """
    resolved = {'shape', *_resolved_settings(run)}
    return tuple(
        (name, value)
        for name, value in sorted(settings_of(run).items())
        if name in resolved
        or (value != default_setting(name) if name in SPECS else name in run.given_flags)
    )


def is_setting(name: str) -> bool:
    """Whether a flag's value is part of the setting of a run."""
    return name not in SPECS or SPECS[name].setting


def default_setting(name: str) -> Any:
    """Returns the value of an omitted flag in settings_of."""
    return False if SPECS[name].output else SPECS[name].default


def _resolved_settings(run: Run) -> dict[str, Any]:
    # Records whether TF32 was used, not whether the flag allowed it, and a file's content, not its
    # path.
    names = (
        'tf32',
        'model_file_sha256',
        'variable_mgr_file_sha256',
        *(name for name, spec in SPECS.items() if spec.in_run_section),
    )
    if isinstance(run, Result):
        values = {name: getattr(run.run, name, None) for name in names} | {'model': run.model.name}
    else:
        values = {name: run.flags.get(name) for name in (*names, 'model')}
    return {name: value for name, value in values.items() if value is not None}
