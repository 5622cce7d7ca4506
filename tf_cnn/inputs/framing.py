"""Scans shards from one record length to the next, without reading the records.

Does not import TensorFlow. In a damaged shard a length may have any value. TensorFlow's readers
check its checksum, but then allocate that many bytes before they read, so a length of 2^60 with a
correct checksum ends the process with signal 11. They also take a shard that ends within a record's
header for complete. Therefore this module compares the lengths with the size of the shard before
TensorFlow reads it.
"""

import concurrent.futures
import functools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tf_cnn.inputs.file_kinds import open_regular, read_start, wrong_kind_message
from tf_cnn.system.errors import RunError, plural
from tf_cnn.system.parallel import ordered_map

# The framing of a TFRecord: 8 bytes of length, 4 of its checksum, the data, 4 of its checksum
# (tensorflow/core/lib/io/record_writer.h).
_LENGTH_BYTES = 8
_HEADER_BYTES = _LENGTH_BYTES + 4
FRAME_BYTES = _HEADER_BYTES + 4
# A value of Fault.kind.
UNREADABLE = 'unreadable'
# The longest time to scan the shards of a run. A million records in the page cache take a few
# seconds; reading their lengths from a network disk may take many minutes.
RUN_SCAN_SECS = 30.0
# The seconds spent on a shard to find the mean size of its records.
_SAMPLE_SECS = 0.1
# May exceed the number of cores, since reading lengths one by one mostly waits for the disk.
_SCAN_THREADS = 16


@dataclass(frozen=True)
class Fault:
    """A fault in a shard.

    Attributes:
      record: an index from 0; None if the fault concerns the whole shard.
      filename: the image file that the record names, or ''.
      kind: one of a few fixed names; reports count faults by kind.
    """

    path: str
    record: int | None
    filename: str
    kind: str
    reason: str

    def __str__(self) -> str:
        record_text = '' if self.record is None else f', record {self.record}'
        return (
            f'{self.path}{record_text}{f" ({self.filename})" if self.filename else ""}: '
            f'{self.reason}'
        )


@dataclass(frozen=True)
class ShardScan:
    """The number and bytes of a shard's records before the first fault or the deadline."""

    num_records: int
    num_bytes: int = 0
    fault: Fault | None = None
    is_complete: bool = True


def scan_shard(path: str, deadline: float = math.inf) -> ShardScan:
    """Reads the length of each record, until time.monotonic() passes the deadline."""
    index = offset = 0
    try:
        with open_regular(path) as shard:
            file = shard.fileno()
            size = os.fstat(file).st_size
            if hasattr(os, 'posix_fadvise'):
                # Without this, read-ahead would read the entire shard.
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            while offset + _HEADER_BYTES <= size:
                if time.monotonic() > deadline:
                    return ShardScan(index, offset, is_complete=False)
                length = int.from_bytes(os.pread(file, _LENGTH_BYTES, offset), 'little')
                offset += FRAME_BYTES + length
                index += 1
    except OSError as error:
        return ShardScan(
            0, fault=Fault(path, None, '', UNREADABLE, f'it cannot be read ({error.strerror})')
        )
    if offset > size:
        return ShardScan(index - 1, fault=_length_fault(path, index - 1, offset - size))
    if offset < size:
        reason = f'the shard is cut short: {plural(size - offset, "byte")} of a header left'
        return ShardScan(index, fault=Fault(path, index, '', 'cut short', reason))
    return ShardScan(index, offset)


def _length_fault(path: str, index: int, num_missing: int) -> Fault:
    reason = (
        'the shard is cut short, or the length of this record or of an earlier one is wrong: '
        f'{plural(num_missing, "byte")} too few'
    )
    if index == 0:
        start = read_start(path)
        if kind := wrong_kind_message(start, 'TFRecords'):
            return Fault(path, None, '', 'not TFRecords', kind)
        reason = f'{reason}; if it is not TFRecords: it begins with {start[:40]!r}'
    return Fault(path, index, '', 'cut short', reason)


@dataclass
class ScanSummary:
    """The result of scanning several shards.

    Attributes:
      fault: one line about the first shard with a fault.
      num_unfinished: the number of shards that were not scanned in time.
      num_records: the number of records found.
      empty_paths: the shards without records.
      file_states: file_states() before the scan.
    """

    fault: str | None = None
    num_unfinished: int = 0
    num_records: int = 0
    empty_paths: list[str] = field(default_factory=list)
    file_states: list[tuple[int, int] | None] = field(default_factory=list, compare=False)

    @property
    def is_complete(self) -> bool:
        return not self.fault and not self.num_unfinished


def file_states(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    """Returns the size and the modification time of each file; None for one that is missing."""
    states: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            states.append(None)
        else:
            states.append((status.st_size, status.st_mtime_ns))
    return states


def scan_shards(paths: Sequence[str], deadline_secs: float) -> ScanSummary:
    """Scans shards for at most deadline_secs seconds, up to the first fault."""
    summary = ScanSummary(file_states=file_states(paths))
    with concurrent.futures.ThreadPoolExecutor(_SCAN_THREADS) as executor:
        scan_until_deadline = functools.partial(
            scan_shard, deadline=time.monotonic() + deadline_secs
        )
        for path, scan in zip(
            paths, ordered_map(executor, _SCAN_THREADS, scan_until_deadline, paths), strict=True
        ):
            if scan.fault:
                return ScanSummary(str(scan.fault), file_states=summary.file_states)
            summary.num_unfinished += not scan.is_complete
            summary.num_records += scan.num_records
            if scan.is_complete and not scan.num_records:
                summary.empty_paths.append(path)
    return summary


def count_records(paths: Sequence[str]) -> int:
    """Counts the records of shards without reading them. RunError if a shard has a fault."""
    summary = scan_shards(paths, math.inf)
    if summary.fault:
        raise RunError(summary.fault)
    return summary.num_records


def mean_record_bytes(paths: Sequence[str]) -> float | None:
    """Estimates the mean size of a record from up to three of the shards; None if unknown."""
    sample_paths = {paths[index] for index in (0, len(paths) // 2, -1)}
    scans = [
        scan
        for path in sample_paths
        if not (scan := scan_shard(path, time.monotonic() + _SAMPLE_SECS)).fault
    ]
    num_records = sum(scan.num_records for scan in scans)
    return (
        sum(scan.num_bytes for scan in scans) / num_records - FRAME_BYTES if num_records else None
    )
