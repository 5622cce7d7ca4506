"""docs/troubleshooting.md quotes messages that the program prints."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / 'docs' / 'troubleshooting.md').read_text(encoding='utf-8')
MESSAGES = re.findall(r'^\| `(.+?)` \|', PAGE.partition('## No message')[0], flags=re.MULTILINE)


def texts_of(path: Path) -> Iterator[str]:
    """The strings of a file; what is computed in them is left out, and neighbours are joined."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.JoinedStr):
            yield ''.join(str(part.value) if isinstance(part, ast.Constant) else '\0' for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope='module')
def texts() -> list[str]:
    rooms = [path.parent for path in ROOT.glob('*/__init__.py') if path.parent.name != 'benchmarks']
    paths = [*ROOT.glob('*.py'), *(path for room in rooms for path in room.rglob('*.py'))]
    return [text for path in paths for text in texts_of(path)]


def test_there_are_messages_of_every_kind() -> None:
    assert len(MESSAGES) > 30


@pytest.mark.parametrize('message', MESSAGES)
def test_each_message_is_one_of_the_program(message: str, texts: list[str]) -> None:
    """Its fixed parts stand in one string of the program, in this order."""
    parts = [re.escape(part.strip()) for part in message.split('...') if part.strip(' :;,')]
    assert parts, message
    pattern = re.compile('.*?'.join(parts), flags=re.DOTALL)
    assert [text for text in texts if pattern.search(text)][:1], message
