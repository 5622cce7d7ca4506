"""Short names of settings: only what tells them apart. Does not import TensorFlow."""

from collections.abc import Mapping, Sequence

from page.measured import BATCH_SIZE, FOLDER, MACHINE, MODE, SHAPE

_CHARACTERS = 54
_PART_CHARACTERS = 28
_SHORT_CHARACTERS = 44
# What stands first in a name, if it is needed.
_FIRST = (FOLDER, 'model', MODE, BATCH_SIZE, SHAPE)
# Their values say by themselves what they are.
_PLAIN = (FOLDER, MODE, SHAPE, 'model', MACHINE, 'data set', 'role')


def names_of(settings: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """A name for each setting, from as few columns as tell them apart; '#3 ...' where that is not enough.

    Args:
      settings: the traits of each. columns: the names of those that a name may consist of.
    """
    candidates = [name for name in _FIRST if name in columns] + [name for name in columns if name not in _FIRST]
    # What a failure was not given is unknown, and tells nothing, unless nothing else tells it from the others.
    known = [setting for setting in settings if all(setting.get(name) for name in candidates)]
    for among in (known or settings, settings):
        chosen = _telling(among, candidates)
        parts = [
            [_part(name, setting[name]) for name in chosen if setting.get(name)] or [*setting.values()][:1]
            for setting in settings
        ]
        names = [' · '.join(found) for found in parts]
        if len(set(names)) == len(names) and all(len(name) <= _CHARACTERS for name in names):
            return names
    return [shortened(f'#{position} {name}', _SHORT_CHARACTERS) for position, name in enumerate(names, 1)]


def shortened(text: str, characters: int) -> str:
    """A text of at most this many characters."""
    return text if len(text) <= characters else f'{text[: characters - 1].rstrip()}…'


def _telling(settings: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """The columns each of which tells apart settings that those before it do not; the first ones if there are none."""
    chosen: list[str] = []
    num_groups = 1
    for column in columns:
        num_found = len({tuple(setting.get(name) for name in (*chosen, column)) for setting in settings})
        # The shape says how large a setting is, also where others would do.
        is_shape = column == SHAPE and len({setting.get(SHAPE) for setting in settings}) > 1
        if num_found > num_groups or is_shape:
            chosen.append(column)
            num_groups = max(num_groups, num_found)
    return chosen or [name for name in columns if name in _FIRST]


def _part(column: str, value: str) -> str:
    text = value if column in _PLAIN else f'batch {value}' if column == BATCH_SIZE else f'{column}={value}'
    return shortened(text, _PART_CHARACTERS)
