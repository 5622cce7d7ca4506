"""Reads the output of a command by regular expressions: --rate, --secs and --record."""

import re
from collections.abc import Mapping, Sequence

from tf_cnn.system.errors import RunError, UsageError, format_flag

# The name of the number of a pattern whose group has none.
UNNAMED = {'rate': 'rate', 'secs': 'seconds'}
EXAMPLES = {
    'rate': r'images/sec: (\S+)',
    'secs': r'took (\S+) s',
    'record': r'torch (?P<torch>\S+)',
}
# 950, .5, 9.5e2, or with commas between thousands.
_NUMBER = re.compile(
    r'[1-9]\d{0,2}(,\d{3})+(\.\d+)?|(\d+\.?\d*|\.\d+)(e[+-]?\d+)?', re.ASCII | re.IGNORECASE
)
# A number goes on with these before or after the group.
_BEFORE = re.compile(r'(\d|\d[.,]|\d[eE][+-]?)\Z', re.ASCII)
_AFTER = re.compile(r'\d|[.,]\d|[eE][+-]?\d|[kKMG]|[ ][kKMG]\b', re.ASCII)
# Far from overflow in any statistic.
_LEAST, _MOST = 1e-30, 1e30
_MAX_RECORD = 100

# The patterns of a command: rate, secs and record.
Patterns = Mapping[str, Sequence[str]]


def check_patterns(patterns: Patterns) -> None:
    """Raises UsageError for a pattern that finds nothing, or a name that appears twice."""
    names: list[str] = []
    for flag, texts in patterns.items():
        for text in texts:
            try:
                pattern = re.compile(text, re.MULTILINE)
            except re.error as error:
                raise _usage_error(
                    flag, text, f'it is not a regular expression ({error})'
                ) from None
            number = len(pattern.groupindex)
            if pattern.groups != (number or 1) or not (number or flag in UNNAMED):
                groups = 'one group, or only named ones' if flag in UNNAMED else 'named groups'
                raise _usage_error(flag, text, f'it needs {groups}')
            if pattern.search(''):
                raise _usage_error(flag, text, 'it matches every output')
            for name in pattern.groupindex or (UNNAMED[flag],):
                if name in names:
                    raise UsageError(
                        f'{format_flag(flag, text)}: two groups are called {name}; name what each '
                        "measures, such as '(?P<tokens>...)'"
                    )
                names.append(name)


def _usage_error(flag: str, text: str, reason: str) -> UsageError:
    return UsageError(f"{format_flag(flag, text)}: {reason}; use one such as '{EXAMPLES[flag]}'")


def read_numbers(
    flag: str, patterns: Sequence[str], output: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Returns the last number of each group by name, and how many there were if several.

    Raises RunError if a pattern finds no whole number above 0.
    """
    numbers, counts = dict[str, float](), dict[str, int]()
    for text in patterns:
        pattern = re.compile(text, re.MULTILINE)
        match, count = _last_match(flag, pattern, output)
        for name, group in (pattern.groupindex or {UNNAMED[flag]: 1}).items():
            numbers[name] = _read_number(format_flag(flag, text), match, group)
            counts |= {name: count} if count > 1 else {}
    return numbers, counts


def read_records(patterns: Sequence[str], output: str) -> dict[str, str | None]:
    """Returns the last match of each named group."""
    return {
        name: (value or '').strip()[:_MAX_RECORD]
        for text in patterns
        for name, value in _last_match('record', re.compile(text, re.MULTILINE), output)[0]
        .groupdict()
        .items()
    }


def _last_match(flag: str, pattern: re.Pattern[str], output: str) -> tuple[re.Match[str], int]:
    match, count = None, 0
    for count, match in enumerate(pattern.finditer(output), 1):  # noqa: B007
        pass
    if not match:
        raise RunError(f'{format_flag(flag, pattern.pattern)}: nothing in the output matches')
    return match, count


def _read_number(flag_text: str, match: re.Match[str], group: int | str) -> float:
    number, (start, end) = match[group] or '', match.span(group)
    before, after = match.string[max(0, start - 4) : start], match.string[end : end + 12]
    # The pattern itself may have a unit beside the group, as in '(\S+)k tok/s'.
    pattern = match.re.pattern
    if _NUMBER.fullmatch(number):
        is_cut = _BEFORE.search(before) and f'{before[-1]}(' not in pattern
        if is_cut or (_AFTER.match(after) and f'){after[0]}' not in pattern):
            whole = re.sub(r'.*\s', '', before) + number + re.sub(r'(?s)( ?\S+).*', r'\1', after)
            raise RunError(f'{flag_text}: it takes only {number} of {whole}; match all of it')
        value = float(number.replace(',', ''))
        if _LEAST <= value <= _MOST:
            return value
    raise RunError(
        f'{flag_text}: its last match {number[:60]!r} is not a number from {_LEAST:g} to {_MOST:g}'
    )
