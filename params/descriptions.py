"""Describes each flag in words, from the tables of flags, for help FLAG and the page of flags. No TensorFlow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from errors import UsageError, format_flag, nearest
from params.older_names import ELSEWHERE
from params.original import TABLE, Fate, OriginalFlag
from params.spec import NEW, OTHER, FlagSpec
from params.table import SPECS

_GROUPS = {
    Fate.RENAMED: 'Other names of flags',
    Fate.NO_EFFECT: 'Flags of the original without an effect here',
    Fate.REFUSED: 'Flags of the original that are refused',
}


@dataclass(frozen=True)
class FlagDescription:
    """The description of one flag in words.

    Attributes:
      group: its heading in --help; for flags of the original that are not ours, a heading of _GROUPS.
      fate: what becomes of the flag if the last version of the original has it, else None.
      facts: further facts that apply, by title: its values, its default, when it has no effect, ...
    """

    name: str
    group: str
    usage: str
    meaning: str
    fate: Fate | None
    facts: Mapping[str, str]


def describe_flag(name: str, others: Iterable[str] = ()) -> FlagDescription:
    """Describes a flag of ours or of the original; raises UsageError if there is none.

    The name may begin with dashes; --noNAME is the switch NAME. The error may suggest one of the `others`.
    """
    plain = _plain(name)
    if plain in SPECS:
        return _of_ours(SPECS[plain])
    if plain in TABLE:
        return _of_original(TABLE[plain])
    near = ELSEWHERE.get(plain) or nearest(plain, [*SPECS, *TABLE, *others])
    hint = f'did you mean --help={near}?' if near else '--help lists all flags'
    raise UsageError(f'{format_flag("help", name)}: there is no such flag or subcommand; {hint}')


def is_known(name: str) -> bool:
    """Whether describe_flag knows a flag of this name."""
    plain = _plain(name)
    return plain in SPECS or plain in TABLE


def describe_all_flags() -> list[FlagDescription]:
    """Describes all flags: ours in the order of --help, then the original's other flags by fate and by name."""
    others = [_of_original(row) for name, row in TABLE.items() if name not in SPECS]
    order = list(_GROUPS.values())
    others.sort(key=lambda flag: (order.index(flag.group), flag.name))
    return [*map(_of_ours, SPECS.values()), *others]


def usage_of(spec: FlagSpec) -> str:
    return f'--[no]{spec.name}' if spec.type is bool else f'--{spec.name}=VALUE'


def value_of(spec: FlagSpec) -> str:
    takes = 'switch' if spec.type is bool else spec.expects
    return f'{takes}, in {spec.unit}' if spec.unit else takes


def default_of(spec: FlagSpec) -> str | None:
    """Returns the default as written on a command line; None if the run chooses it, or there is none."""
    # mypy knows of no flag whose default is a tuple.
    if spec.default in (None, ()):  # type: ignore[comparison-overlap]
        return None
    return str(spec.default).lower() if spec.type is bool else str(spec.default)


def _plain(name: str) -> str:
    plain = name.lstrip('-').partition('=')[0]
    positive = plain.removeprefix('no')
    return positive if plain not in SPECS and plain not in TABLE and (positive in SPECS or positive in TABLE) else plain


def _of_ours(spec: FlagSpec) -> FlagDescription:
    facts = {'Value': value_of(spec)}
    if (default := default_of(spec)) is not None:
        facts['Default'] = default
    if spec.idle:
        facts['No effect'] = '; '.join(dict.fromkeys(idle.reason for idle in spec.idle))
    if spec.agreed:
        facts['Clusters'] = 'all processes need the same value'
    in_last_version = spec.original not in (NEW, OTHER)
    facts['Original'] = '; '.join(filter(None, ['works' if in_last_version else None, spec.original]))
    fate = Fate.WORKS if in_last_version else None
    return FlagDescription(spec.name, spec.group, usage_of(spec), spec.help, fate, facts)


def _of_original(row: OriginalFlag) -> FlagDescription:
    spec = row.spec
    in_last_version = spec.original != OTHER
    facts = {'Value': value_of(spec)}
    if row.fate is Fate.RENAMED:
        facts['Here'] = f'works, as another name of --{row.says}'
    elif row.fate is Fate.REFUSED:
        facts['Here'] = f'is refused: {row.says}'
    else:
        facts['Here'] = f'has no effect, and a warning says so: {row.says}'
    if row.silent is not None:
        facts['Accepted'] = f'{format_flag(spec.name, row.silent)} brings no warning'
    facts['Original'] = spec.original or 'the last version has it'
    fate = row.fate if in_last_version else None
    return FlagDescription(spec.name, _GROUPS[row.fate], usage_of(spec), spec.help, fate, facts)
