"""Recognises files of another kind than their name says by their first bytes. Imports neither PIL nor TensorFlow."""

import codecs
import os
import re
import stat

# How many bytes of a file other_kind needs: a tar archive shows what it is in its first 512.
START_BYTES = 512
_DOWNLOAD = 'download the file itself'
_UNPACK = 'unpack it, and use the files in it'
_CONVERT = 'convert it'
_TO_JPEG = 'convert it to a JPEG'
# What a file begins with, what it is then, and what to do. The first that fits counts. Most are in the table of the
# program `file`; IDX: yann.lecun.com/exdb/mnist.
_KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb'version https://(git-lfs|hawser)\.github\.com/spec/', 'a Git LFS pointer', 'fetch the file with: git lfs pull'),
    (rb'/annex/objects/', 'a git-annex pointer', 'fetch the file with: git annex get'),
    (rb'(?i)\s*(<!doctype html|<html|<(head|body|script|meta|title)\b|<\?xml.{0,200}<html)', 'an HTML page', _DOWNLOAD),
    (rb'(?i)\s*<(\?xml|error>)', 'an XML document, perhaps the error message of a server', _DOWNLOAD),
    (rb'\s*(\{\s*("|\})|\[\s*["{\[])', 'JSON text, perhaps the error message of a server', _DOWNLOAD),
    (rb'\x1f\x8b', 'gzip-compressed data', 'decompress it with gunzip, for which its name must end in .gz'),
    (rb'\x78[\x01\x5e\x9c\xda]', 'zlib-compressed data', 'decompress it, or write it again without compression'),
    (rb'BZh[1-9]', 'bzip2-compressed data', 'decompress it with bunzip2'),
    (rb'\xfd7zXZ\x00', 'xz-compressed data', 'decompress it with unxz'),
    (rb'\x28\xb5\x2f\xfd', 'Zstandard-compressed data', 'decompress it with unzstd'),
    (rb'PK(\x03\x04|\x05\x06|\x07\x08)', 'a ZIP archive', _UNPACK),
    (rb'.{257}ustar', 'a tar archive', _UNPACK),
    (rb'PAR1', 'a Parquet file', _CONVERT),
    (rb'\x93NUMPY', 'a NumPy array', _CONVERT),
    (rb'\x89HDF\r\n\x1a\n', 'an HDF5 file', _CONVERT),
    (rb'\x80[\x02-\x05]', 'a Python pickle', _CONVERT),
    (rb'\x00\x00\x08[\x01-\x04]', 'an uncompressed idx file, as of MNIST', 'name it as one, without .gz'),
    (rb'\xff\xd8\xff', 'a JPEG image', 'make shards of images with: tf_cnn_benchmarks records'),
    (rb'\x89PNG\r\n\x1a\n', 'a PNG image', _TO_JPEG),
    (rb'GIF8[79]a', 'a GIF image', _TO_JPEG),
    (rb'RIFF.{4}WEBP', 'a WebP image', _TO_JPEG),
    (rb'.{4}ftyp(heic|heix|heim|heis|hevc|mif1|msf1)', 'a HEIC image', _TO_JPEG),
    (rb'\x00{16}', 'made of zeros at its start, as if its download had not ended', 'download it again'),
)
_TABLE = tuple((re.compile(start, re.DOTALL), noun, advice) for start, noun, advice in _KINDS)


def other_kind(start: bytes, expected: str, *, may_be_text: bool = False) -> str | None:
    """Says what a file is that is not what was expected ('TFRecords'), and what to do; None if that is unknown.

    Ask only about a file that could not be read: some kinds begin like valid records. start is its first START_BYTES,
    or all of it. may_be_text: a file of text is expected, of which only some kinds are others.
    """
    if not start:
        return f'it is empty, and not {expected}; download or copy it again'
    start = start.removeprefix(b'\xef\xbb\xbf')
    for pattern, noun, advice in _TABLE:
        if pattern.match(start):
            return f'it is {noun}, and not {expected}; {advice}'
    if may_be_text:
        return None
    try:
        # An incremental decoder accepts that the last character may be cut.
        words = codecs.getincrementaldecoder('utf-8')().decode(start[:START_BYTES]).split()
    except UnicodeDecodeError:
        return None
    is_text = all(word.isprintable() for word in words)
    return f'it is text, and not {expected}: {" ".join(words)[:60]!r}; {_DOWNLOAD}' if is_text else None


def start_of(path: str) -> bytes:
    """Returns the first START_BYTES of a regular file; none if it cannot be read."""
    try:
        # O_NONBLOCK, so as not to wait for the writer of a pipe.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), 'rb') as file:
            return file.read(START_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b''
    except OSError:
        return b''
