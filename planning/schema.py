"""Writes the object "run" of results/result.schema.json from the facts of the plan: `python -m planning.schema`."""

import json
from pathlib import Path
from typing import Any

import results
from planning.plan import KINDS_WITH_FACTS
from results.facts import schema_of

FILE = Path(results.__file__).with_name('result.schema.json')
# What is known only after the run, and what older versions wrote.
_OTHERS: dict[str, Any] = {
    'num_skipped_steps': {
        'description': 'Steps whose gradients overflowed, so that they changed no variable.',
        'type': 'integer',
        'minimum': 0,
    },
    'kernels_by_products': {
        'description': 'Whether the gradients of some kernels were computed as matrix products, as older versions did '
        'on some CPUs. False if missing.',
        'type': 'boolean',
    },
}


def run_schema() -> dict[str, Any]:
    """The JSON Schema of the object "run"."""
    run = schema_of(KINDS_WITH_FACTS)
    return {
        **run,
        'properties': dict(sorted({**run['properties'], **_OTHERS}.items())),
        'required': sorted([*run['required'], 'num_skipped_steps']),
        'additionalProperties': False,
    }


def make_schema() -> str:
    """The text of the file, with the object "run" as the plan has it."""
    schema = json.loads(FILE.read_text(encoding='utf-8'))
    schema['properties']['run'] = run_schema()
    return json.dumps(schema, indent=1, ensure_ascii=False) + '\n'


if __name__ == '__main__':
    FILE.write_text(make_schema(), encoding='utf-8')
