"""A program that answers as nvidia-smi does on a machine with GPUs."""

import os
from pathlib import Path

# What gpu_facts asks for: name, UUID, MiB, compute capability, clocks, power limit, driver.
_LINE = 'NVIDIA A100-SXM4-40GB, GPU-{index}5a2, 40960, 8.0, 1410, 1215, 400.00, 550.54.15\n'


def fake_nvidia_smi(folder: Path, num_gpus: int) -> str:
    """Writes the program to a folder; returns a PATH that has the folder first."""
    folder.mkdir(exist_ok=True)
    program = folder / 'nvidia-smi'
    lines = ''.join(_LINE.format(index=index) for index in range(num_gpus))
    program.write_text(f'#!/bin/sh\ncat <<END\n{lines}END\n')
    program.chmod(0o755)
    return f'{folder}{os.pathsep}/usr/bin{os.pathsep}/bin'
