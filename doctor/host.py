"""Checks of the host: what it gives to this process. They need no TensorFlow, except where it says so."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from doctor.verdicts import Context, Verdict, ok, warning
from errors import counted
from run import cgroups
from run.kernel_files import read, read_table
from run.processors import processor_facts
from run.surroundings import machine_affinity, load_average, memory_bytes

_GIBIBYTE = 2**30
# ResNet-50 with the default batch of 64 takes this much on a CPU; on a GPU the host holds batches and TensorFlow only.
_FEWEST_BYTES = 4 * _GIBIBYTE
# NCCL needs some MB for each pair of GPUs there. Docker gives 64 MB unless it is told --shm-size.
_FEWEST_SHARED_BYTES = _GIBIBYTE
# Shards, sockets to all tasks of a cluster, libraries: some hundreds.
_FEWEST_FILES = 1024
# Of the usable cores, that others may use.
_LARGEST_SHARE = 0.1
_THREADS = ('TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS', 'OMP_NUM_THREADS')
