"""The table and the document of verdicts, and which checks apply."""

import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import doctor
from commands.doctor import (
    exit_code,
    format_again,
    format_fastest,
    format_summary,
    make_document,
    make_table,
    rows_of,
)
from doctor.check_runner import examine, matching, why_not
from doctor.check_table import CHECKS, DEVICES, Needs
from doctor.verdicts import Finding, Outcome, Verdict, ok, skipped, verdict_of, warning, wrong

pytestmark = pytest.mark.unit

SCHEMA = json.loads((Path(doctor.__file__).parent / 'report.schema.json').read_text())
# As a run on a machine with one GPU has left them.
STORED: list[dict[str, Any]] = [
    {'name': 'resnet50/fp16/NCHW', **ok('812.3 images/sec', images_per_second=812.3).as_document()},
    {'name': 'host/load', **warning('others use 40% of the cores', 'end them').as_document()},
    {'name': 'all_reduce/nccl/fp32', **skipped('one GPU only').as_document()},
    {'name': 'all_reduce/nccl/bf16', **skipped('one GPU only').as_document()},
    {'name': 'all_reduce/nccl/fp16', **skipped('one GPU only').as_document()},
    {'name': 'host/shared_memory', **skipped('one GPU only').as_document()},
    {'name': 'resnet50/cpu/fp32', **skipped('the GPUs compute').as_document()},
    {'name': 'gpu/driver', **ok('driver 550.54.15').as_document()},
    {'name': 'losses/gpu_and_cpu', **wrong('losses differ', 'report it', losses=[float('nan')]).as_document()},
]
FINDINGS = [
    Finding(row['name'], 'a question', verdict_of(row), 1.5, () if row['outcome'] == 'ok' else ('a line',))
    for row in STORED
]


def document(findings: list[Finding]) -> dict[str, Any]:
    return make_document(
        findings, started_at='2025-01-31T23:59:59Z', argv=['--quick'], is_complete=True, environment={'TF_X': '1'}
    )


def test_verdicts_survive_json() -> None:
    verdict = warning('slow', 'wait', seconds=1.5)
    assert verdict_of(json.loads(json.dumps(verdict.as_document()))) == verdict


def test_rows_are_in_the_order_of_the_table_and_skipped_checks_with_one_reason_are_one_row() -> None:
    assert rows_of(FINDINGS) == [
        (Outcome.WARNING, 'host/load', 'others use 40% of the cores', 'end them'),
        (Outcome.OK, 'gpu/driver', 'driver 550.54.15', None),
        (Outcome.WRONG, 'losses/gpu_and_cpu', 'losses differ', 'report it'),
        (Outcome.OK, 'resnet50/fp16/NCHW', '812.3 images/sec', None),
        (Outcome.SKIPPED, '4 checks', 'one GPU only: host/shared_memory, all_reduce/nccl/*', None),
        (Outcome.SKIPPED, 'resnet50/cpu/fp32', 'the GPUs compute', None),
    ]


def test_the_table_has_verdict_check_finding_and_what_to_do() -> None:
    lines = [' '.join(line.split()) for line in make_table(FINDINGS).as_text(io.StringIO(), 80).splitlines()]
    assert 'warning host/load others use 40% of the cores' in lines
    assert lines[lines.index('warning host/load others use 40% of the cores') + 1] == '-> end them'
    assert 'ok gpu/driver driver 550.54.15' in lines


def test_the_summary_counts_the_verdicts() -> None:
    assert format_summary(FINDINGS, 61.6) == '4 checks in 62 s: 2 ok, 1 warning, 1 wrong; 5 more do not apply here'


def test_what_is_wrong_is_named_for_a_second_look() -> None:
    assert '--only=losses/gpu_and_cpu --json' in (format_again(FINDINGS) or '')
    flags = ['--device=gpu', '--time_limit=4']
    assert '--only=losses/gpu_and_cpu --device=gpu --time_limit=4 --json' in (format_again(FINDINGS, flags) or '')
    assert format_again(FINDINGS[:2]) is None


def test_the_fastest_setting_is_compared_with_fp32() -> None:
    rates = {'fp32/NCHW': 100.0, 'fp32/NHWC': 80.0, 'tf32/NCHW': 150.0, 'fp16/NHWC': 300.0}
    findings = [
        Finding(f'resnet50/{name}', 'a question', ok('fast', images_per_second=rate)) for name, rate in rates.items()
    ]
    line = format_fastest(findings) or ''
    assert 'fp16/NHWC' in line
    assert '3.00 times' in line
    assert format_fastest(findings[:1]) is None
    assert '1.00' not in (format_fastest(findings[:2]) or '')


@pytest.mark.parametrize(
    ('verdicts', 'code'),
    [([], 0), ([ok('a'), skipped('b'), warning('c', 'd')], 0), ([ok('a'), wrong('e')], 1)],
)
def test_only_what_is_wrong_is_an_error(verdicts: list[Verdict], code: int) -> None:
    findings = [Finding('test/x', 'a question', verdict) for verdict in verdicts]
    assert exit_code(findings) == code
    assert document(findings)['exit_code'] == code


def test_the_document_has_everything_and_fits_its_schema() -> None:
    written = json.loads(json.dumps(document(FINDINGS), allow_nan=False))
    jsonschema.validate(written, SCHEMA)
    assert [check['name'] for check in written['checks']] == [finding.name for finding in FINDINGS]
    assert written['checks'][0]['figures'] == {'images_per_second': 812.3}
    assert written['checks'][-1]['figures'] == {'losses': ['nan']}
    assert written['checks'][-1]['log'] == ['a line']


@pytest.mark.parametrize(
    ('pattern', 'expected'),
    [
        ('host/cores', {'host/cores'}),
        (
            'all_reduce/*/bf16',
            {f'all_reduce/{name}/bf16' for name in ('pscpu', 'psgpu', 'xring', 'nccl', 'collective')},
        ),
        ('all_reduce/nccl', {f'all_reduce/nccl/{name}' for name in ('fp32', 'fp16', 'bf16')}),
        ('host/cores, gpu/driver', {'host/cores', 'gpu/driver'}),
        ('nothing', set()),
    ],
)
def test_checks_are_chosen_by_name_wildcards_or_family(pattern: str, expected: set[str]) -> None:
    assert {check.name for check in matching(pattern, with_long=True)} == expected


def test_quick_leaves_out_what_takes_long_and_starts_tensorflow_once() -> None:
    assert matching(None, with_long=True) == list(CHECKS)
    quick = matching(None, with_long=False)
    assert {check.name.partition('/')[0] for check in CHECKS if check not in quick} >= {'resnet50', 'real_data'}
    assert [check for check in quick if check.is_long] == []
    # On a CPU; nothing that starts processes of its own.
    with_tensorflow = [check for check in quick if check.name.startswith(('tensorflow', 'placement', 'all_reduce'))]
    assert {check.shares for check in with_tensorflow} == {'sessions'}
    others = {check.name.partition('/')[0] for check in quick if check not in with_tensorflow}
    assert others == {'host', 'gpu'}


@pytest.mark.parametrize(
    ('needs', 'device', 'num_gpus', 'applies'),
    [
        (Needs.NOTHING, 'cpu', 0, True),
        (Needs.NOT_ON_CPU, 'cpu', 0, False),
        (Needs.NOT_ON_CPU, None, 0, True),
        (Needs.GPU, None, 0, False),
        (Needs.GPU, None, 1, True),
        (Needs.GPU, 'cpu', 0, False),
        (Needs.TWO_GPUS, None, 1, False),
        (Needs.TWO_GPUS, 'gpu', 2, True),
        (Needs.CPU, None, 0, True),
        (Needs.CPU, None, 1, False),
        (Needs.CPU, 'cpu', 0, True),
    ],
)
def test_a_check_applies_where_its_row_says(needs: Needs, device: str | None, num_gpus: int, applies: bool) -> None:
    assert (why_not(needs, device, num_gpus) is None) == applies


def test_checks_of_gpus_are_skipped_on_a_cpu_each_with_the_reason() -> None:
    chosen = matching('gpu/architecture,all_reduce/nccl', with_long=True)
    found = list(examine(chosen, 'cpu'))
    assert [finding.name for finding in found] == [check.name for check in chosen]
    assert {(finding.verdict.outcome, finding.verdict.found) for finding in found} == {
        (Outcome.SKIPPED, '--device=cpu')
    }
    assert DEVICES not in {finding.name for finding in found}
