"""Checks the files of --flagfile before absl reads them: absl's errors do not name the file, and it ignores loops."""

import os
from collections.abc import Iterable, Iterator, Sequence

from errors import UsageError, read_regular, spelled

_FLAG = 'flagfile'


def check_flag_files(argv: Sequence[str]) -> None:
    """Checks that the files of --flagfile in argv, and those that they include, are text and do not include themselves.

    Raises:
      UsageError: a file is not UTF-8, cannot be read, or includes itself.
    """
    for path in _named_in(argv):
        _check(path, ())


def _named_in(arguments: Iterable[str]) -> Iterator[str]:
    """Returns the files that --flagfile names in the arguments before --, as absl finds them."""
    remaining = iter(arguments)
    for argument in remaining:
        if argument == '--':
            return
        name, _, path = argument.partition('=')
        if name in (f'--{_FLAG}', f'-{_FLAG}'):
            path = path.strip() if '=' in argument else next(remaining, '')
            if path:
                yield os.path.expanduser(path)


def _check(path: str, including: tuple[str, ...]) -> None:
    if path in including:
        chain = ', which includes '.join([*including[including.index(path) :], path])
        raise UsageError(f'{spelled(_FLAG, path)}: the file includes itself ({chain}); remove that line')
    try:
        lines = read_regular(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(
            f'{spelled(_FLAG, path)}: it is not UTF-8 (byte {error.start}); write a text file with a flag on each line'
        ) from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, 'strerror', None) or str(error)).lower()
        raise UsageError(
            f'{spelled(_FLAG, path)}: it cannot be read ({reason}); write the name of a text file with a flag on each '
            'line'
        ) from None
    # In a file, absl takes the name only after an equal sign.
    for included in _named_in(line for line in lines if line.startswith((f'--{_FLAG}=', f'-{_FLAG}='))):
        _check(included, (*including, path))
