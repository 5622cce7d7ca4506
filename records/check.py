"""Finds faults in shards, whichever program wrote them. TensorFlow is imported when a check starts."""

import concurrent.futures
import contextlib
import functools
import itertools
import math
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from errors import RunError, counted
from records.parallel import num_cores, ordered_map

# The framing of a TFRecord: 8 bytes of length, 4 of its checksum, the data, 4 of its checksum
# (tensorflow/core/lib/io/record_writer.h).
_HEADER_BYTES = 12
_FRAME_BYTES = _HEADER_BYTES + 4
_LENGTH = struct.Struct('<Q')
# More threads than cores, since reading the lengths one by one mostly waits for the disk.
_WALKING_THREADS = 16
_JPEG_START = b'\xff\xd8\xff'


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
      path: the shard. record: its index in the shard, from 0; None if the fault concerns the whole shard.
      filename: the image file that the record names, or ''.
      kind: one of a few fixed names, by which faults are counted. reason: the fault in words.
    """

    path: str
    record: int | None
    filename: str
    kind: str
    reason: str

    def __str__(self) -> str:
        place = '' if self.record is None else f', record {self.record}'
        return f'{self.path}{place}{f" ({self.filename})" if self.filename else ""}: {self.reason}'


@dataclass(frozen=True)
class Checked:
    """The result for one record, or for the end of a shard if that is faulty.

    num_bytes is the size of the record in the shard (0 for an end); image_bytes of them are the encoded image.
    """

    num_bytes: int
    image_bytes: int = 0
    label: int | None = None
    fault: Fault | None = None


@dataclass(frozen=True)
class _Framed:
    path: str
    index: int
    data: bytes


_CUT_HEADER = 'the shard is cut short: {} of a header left'


def _records(path: str) -> Iterator[_Framed | Fault]:
    """Yields the records of a shard, and last the fault, if any, that hides the rest of it or concerns all of it."""
    import tensorflow.compat.v1 as tf

    index, end = 0, 0
    try:
        size = tf.io.gfile.stat(path).length
        for data in _quietly(tf, lambda: tf.io.tf_record_iterator(path)):
            yield _Framed(path, index, data)
            index, end = index + 1, end + _FRAME_BYTES + len(data)
    except tf.errors.DataLossError as error:
        if 'truncated' in error.message:
            yield Fault(path, index, '', 'cut short', f'the shard is cut short (TensorFlow: {error.message})')
        else:
            reason = f'its checksum is wrong; what follows it cannot be read (TensorFlow: {error.message})'
            yield Fault(path, index, '', 'corrupt', reason)
    except tf.errors.OpError as error:
        yield Fault(path, None, '', 'unreadable', f'it cannot be read ({error.message})')
    else:
        # If a shard ends within the header of a record, TensorFlow treats it as ending before that header.
        if end != size:
            reason = _CUT_HEADER.format(counted(size - end, 'byte'))
            yield Fault(path, index, '', 'cut short', reason)
        elif not index:
            yield Fault(path, None, '', 'empty shard', 'it has no record')


def _quietly(tf: Any, make: Callable[[], Any]) -> Any:
    """Calls make, which creates a tf_record_iterator, without that function's deprecation notice.

    It is the only public record reader that needs neither a session nor eager mode.
    """
    before = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.ERROR)
    try:
        return make()
    finally:
        tf.logging.set_verbosity(before)


def _jpeg_decoder(num_threads: int) -> tuple[Any, Callable[[bytes], Any]]:
    """Returns a session, and a function that decodes a JPEG in it and raises tf.errors.OpError if that fails."""
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        jpeg = tf.placeholder(tf.string, [])
        # Fetching the shape decodes the image without copying its pixels to Python.
        shape = tf.shape(tf.raw_ops.DecodeJpeg(contents=jpeg, channels=3))
    config = tf.ConfigProto(device_count={'GPU': 0}, inter_op_parallelism_threads=num_threads)
    session = tf.Session(graph=graph, config=config)
    return session, session.make_callable(shape, feed_list=[jpeg])


def _check_record(decode: Callable[[bytes], Any], num_classes: int, item: _Framed | Fault) -> Checked:
    if isinstance(item, Fault):
        return Checked(0, fault=item)
    import tensorflow.compat.v1 as tf

    # protobuf ships no types.
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    size = len(item.data) + _FRAME_BYTES
    try:
        feature = tf.train.Example.FromString(item.data).features.feature
    except DecodeError:
        fault = Fault(item.path, item.index, '', 'no Example', 'it is not a tf.train.Example')
        return Checked(size, fault=fault)

    def values(name: str, kind: str) -> Sequence[Any]:
        return getattr(feature[name], kind).value if name in feature else ()

    images, labels = values('image/encoded', 'bytes_list'), values('image/class/label', 'int64_list')
    image, label = images[0] if images else b'', labels[0] if labels else None
    names = values('image/filename', 'bytes_list')
    wrong = _fault_of(decode, num_classes, image, label)
    filename = names[0].decode(errors='backslashreplace') if names else ''
    return Checked(size, len(image), label, Fault(item.path, item.index, filename, *wrong) if wrong else None)


def _fault_of(
    decode: Callable[[bytes], Any], num_classes: int, image: bytes, label: int | None
) -> tuple[str, str] | None:
    """Returns the kind and reason of the first fault in an image and its label, or None."""
    import tensorflow.compat.v1 as tf

    if not image:
        return 'no image', 'it has no image (image/encoded)'
    if label is None:
        return 'no label', 'it has no label (image/class/label)'
    if not 0 <= label < num_classes:
        return 'label out of range', f'label {label} is outside 0..{num_classes - 1}'
    # TensorFlow's DecodeJpeg also decodes a PNG, but its fused decoding and cropping does not.
    if not image.startswith(_JPEG_START):
        return 'not a JPEG', f'the image is not a JPEG, it begins with {image[:4]!r}'
    try:
        decode(image)
    except tf.errors.OpError:
        return 'undecodable JPEG', f'the JPEG of {counted(len(image), "byte")} cannot be decoded'
    return None


def check_shards(paths: Sequence[str], num_classes: int, num_threads: int = 0) -> Iterator[Checked]:
    """Checks shards record by record, in order: checksums, features, label, and that TensorFlow decodes the JPEG.

    A record needs a JPEG in image/encoded and one label in [0, num_classes) in image/class/label; grey and CMYK JPEGs
    are accepted, since TensorFlow decodes them to three channels.

    Args:
      num_threads: how many threads decode; 0: one for each core.
    """
    num_threads = num_threads or num_cores()
    session, decode = _jpeg_decoder(num_threads)
    with contextlib.closing(session), concurrent.futures.ThreadPoolExecutor(num_threads) as executor:
        items = itertools.chain.from_iterable(map(_records, paths))
        yield from ordered_map(executor, num_threads, functools.partial(_check_record, decode, num_classes), items)


def first_fault(paths: Sequence[str], num_classes: int, deadline_secs: float) -> str | None:
    """Describes the first fault in shards in one line; None if none was found within deadline_secs seconds.

    First looks for truncated and corrupt shards, which takes no longer than reading them, then checks the records.
    """
    deadline = time.monotonic() + deadline_secs
    framing = (item if isinstance(item, Fault) else None for path in paths for item in _records(path))
    contents = (checked.fault for checked in check_shards(paths, num_classes))
    fault: Fault | None
    for fault in itertools.chain(framing, contents):
        if fault:
            return str(fault)
        if time.monotonic() > deadline:
            return None
    return None


def first_cut_shard(paths: Sequence[str], deadline_secs: float) -> tuple[str | None, int]:
    """Finds the first shard that does not end where its last record ends, without reading the records.

    TensorFlow's readers accept a shard that ends within the header of a record, and lose that record silently.

    Returns:
      One line about the shard, or None; and the number of shards not checked within deadline_secs seconds.
    """
    num_unknown = 0
    walk = functools.partial(_walk, time.monotonic() + deadline_secs)
    with concurrent.futures.ThreadPoolExecutor(_WALKING_THREADS) as executor:
        for found in ordered_map(executor, _WALKING_THREADS, walk, paths):
            if isinstance(found, Fault):
                return str(found), 0
            num_unknown += found is None
    return None, num_unknown


def count_records(paths: Sequence[str]) -> int:
    """Counts the records of shards by the record lengths in them, without reading the records.

    Raises:
      RunError: a shard is truncated or cannot be read.
    """
    total = 0
    with concurrent.futures.ThreadPoolExecutor(_WALKING_THREADS) as executor:
        for found in ordered_map(executor, _WALKING_THREADS, functools.partial(_walk, math.inf), paths):
            if isinstance(found, Fault):
                raise RunError(str(found))
            total += found or 0
    return total


def _walk(deadline: float, path: str) -> Fault | int | None:
    """Steps through a shard from one record length to the next.

    Returns:
      The fault that it found, or the number of records, or None if time.monotonic() passed the deadline.
    """
    index = end = 0
    try:
        with open(path, 'rb', buffering=0) as shard:
            size, file = os.fstat(shard.fileno()).st_size, shard.fileno()
            if hasattr(os, 'posix_fadvise'):
                # Without this, read-ahead would read the entire shard.
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            while end + _HEADER_BYTES <= size:
                if time.monotonic() > deadline:
                    return None
                (length,) = _LENGTH.unpack(os.pread(file, _LENGTH.size, end))
                end += _FRAME_BYTES + length
                index += 1
    except OSError as error:
        return Fault(path, None, '', 'unreadable', f'it cannot be read ({error.strerror})')
    if end > size:
        reason = f'the shard is cut short, or the length of the record is wrong: {counted(end - size, "byte")} too few'
        return Fault(path, index - 1, '', 'cut short', reason)
    return (
        index if end == size else Fault(path, index, '', 'cut short', _CUT_HEADER.format(counted(size - end, 'byte')))
    )
