"""Recognises by its first bytes what a file with the wrong content really is.

Imports neither PIL nor TensorFlow.
"""

import errno
import io
import os
import re
import stat

# The bytes that wrong_kind_message needs: the mark of a tar archive is within the first 512.
START_BYTES = 512
# The first bytes of a file, its kind, and what to do. The first match counts. Most are in the table
# of the program `file`; IDX: yann.lecun.com/exdb/mnist.
_KINDS = (
    (
        rb'version https://git-lfs\.github\.com/spec/',
        'a Git LFS pointer',
        'fetch the file with: git lfs pull',
    ),
    (rb'(?i)\s*(<!doctype html|<html)', 'an HTML page', 'download the file itself'),
    (
        rb'\x1f\x8b',
        'gzip-compressed data',
        'decompress it with gunzip (the name must end in .gz)',
    ),
    # RFC 1950, section 2.2: deflate with a window of 32 KB. Some programs compress TFRecords so.
    (
        rb'\x78[\x01\x5e\x9c\xda]',
        'zlib-compressed data',
        "decompress it with Python's zlib.decompress, or write it again without compression",
    ),
    (rb'BZh[1-9]', 'bzip2-compressed data', 'decompress it with bunzip2'),
    (rb'\xfd7zXZ\x00', 'xz-compressed data', 'decompress it with unxz'),
    (rb'\x28\xb5\x2f\xfd', 'zstd-compressed data', 'decompress it with unzstd'),
    (rb'\x04\x22\x4d\x18', 'lz4-compressed data', 'decompress it with unlz4'),
    (rb'PK\x03\x04', 'a ZIP archive', 'unpack it, and use the files in it'),
    (rb'(?s:.{257})ustar', 'a tar archive', 'unpack it, and use the files in it'),
    (
        rb'\x00\x00\x08[\x01-\x04]',
        'an uncompressed idx file, as of MNIST',
        'remove .gz from its name',
    ),
    (rb'\xff\xd8\xff', 'a JPEG image', 'make shards of images with: tf_cnn_benchmarks records'),
)


def wrong_kind_message(start: bytes, expected: str) -> str | None:
    """Says what kind of file begins like this, and what to do; None if unknown.

    Call it only for a file that could not be read: some kinds begin like valid records.

    Args:
      start: the first START_BYTES of the file.
      expected: the kind that was expected, such as 'TFRecords'.
    """
    if not start:
        return f'it is empty, not {expected}; download or copy it again'
    for pattern, noun, advice in _KINDS:
        if re.match(pattern, start):
            return f'it is {noun}, not {expected}; {advice}'
    return None


def open_regular(path: str) -> io.FileIO:
    """Opens a file for unbuffered reading. Raises OSError if it is a pipe or a device."""
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, 'it is not a regular file')
    return file


def read_start(path: str) -> bytes:
    """Returns the first START_BYTES of a regular file; b'' if it cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(START_BYTES)
    except OSError:
        return b''
