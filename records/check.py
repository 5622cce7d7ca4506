"""Finds faults in shards, whichever program wrote them. TensorFlow is imported when a check starts."""

import concurrent.futures
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from errors import counted
from records.framing import FRAME_BYTES, Fault, walk
from records.parallel import num_cores, ordered_map

_JPEG_START = b'\xff\xd8\xff'


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


def _records(path: str) -> Iterator[_Framed | Fault]:
    """Yields the records of a shard, and last the fault, if any, that hides the rest of it or concerns all of it."""
    import tensorflow.compat.v1 as tf

    index = 0
    walked = walk(path)
    try:
        # TensorFlow must not see a length that is wrong.
        records = _quietly(tf, lambda: tf.io.tf_record_iterator(path))
        for data in itertools.islice(records, walked.num_records):
            yield _Framed(path, index, data)
            index += 1
    except tf.errors.DataLossError as error:
        if 'truncated' in error.message:
            yield Fault(path, index, '', 'cut short', f'the shard is cut short (TensorFlow: {error.message})')
        else:
            reason = f'its checksum is wrong; what follows it cannot be read (TensorFlow: {error.message})'
            yield Fault(path, index, '', 'corrupt', reason)
    except tf.errors.OpError as error:
        yield Fault(path, None, '', 'unreadable', f'it cannot be read ({error.message})')
    else:
        if walked.fault:
            yield walked.fault
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

    size = len(item.data) + FRAME_BYTES
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
