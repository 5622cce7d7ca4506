"""The flags of the subcommand sweep."""

from dataclasses import dataclass

from tf_cnn.flags.spec import flag
from tf_cnn.sweep.request import SweepSettings


@dataclass(frozen=True)
class SweepOptions(SweepSettings):
    """The flags of the subcommand. A sweep file may have the flags of SweepSettings, too."""

    grid: tuple[str, ...] = flag(
        (),
        'FLAG=VALUE,VALUE...: a flag of a run, or shape, and the values to compare, instead of a '
        'FILE. Use it once for each flag; sweep measures all combinations.',
    )
    output: str | None = flag(
        None,
        'New folder for the plan, results, logs and table; by default sweep-NAME-TIME in the '
        'current folder.',
        is_path=True,
    )
    resume: bool = flag(False, 'Continue an interrupted sweep: FILE is its folder.')
    dry_run: bool = flag(False, 'List the configurations and their commands; run nothing.')
