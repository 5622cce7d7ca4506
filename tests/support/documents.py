"""The shell lines of README.md and docs/, and how each is checked."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Without the page of flags, which may have been made; test_flag_docs.py checks it.
PAGES = [ROOT / 'README.md', *sorted({*(ROOT / 'docs').glob('*.md')} - {ROOT / 'docs' / 'flags.md'})]
# The first words of shell lines, which may stand after variables. In a block of sh or bash every line is one.
_PROGRAMS = (
    'bash|chromium|docker|git|horovodrun|kubectl|make|mpirun|pip|pipx|'
    'python3?|source|srun|tensorboard|tf_cnn_benchmarks'
)
_SHELL_LINE = re.compile(rf'([A-Z_]+=\S+ )*(\.venv/bin/)?({_PROGRAMS})(\.py)? \S')
_NEEDS = re.compile(r'<!-- needs: (.+) -->')
_FENCE = re.compile(r'```(\w*)$')


@dataclass(frozen=True)
class ShellLine:
    """A line with those that continue it.

    Attributes:
      page: the file, below the project. number: of its first line in the file.
      text: without the backslashes at the ends of its lines.
      needs: what the comment `<!-- needs: ... -->` over its block says it needs, which this machine may lack.
    """

    page: str
    number: int
    text: str
    needs: str | None

    def __str__(self) -> str:
        return f'{self.page}:{self.number}: {self.text}'


def shell_lines() -> Iterator[ShellLine]:
    """All shell lines of all pages, in their order."""
    for page in PAGES:
        yield from _lines_of(page)


def _lines_of(page: Path) -> Iterator[ShellLine]:
    language: str | None = None
    needs: str | None = None
    in_block = False
    lines = iter(enumerate(page.read_text(encoding='utf-8').splitlines(), start=1))
    for number, line in lines:
        if fence := _FENCE.match(line):
            in_block = language is None
            language = fence[1] if in_block else None
            if not in_block:
                needs = None
            continue
        if found := _NEEDS.match(line):
            needs = found[1]
            continue
        is_indented = language is None and line.startswith('    ')
        if language is None and line and not is_indented:
            # Text: a block has ended, unless a comment has just announced the next one.
            needs = None
        in_shell = language in ('sh', 'bash')
        text = line.strip()
        if not (in_shell or is_indented) or not text or text.startswith('#'):
            continue
        if not in_shell and not _SHELL_LINE.match(text):
            continue
        while text.endswith('\\'):
            text = text.removesuffix('\\') + next(lines)[1].strip()
        yield ShellLine(page.relative_to(ROOT).as_posix(), number, text, needs)
