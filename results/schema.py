"""Writes result.schema.json from the classes of the documents: `python -m results.schema`."""

import json
import re
from pathlib import Path

import msgspec

from results.document import Failure, Record

FILE = Path(__file__).with_name('result.schema.json')


def make_schema() -> str:
    """The text of the file."""
    schema = {'$schema': 'https://json-schema.org/draft/2020-12/schema', **msgspec.json.schema(Record | Failure)}
    text = json.dumps(schema, indent=1, ensure_ascii=False)
    # A line for each value, and for each list of names.
    text = re.sub(r'\[\n([^][{}]*)\n *\]', lambda found: f'[{" ".join(found[1].split())}]', text)
    return re.sub(r'\n {5,}|\n {4}(?=[]}])', ' ', text) + '\n'


if __name__ == '__main__':
    FILE.write_text(make_schema(), encoding='utf-8')
