"""The flags of the subcommand doctor."""

from dataclasses import dataclass

from tf_cnn.doctor.check_process import FAMILIES
from tf_cnn.flags.spec import flag


@dataclass(frozen=True)
class DoctorOptions:
    only: str | None = flag(
        None,
        'The families of checks to run, separated by commas. By default all: '
        f'{", ".join(FAMILIES)}.',
    )
    json: bool = flag(
        False,
        'Print a JSON document for a bug report, with all findings and the last output lines of '
        'failed checks; the lines for people then go to standard error.',
    )
