"""Writes results/result.schema.json from the facts of the plan and the sections: `python -m planning.schema`."""

import json
import re
from pathlib import Path
from typing import Annotated

import results
from machine.surroundings import MachineFacts
from planning.plan import KINDS_WITH_FACTS
from results.facts import run_schema, schema_of
from results.sections import Count, FailureDocument, ResultDocument

FILE = Path(results.__file__).with_name('result.schema.json')
# The facts of the object "run" that are known only after the run, and those that older versions wrote.
_OTHERS = {
    'num_skipped_steps': Annotated[Count, 'Steps whose gradients overflowed, so that they changed no variable.'],
    'kernels_by_products': Annotated[
        bool,
        'Whether the gradients of some kernels were computed as matrix products, as older versions did on some CPUs. '
        'False if missing.',
    ],
}


def make_schema() -> str:
    """The text of the file."""
    result, run = schema_of(ResultDocument), run_schema(KINDS_WITH_FACTS)
    others = {name: schema_of(kind) for name, kind in _OTHERS.items()}
    result['properties']['run'] = {
        **run,
        'properties': dict(sorted({**run['properties'], **others}.items())),
        'required': sorted([*run['required'], 'num_skipped_steps']),
        'additionalProperties': False,
    }
    result['properties']['machine'] |= schema_of(MachineFacts)
    schema = {
        '$schema': 'https://json-schema.org/draft/2020-12/schema',
        'title': 'A result of tf_cnn_benchmarks',
        'description': 'What --result_file writes. Unknown values are null.',
        **result,
        '$defs': {
            'failure': {
                'description': 'What a sweep writes for a run that left no result.',
                **schema_of(FailureDocument),
            }
        },
    }
    text = json.dumps(schema, indent=1, ensure_ascii=False)
    # Lists of names on one line.
    return re.sub(r'\[\n([^][{}]*)\n *\]', lambda found: f'[{" ".join(found[1].split())}]', text) + '\n'


if __name__ == '__main__':
    FILE.write_text(make_schema(), encoding='utf-8')
