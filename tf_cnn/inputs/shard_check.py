"""Finds faults in shards written by any program. TensorFlow is imported when a check starts."""

import concurrent.futures
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_cnn.graph.op_errors import error_cause
from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.inputs.framing import FRAME_BYTES, UNREADABLE, Fault, scan_shard
from tf_cnn.machine.processors import process_cores
from tf_cnn.system.errors import plural
from tf_cnn.system.parallel import ordered_map

_JPEG_START = b'\xff\xd8\xff'
_IMAGE, _LABEL, _FILENAME = 'image/encoded', 'image/class/label', 'image/filename'
_Reader = Callable[[bytes], Any]


@dataclass(frozen=True)
class RecordCheck:
    """The result for one record, or for the faulty rest of a shard (num_bytes=0)."""

    num_bytes: int
    label: int | None = None
    fault: Fault | None = None


# The path of a shard, the index of a record and its data.
_RawRecord = tuple[str, int, bytes]


def _read_records(path: str) -> Iterator[_RawRecord | Fault]:
    """Yields the records of a shard, then the fault, if any, that prevents reading further."""
    import tensorflow.compat.v1 as tf

    index = 0
    scan = scan_shard(path)
    if scan.fault and scan.fault.kind == UNREADABLE:
        # TensorFlow would wait for the writer of a pipe.
        yield scan.fault
        return
    verbosity = tf.logging.get_verbosity()
    try:
        # The only public reader that needs no session; it logs that it is deprecated.
        tf.logging.set_verbosity(tf.logging.ERROR)
        try:
            records = tf.io.tf_record_iterator(path)
        finally:
            tf.logging.set_verbosity(verbosity)
        # TensorFlow must not read a wrong length.
        for data in itertools.islice(records, scan.num_records):
            yield path, index, data
            index += 1
    except tf.errors.DataLossError as error:
        if 'truncated' in error.message:
            yield Fault(
                path,
                index,
                '',
                'cut short',
                f'the shard is cut short (TensorFlow: {error.message})',
            )
        else:
            reason = (
                'its checksum is wrong; what follows it cannot be read (TensorFlow: '
                f'{error.message})'
            )
            yield Fault(path, index, '', 'corrupt', reason)
    except tf.errors.OpError as error:
        yield Fault(path, None, '', UNREADABLE, f'it cannot be read ({error.message})')
    else:
        if scan.fault:
            yield scan.fault
        elif not index:
            yield Fault(path, None, '', 'empty shard', 'it has no record')


@contextlib.contextmanager
def _open_readers(num_classes: int, num_threads: int) -> Iterator[tuple[_Reader, _Reader]]:
    """Yields functions that read a record and decode a JPEG with the ops of a training run.

    They raise tf.errors.OpError if an op fails.
    """
    import_tensorflow()
    import tensorflow.compat.v1 as tf

    import preprocessing

    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        record, jpeg = tf.placeholder(tf.string, []), tf.placeholder(tf.string, [])
        encoded, _, boxes = preprocessing.parse_example(record, num_classes, with_boxes=True)
        # Fetching the shape decodes the image without copying its pixels to Python.
        shape, size = (
            tf.shape(tf.raw_ops.DecodeJpeg(contents=data, channels=3)) for data in (encoded, jpeg)
        )
        window = preprocessing.random_window(shape, boxes, tf.constant([0, 0], tf.int64))
    config = tf.ConfigProto(device_count={'GPU': 0}, inter_op_parallelism_threads=num_threads)
    with contextlib.closing(tf.Session(graph=graph, config=config)) as session:
        yield (
            session.make_callable(window, feed_list=[record]),
            session.make_callable(size, feed_list=[jpeg]),
        )


def _check_record(
    readers: tuple[_Reader, _Reader], num_classes: int, item: _RawRecord | Fault
) -> RecordCheck:
    if isinstance(item, Fault):
        return RecordCheck(0, fault=item)
    import tensorflow.compat.v1 as tf

    # protobuf ships no types.
    from google.protobuf.message import DecodeError

    path, index, data = item
    num_bytes = len(data) + FRAME_BYTES
    try:
        # Protobuf refuses feature names that are not UTF-8, although TensorFlow accepts them as
        # bytes.
        feature = dict(tf.train.Example.FromString(data).features.feature)
    except (DecodeError, UnicodeDecodeError):
        fault = Fault(path, index, '', 'no Example', 'it is not a tf.train.Example')
        return RecordCheck(num_bytes, fault=fault)
    image, label = (
        _single_value(feature.get(name), kind)
        for name, kind in ((_IMAGE, 'bytes_list'), (_LABEL, 'int64_list'))
    )
    kind_and_reason = _record_fault(readers, num_classes, data, feature, image, label)
    filenames = feature[_FILENAME].bytes_list.value if _FILENAME in feature else ()
    filename = filenames[0].decode(errors='backslashreplace') if filenames else ''
    return RecordCheck(
        num_bytes,
        label,
        Fault(path, index, filename, *kind_and_reason) if kind_and_reason else None,
    )


def _single_value(feature: Any, kind: str) -> Any:
    values: Sequence[Any] = getattr(feature, kind).value if feature is not None else ()
    return values[0] if len(values) == 1 else None


def _record_fault(
    readers: tuple[_Reader, _Reader],
    num_classes: int,
    record: bytes,
    feature: Mapping[str, Any],
    image: bytes | None,
    label: int | None,
) -> tuple[str, str] | None:
    """Returns the kind and reason of a record's first fault, or None.

    image and label are None unless their feature has exactly one value.
    """
    import tensorflow.compat.v1 as tf

    if not image:
        return (
            'no image',
            f'{_IMAGE} is not one value of bytes; the record has {", ".join(sorted(feature)[:9])}',
        )
    if label is None:
        return (
            'no label',
            f'{_LABEL} is not one integer; the record has {", ".join(sorted(feature)[:9])}',
        )
    if not 0 <= label < num_classes:
        return 'label out of range', f'label {label} is outside 0..{num_classes - 1}'
    # TensorFlow's DecodeJpeg also decodes a PNG, but its fused decoding and cropping does not.
    if not image.startswith(_JPEG_START):
        return 'not a JPEG', f'{_IMAGE} is not a JPEG; it begins with {image[:8]!r}'
    read, decode = readers
    try:
        read(record)
    except UnicodeDecodeError:
        # TensorFlow's own message would quote the whole record.
        return 'no Example', 'TensorFlow cannot parse it as a tf.train.Example'
    except tf.errors.OpError as error:
        try:
            decode(image)
        except tf.errors.OpError:
            return 'undecodable JPEG', f'the JPEG of {plural(len(image), "byte")} cannot be decoded'
        return 'unreadable Example', f'TensorFlow cannot read it: {error_cause(error)}'
    return None


def check_shards(
    paths: Sequence[str], num_classes: int, num_threads: int = 0
) -> Iterator[RecordCheck]:
    """Checks shards record by record, in order: checksums, features, labels and JPEGs.

    A record needs a JPEG in image/encoded and one label in [0, num_classes) in image/class/label;
    grey and CMYK JPEGs are accepted, since TensorFlow decodes them to three channels. Bounding
    boxes may be missing, but not damaged. num_threads threads decode; 0 uses one per core.
    """
    num_threads = num_threads or len(process_cores())
    with (
        _open_readers(num_classes, num_threads) as readers,
        concurrent.futures.ThreadPoolExecutor(num_threads) as executor,
    ):
        items = itertools.chain.from_iterable(map(_read_records, paths))
        yield from ordered_map(
            executor, num_threads, functools.partial(_check_record, readers, num_classes), items
        )
