"""Keeps the reference results of machines, and writes their page, benchmarks/reference/README.md.

    make reference
    python -m benchmarks.reference --add=data/reference --name=two-cores-of-a-xeon
    python -m benchmarks.reference

The first command measures benchmarks/reference.toml. The second copies the results to
benchmarks/reference/NAME, with NAME instead of the host's name, and writes the page; the third only
writes the page.
"""

import argparse
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.comparing import ROOT
from tf_cnn.lab.rows import Row
from tf_cnn.lab.runs import group, repeat_key
from tf_cnn.machine.run_environment import fingerprint
from tf_cnn.results.collection import collect
from tf_cnn.results.document import Result
from tf_cnn.results.summary import format_limits, format_machine
from tf_cnn.results.tables import Column, Table, format_interval, format_number
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import BenchmarkError, UsageError, format_error

REFERENCE = ROOT / 'benchmarks' / 'reference'
PAGE = REFERENCE / 'README.md'
_NAME = re.compile(r'[a-z0-9][a-z0-9_.-]*')
# The features that TensorFlow's kernels for CPUs choose between.
_FEATURES = ('avx2', 'avx512f', 'avx512_vnni', 'avx512_bf16', 'amx_bf16', 'amx_int8')
# The flags that set the length of a run, and all that say nothing about the case.
_LENGTH = ('num_warmup_batches', 'target_seconds')
_COMMON_FLAGS = frozenset({*_LENGTH, 'result_file', 'device', 'num_gpus'})

# Everything below this line of the page is made from the results.
_MARK = '<!-- python -m benchmarks.reference writes the rest. -->'


def add_results(source: str, name: str) -> None:
    """Copies the complete results of a folder to the folder of a machine.

    Raises UsageError if the name is not a plain word, or if the folder lacks results of cases.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f'--name={name}: use small letters, digits, and . _ - only')
    collection = collect([source])
    problems = [*collection.problems, *(failure.reason for failure in collection.failures)]
    incomplete = [result.source for result in collection.results if not result.is_complete]
    if problems or incomplete:
        raise UsageError(
            f'--add={source}: some cases failed ({[*problems, *incomplete][0]}); measure them again'
        )
    folder = REFERENCE / name
    folder.mkdir(exist_ok=True)
    for result in collection.results:
        text = anonymize(Path(result.source).read_text(encoding='utf-8'), name)
        write_atomically(text, folder / Path(result.source).name)


def anonymize(text: str, name: str) -> str:
    """Returns the document of a result with another host name, and without paths of the machine."""
    document = json.loads(text)
    document['machine'] |= {'hostname': name}
    document['machine']['fingerprint'] = fingerprint(document['machine'])
    for worker in document['workers']:
        worker['host'] = name
    command = document['command']
    command['argv'] = [flag for flag in command['argv'] if not flag.startswith('--result_file')]
    command['given_flags'].pop('result_file', None)
    command['flags']['result_file'] = None
    document['environment'] = {
        variable: value
        for variable, value in document['environment'].items()
        if '/' not in str(value)
    }
    return json.dumps(document, separators=(',', ':')) + '\n'


def make_page(folders: Sequence[Path]) -> str:
    """Returns benchmarks/reference/README.md with the results of machines."""
    introduction = PAGE.read_text(encoding='utf-8').partition(_MARK)[0]
    sections = ['\n'.join(_machine_lines(folder)) for folder in folders]
    return '\n'.join([f'{introduction}{_MARK}\n', *sections])


def _machine_lines(folder: Path) -> Iterator[str]:
    results = collect([str(folder)]).results
    rows = [Row(runs=tuple(repeats)) for repeats in group(results, repeat_key)]
    first, machine = results[0], results[0].machine
    features = [feature for feature in _FEATURES if feature in machine['cpu_features']]
    yield f'## {folder.name}\n'
    facts = [*format_machine(machine), *format_limits(machine)]
    yield f'- {"; ".join(facts)}'
    yield f'- Processor features: {", ".join(features) or "none of AVX2, AVX-512 and AMX"}'
    yield f'- Measured on {first.started_at[:10]} with version {first.program.version}'
    given = first.command.given_flags
    yield f'- Each run with {" ".join(given[name] for name in _LENGTH if name in given)}\n'
    yield Table(_COLUMNS, rows, unknown='').as_markdown()
    yield ''


def _first(row: Row) -> Result:
    return row.results[0]


def _format_flags(row: Row) -> str:
    flags = _first(row).command.given_flags
    return shlex.join(text for name, text in flags.items() if name not in _COMMON_FLAGS)


def _format_gmacs(row: Row) -> str | None:
    flops_per_image = _first(row).compute.flops_per_image
    return format_number(row.rate * flops_per_image / 2e9) if flops_per_image else None


_COLUMNS: tuple[Column[Row], ...] = (
    Column('flags', _format_flags),
    Column('oneDNN', lambda row: 'yes' if _first(row).run.onednn else 'no'),
    Column('images/sec', lambda row: row.rate_text, is_number=True),
    Column(
        '95 %',
        lambda row: format_interval(row.estimate.interval),
        is_number=True,
    ),
    Column('GMACs/s', _format_gmacs, is_number=True),
    Column(
        'steps',
        lambda row: str(min(result.step_seconds().size for result in row.results)),
        is_number=True,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--add', metavar='FOLDER', help='the results of `make reference`')
    parser.add_argument('--name', help='the name of their machine')
    arguments = parser.parse_args()
    try:
        if bool(arguments.add) != bool(arguments.name):
            raise UsageError('--add and --name: use both, or neither')
        if arguments.add:
            add_results(arguments.add, arguments.name)
        folders = sorted(path for path in REFERENCE.iterdir() if path.is_dir())
        write_atomically(make_page(folders), PAGE)
    except BenchmarkError as error:
        print(format_error(str(error)), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == '__main__':
    sys.exit(main())
