"""Runs each family of checks in a process of its own."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tf_cnn.cluster.environments import remove_cluster_variables
from tf_cnn.doctor.check_process import FAMILIES
from tf_cnn.flags.spec import flag
from tf_cnn.machine.findings import SKIPPED, WARNING, WRONG, Finding
from tf_cnn.machine.gpus import KERNEL_CACHE, has_nvidia_gpu
from tf_cnn.system.limited_process import TIMEOUT, run_process
from tf_cnn.system.place import FOLDER


@dataclass(frozen=True)
class DoctorOptions:
    only: str | None = flag(
        None,
        'The families of checks to run, separated by commas. By default all: '
        f'{", ".join(FAMILIES)}.',
    )
    num_gpus: int | None = flag(
        None, 'Fail if this machine has fewer GPUs, or TensorFlow uses fewer.', lower_bound=1
    )
    json: bool = flag(
        False,
        'Print a JSON document for a bug report, with all findings and the last output lines of '
        'failed checks; the lines for people then go to standard error.',
    )


_CHECK_COMMAND = (sys.executable, '-m', 'tf_cnn.doctor.check_process')
# How many of the last output lines of a failed family --json contains.
_NUM_LOG_LINES = 60
# A family takes a few minutes at most. But if TensorFlow has no machine code for a GPU, the driver
# compiles all kernels, which takes half an hour on one core.
_TIMEOUT_SECS, _COMPILING_TIMEOUT_SECS = 600.0, 3600.0
_GRACE_SECS = 5.0
_NCCL = (
    'try NCCL_P2P_DISABLE=1 (and ACS off in the BIOS), then NCCL_SHM_DISABLE=1; until then '
    '--all_reduce_spec=xring'
)
_ADVICE = 'report it with the output of doctor --json, which has the stacks of all threads'
_ADVICE_FOR_SIGNALS: Mapping[int, str] = {
    signal.SIGILL: 'this TensorFlow was compiled for a processor with more instructions; '
    'install a build for this processor',
    signal.SIGKILL: 'the kernel may have killed it for lack of memory: see dmesg, and free memory',
}


def any_wrong(findings: Iterable[Finding]) -> bool:
    return any(finding.outcome == WRONG for finding in findings)


def check_family(
    family: str, earlier_findings: Sequence[Finding]
) -> tuple[list[Finding], list[str]]:
    if any_wrong(finding for finding in earlier_findings if finding.name.startswith('tensorflow')):
        return [Finding(SKIPPED, 'not run: see tensorflow/devices', name=family)], []
    compiles = any(
        finding.outcome == WARNING
        for finding in earlier_findings
        if finding.name == 'gpu/architecture'
    )
    return run_family(family, _COMPILING_TIMEOUT_SECS if compiles else _TIMEOUT_SECS)


def run_family(
    family: str, timeout_secs: float, command: Sequence[str] = _CHECK_COMMAND
) -> tuple[list[Finding], list[str]]:
    """Runs the checks of a family in a process (tf_cnn/doctor/check_process.py); kills it
    after timeout_secs.

    Returns the findings, and the last output lines of the process. If it crashes or hangs, the
    check that was running gets the outcome WRONG, and the checks after it SKIPPED.
    """
    # A folder for the process's temporary files: even if it is killed, none remain.
    with tempfile.TemporaryDirectory(
        prefix='tf_cnn_benchmarks-doctor-', ignore_cleanup_errors=True
    ) as folder:
        findings_file, log = Path(folder, 'findings'), Path(folder, 'log')
        environment = {
            # Makes NCCL say why it fails.
            'NCCL_DEBUG': 'WARN',
            **KERNEL_CACHE,
            **remove_cluster_variables(os.environ),
            'PYTHONPATH': os.pathsep.join(
                filter(None, [str(FOLDER), os.environ.get('PYTHONPATH')])
            ),
            'TF_CPP_MIN_LOG_LEVEL': '0',
            'TMPDIR': folder,
        }
        process_exit = run_process(
            [*command, family, str(findings_file)], log, timeout_secs, environment, _GRACE_SECS
        )
        # The last line of a killed process may be incomplete.
        lines = (
            findings_file.read_text(encoding='utf-8').rpartition('\n')[0].splitlines()
            if findings_file.exists()
            else []
        )
        output, stacks = (
            path.read_text(encoding='utf-8', errors='backslashreplace').splitlines()
            if path.exists()
            else []
            for path in (log, Path(f'{findings_file}.stacks'))
        )
    names = msgspec.json.decode(lines[0]) if lines else [family]
    findings = [msgspec.json.decode(line, type=Finding) for line in lines[1:]]
    if process_exit.exit_code or len(findings) < len(names):
        summary = f'its process failed: {process_exit.reason or "it ended early"}'
        if process_exit.cause == TIMEOUT:
            summary = f'no answer within {timeout_secs:g} s'
        interrupted_check, *skipped_checks = names[len(findings) :] or [f'{family}/end']
        advice = _ADVICE_FOR_SIGNALS.get(process_exit.exit_code - 128, _ADVICE)
        if has_nvidia_gpu() and ('nccl' in interrupted_check or 'collective' in interrupted_check):
            advice = _NCCL
        findings.append(
            Finding(WRONG, summary, advice, {'stacks': stacks[:_NUM_LOG_LINES]}, interrupted_check)
        )
        findings += [
            Finding(SKIPPED, 'not run: its process has ended', name=name) for name in skipped_checks
        ]
    return findings, output[-_NUM_LOG_LINES:]
