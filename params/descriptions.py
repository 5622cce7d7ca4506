"""All that is known of one flag, from the tables of flags: what help FLAG and the page of flags tell. No TensorFlow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from errors import UsageError, nearest, spelled
from params.all_rules import reasons_of_idleness
from params.original import TABLE, Fate, OriginalFlag
from params.original_meanings import DIFFERENCES, MEANINGS, OF_OTHER_VERSIONS, WORKING_OF_OTHER_VERSIONS
from params.shared_flags import flags_to_agree_on
from params.spec import FlagSpec
from params.table import SPECS, Params

_GROUPS = {
    Fate.RENAMED: 'Other names of flags',
    Fate.NO_EFFECT: 'Flags of the original without an effect here',
    Fate.REFUSED: 'Flags of the original that are refused',
}
_OF_OTHERS = 'only older versions, or versions of others, have it'


@dataclass(frozen=True)
class Story:
    """One flag, in words.

    Attributes:
      name: without dashes. group: the heading in --help, for flags that are not ours one of three others.
      usage: as it is written. meaning: sentences. fate: what becomes of it if the last version of the original has it,
        else None.
      facts: a title and a text each, where they apply: what it takes, its default, when it has no effect, and so on.
      choices: the only values that it takes, if these are few.
    """

    name: str
    group: str
    usage: str
    meaning: str
    fate: Fate | None
    facts: Mapping[str, str]
    choices: tuple[str, ...] = ()


def find_story(name: str, others: Iterable[str] = ()) -> Story:
    """Tells about a flag of ours or of the original.

    Args:
      name: with or without dashes in front; --noNAME is the switch NAME.
      others: further names that help knows, which an error may suggest.

    Raises:
      UsageError: there is no such flag.
    """
    plain = _plain(name)
    if plain in SPECS:
        return _of_ours(SPECS[plain])
    if plain in TABLE:
        return _of_original(TABLE[plain])
    near = nearest(plain, [*SPECS, *TABLE, *others])
    hint = f'did you mean --help={near}?' if near else '--help lists all flags'
    raise UsageError(f'{spelled("help", name)}: there is no such flag or subcommand; {hint}')


def is_known(name: str) -> bool:
    """Whether there is such a flag; name as for find_story."""
    plain = _plain(name)
    return plain in SPECS or plain in TABLE


def list_stories() -> list[Story]:
    """All flags: ours in the order of --help, then the others of the original by what becomes of them and by name."""
    others = [_of_original(row) for name, row in TABLE.items() if name not in SPECS]
    order = list(_GROUPS.values())
    others.sort(key=lambda story: (order.index(story.group), story.name))
    return [*map(_of_ours, SPECS.values()), *others]


def usage_of(spec: FlagSpec) -> str:
    """How a flag is written: --[no]eval, --batch_size=VALUE."""
    return f'--[no]{spec.name}' if spec.type is bool else f'--{spec.name}=VALUE'


def value_of(spec: FlagSpec) -> str:
    """What a flag takes, in words."""
    takes = 'switch' if spec.type is bool else spec.expects
    return f'{takes}, in {spec.unit}' if spec.unit else takes


def default_of(spec: FlagSpec) -> str | None:
    """Its default as a command line has it; None if a run finds it out, or there is none."""
    if spec.default is None:
        return None
    return str(spec.default).lower() if spec.type is bool else str(spec.default)


def _plain(name: str) -> str:
    plain = name.lstrip('-').partition('=')[0]
    positive = plain.removeprefix('no')
    return positive if plain not in SPECS and plain not in TABLE and (positive in SPECS or positive in TABLE) else plain


def _of_ours(spec: FlagSpec) -> Story:
    facts = {'Value': value_of(spec)}
    if (default := default_of(spec)) is not None:
        facts['Default'] = default
    if reasons := reasons_of_idleness(spec.name):
        facts['No effect'] = '; '.join(reasons)
    if spec.name in flags_to_agree_on(Params(), serves=False):
        facts['Clusters'] = 'all processes need the same value'
    in_last_version = spec.name in TABLE and spec.name not in WORKING_OF_OTHER_VERSIONS
    if in_last_version:
        differences = [DIFFERENCES.get(spec.name)]
        if spec.original is not None:
            differences.insert(0, f'its default is {spec.original}')
        facts['Original'] = '; '.join(filter(None, ['works', *differences]))
    else:
        facts['Original'] = _OF_OTHERS if spec.name in TABLE else 'has no such flag'
    fate = Fate.WORKS if in_last_version else None
    return Story(spec.name, spec.group, usage_of(spec), spec.help, fate, facts, spec.choices or ())


def _of_original(row: OriginalFlag) -> Story:
    spec = row.spec
    in_last_version = spec.name in MEANINGS
    facts = {'Value': value_of(spec)}
    if row.fate is Fate.RENAMED:
        facts['Here'] = f'works, as another name of --{row.says}'
    elif row.fate is Fate.REFUSED:
        facts['Here'] = f'is refused: {row.says}'
    else:
        facts['Here'] = f'has no effect, and a warning says so: {row.says}'
    if row.silent is not None:
        facts['Accepted'] = f'{spelled(spec.name, row.silent)} brings no warning'
    facts['Original'] = 'the last version has it' if in_last_version else _OF_OTHERS
    meaning = MEANINGS[spec.name] if in_last_version else OF_OTHER_VERSIONS[spec.name]
    fate = row.fate if in_last_version else None
    return Story(spec.name, _GROUPS[row.fate], usage_of(spec), meaning, fate, facts, spec.choices or ())
