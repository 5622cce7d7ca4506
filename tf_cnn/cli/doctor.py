"""`tf_cnn_benchmarks.py doctor`: checks what works on this machine. Does not import TensorFlow."""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TextIO

import msgspec

from tf_cnn.cli.options import Arguments, Declaration
from tf_cnn.doctor.check_process import FAMILIES
from tf_cnn.doctor.checks import check_number
from tf_cnn.doctor.families import DoctorOptions, any_wrong, check_family
from tf_cnn.machine.findings import WARNING, WRONG, Finding
from tf_cnn.machine.run_environment import describe_machine, library_variables
from tf_cnn.results import VERSION
from tf_cnn.system.errors import UsageError, format_flag, nearest, plural
from tf_cnn.system.signals import SIGNALS

# How many of the last output lines of a failed family are printed.
_NUM_PRINTED_LINES = 15
# Former families, and what stands in their place.
_REMOVED = {
    'processor': 'docs/results.md, "Is this machine set up well?"',
    'xla': 'docs/gpu.md, "Check"',
}


DECLARATION = Declaration(
    'doctor',
    DoctorOptions,
    usage='[--flag=value ...]',
    examples=('', '--only=gpu,tensorflow', '--json > doctor.json'),
    details='Each family of checks runs in a separate process with a time limit, so a crash or '
    'hang is a finding, too. doctor checks all GPUs in CUDA_VISIBLE_DEVICES, and none if it is '
    'empty. The exit code is 1 if something is wrong, else 0. A warning says what is slower than '
    'it could be.',
)


@DECLARATION.main
def main(arguments: Arguments[DoctorOptions]) -> int:
    options = arguments.options
    families = (
        list(FAMILIES)
        if options.only is None
        else [name.strip() for name in options.only.split(',')]
    )
    for name in families:
        if name not in FAMILIES:
            near = nearest(name, FAMILIES)
            hint = f'did you mean {near}?' if near else f'the families are {", ".join(FAMILIES)}'
            if name in _REMOVED:
                hint = f'see {_REMOVED[name]}'
            raise UsageError(
                f'{format_flag("only", options.only)}: unknown family of checks {name!r}; {hint}'
            )
    if sys.platform != 'linux':
        raise UsageError(
            f'doctor: it needs Linux, and this is {sys.platform}; run a benchmark instead'
        )
    start_time, stream = time.monotonic(), sys.stderr if options.json else sys.stdout
    findings: list[Finding] = []
    logs: dict[str, list[str]] = {}
    try:
        with SIGNALS.storing():
            for family in (name for name in FAMILIES if name in families):
                SIGNALS.check()
                print(f'checking {family} ...', file=sys.stderr, flush=True)
                family_findings, log = check_family(family, findings)
                _print_findings(family_findings, stream)
                findings += family_findings
                if any(finding.outcome in (WARNING, WRONG) for finding in family_findings):
                    logs[family] = log
                for line in log[-_NUM_PRINTED_LINES:] if any_wrong(family_findings) else ():
                    print(f'         | {line}', file=stream)
        if options.num_gpus is not None:
            findings.append(check_number(options.num_gpus, findings))
            _print_findings(findings[-1:], stream)
        counts = Counter(finding.outcome for finding in findings)
        listed = ', '.join(f'{number} {outcome}' for outcome, number in counts.items())
        print(
            f'{plural(len(findings), "check")} in {time.monotonic() - start_time:.0f} s: {listed}',
            file=stream,
        )
    finally:
        # Even after Ctrl-C or SIGTERM.
        if options.json:
            document = {
                'schema': 'tf_cnn_benchmarks.doctor',
                'schema_version': 3,
                'program': VERSION,
                'machine': describe_machine(),
                'environment': library_variables(os.environ),
                'checks': findings,
                'logs': logs,
            }
            print(msgspec.json.format(msgspec.json.encode(document)).decode())
    return int(any_wrong(findings))


def _print_findings(findings: Iterable[Finding], stream: TextIO) -> None:
    for finding in findings:
        print(f'{finding.outcome:<8} {finding.name:<32} {finding.found}', file=stream, flush=True)
        if finding.advice:
            print(f'         -> {finding.advice}', file=stream, flush=True)
