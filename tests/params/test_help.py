"""The help text that --help prints: each flag once, in its group, with what it accepts."""

import pytest

from commands.subcommands import SUBCOMMANDS
from params import SPECS
from params.help_text import flag_help, format_help
from params.spec import ITS_DEFAULT

pytestmark = pytest.mark.unit


def test_help_names_each_flag_once_in_its_group() -> None:
    text = format_help(SUBCOMMANDS, everything=True)
    assert max(map(len, text.splitlines())) <= 100
    for name, spec in SPECS.items():
        lines = [line for line in text.splitlines() if line in (f'  --{name}=VALUE', f'  --[no]{name}')]
        assert len(lines) == 1, name
        assert text.index(f'{spec.group}:\n') < text.index(lines[0])


def test_help_shows_the_thirty_flags_that_people_use_and_says_where_the_others_are() -> None:
    text = format_help(SUBCOMMANDS)
    shown = [spec for spec in SPECS.values() if flag_help(spec) in text]
    assert shown == [spec for spec in SPECS.values() if spec.common]
    assert len(shown) == 30
    assert f'--help=all lists the other {len(SPECS) - 30} flags' in text
    assert len(text.splitlines()) < 180


def test_help_tells_the_choices_bounds_unit_and_defaults_of_each_flag() -> None:
    text = format_help(SUBCOMMANDS, everything=True)
    for name, spec in SPECS.items():
        heading = f'  --[no]{name}\n' if spec.type is bool else f'  --{name}=VALUE\n'
        # The indented lines up to the next flag or group.
        about = ' '.join(text.split(heading)[1].split('\n  --')[0].split('\n\n')[0].split())
        bounds = [f'{bound:g}' for bound in (spec.lower_bound, spec.upper_bound) if bound is not None]
        default = '' if spec.default is None else str(spec.default)
        facts = [
            *(spec.choices or ()),
            *bounds,
            default.lower() if spec.type is bool else default,
            spec.unit or '',
            (spec.original or '').removeprefix(ITS_DEFAULT) if (spec.original or '').startswith(ITS_DEFAULT) else '',
        ]
        assert [fact for fact in facts if fact not in about] == [], name
