"""Describes documents from their classes.

`python -m tf_cnn.results.schema` writes a JSON Schema; with --markdown it prints a page.
"""

import inspect
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tf_cnn.results.document import AnyResult, Failure

FILE = Path(__file__).with_name('result.schema.json')
_PAGE_HEAD = """\
# The result file

<!-- Made by `python -m tf_cnn.results.schema --markdown > docs/result_file.md`; do not edit it. -->

The values that `--result_file` writes. [results.md](results.md) explains how they are measured.
"""


def _schema() -> dict[str, Any]:
    schema = msgspec.json.schema(AnyResult | Failure)
    for definition in schema['$defs'].values():
        # Python 3.13 removes the indentation of docstrings, older ones keep it.
        if 'description' in definition:
            definition['description'] = inspect.cleandoc(definition['description'])
    return schema


def make_schema() -> str:
    """Returns the text of the JSON Schema file."""
    schema = {'$schema': 'https://json-schema.org/draft/2020-12/schema', **_schema()}
    text = json.dumps(schema, indent=1, ensure_ascii=False)
    # Each value and each list of names gets one line.
    text = re.sub(r'\[\n([^][{}]*)\n *\]', lambda match: f'[{" ".join(match[1].split())}]', text)
    return re.sub(r'\n {5,}|\n {4}(?=[]}])', ' ', text) + '\n'


def make_page() -> str:
    """Returns a Markdown page with a table for each object of a result; `make docs` writes it."""
    sections = [_PAGE_HEAD]
    for name, definition in sorted(
        _schema()['$defs'].items(), key=lambda pair: pair[0] not in ('Result', 'Failure')
    ):
        sections.append(f'## {name}\n\n{definition.get("description", "")}\n')
        rows = [
            f'| `{key}` | {_describe_type(value)} | {value.get("description", "")} |'
            for key, value in definition.get('properties', {}).items()
        ]
        table = ['| key | value | meaning |', '|---|---|---|', *rows, '']
        sections.append('\n'.join(table) if rows else f'{_describe_type(definition)}\n')
    return '\n'.join(sections)


def _describe_type(value: Mapping[str, Any]) -> str:
    """Returns the type of a value in words, with links to objects."""
    if '$ref' in value:
        name = value['$ref'].rpartition('/')[2]
        return f'[{name}](#{name.lower()})'
    if 'anyOf' in value:
        return ' or '.join(map(_describe_type, value['anyOf']))
    if value.get('type') == 'array':
        return f'list of {_describe_type(value["items"])}'
    if value.get('type') == 'object':
        return f'object of {_describe_type(value["additionalProperties"])}'
    return str(value.get('type') or ' or '.join(f'`{choice}`' for choice in value['enum']))


if __name__ == '__main__':
    if sys.argv[1:] == ['--markdown']:
        print(make_page(), end='')
    else:
        FILE.write_text(make_schema(), encoding='utf-8')
