"""Fails where code, tests and docs become hard to read: too many phrases of translated sentences,
names that say how a value came about and not what it is, long lines. CONTRIBUTING.md says why.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

# How often each may occur in 1,000 words of docstrings and comments, and of docs.
PHRASES = {
    r'\b(that|those|these) of\b': 0.2,
    r'\b(of|for|in|by|with|to|from|on) which\b': 0.3,
    r'\bwhose\b': 0.3,
    r'\b(write|leave|leave out) (--|it out)': 0.0,
}
WEAK_NAMES = re.compile(
    'asked|built|chosen|done|ended|found|given|gone|got|kept|known|left|made|named|one|others|own|'
    'ran|seen|sent|shown|stored|taken|wanted'
)
MOST_WEAK_NAMES = 0.005  # the share of all variables, arguments and attributes
MOST_COLUMNS = 100
PROSE = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, 'FSTRING_MIDDLE', tokenize.STRING)}


def texts(pattern: str) -> dict[str, str]:
    """Returns the text of each file in git that fits the pattern, by its path."""
    command = ['git', 'ls-files', '-z', pattern]
    listing = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return {name: Path(name).read_text() for name in listing.split('\0')[:-1]}


def prose(code: str) -> str:
    """Returns the docstrings, messages and comments of a module, each on its line."""
    lines = [''] * (code.count('\n') + 1)
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in PROSE:
            for number, line in enumerate(token.string.split('\n'), token.start[0] - 1):
                lines[number] += line
    return '\n'.join(lines)


def bindings(code: str) -> Iterator[tuple[str, int]]:
    """Yields the name and line of each variable, argument and attribute that gets a value."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name.lstrip('_'), node.lineno


def problems() -> Iterator[str]:
    code = texts('*.py')
    tests = {path: text for path, text in code.items() if path.startswith('tests/')}
    program = {
        path: text for path, text in code.items() if not path.startswith(('tests/', 'benchmarks/'))
    }
    for files in (program, tests, texts('*.md')):
        pages = {path: prose(text) if path in code else text for path, text in files.items()}
        lines = [
            (f'{path}:{number}', line)
            for path, page in pages.items()
            for number, line in enumerate(page.split('\n'), 1)
        ]
        words = sum(len(line.split()) for _, line in lines)
        for phrase, most in PHRASES.items():
            places = [place for place, line in lines if re.search(phrase, line, re.IGNORECASE)]
            if len(places) * 1000 > most * words:
                yield f'{len(places)} times {phrase} in {words} words: ' + ' '.join(places)
        names = [
            (name, f'{path}:{line}')
            for path, text in files.items()
            if path in code
            for name, line in bindings(text)
        ]
        weak = [f'{place} {name}' for name, place in names if WEAK_NAMES.fullmatch(name)]
        if len(weak) > MOST_WEAK_NAMES * len(names):
            yield f'{len(weak)} of {len(names)} names say how a value came about: {", ".join(weak)}'
    for path, text in code.items():
        for number, line in enumerate(text.split('\n'), 1):
            if len(line) > MOST_COLUMNS:
                yield f'{path}:{number}: {len(line)} columns'


sys.exit('\n'.join(problems()) or 0)
