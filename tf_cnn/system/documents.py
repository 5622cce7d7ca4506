"""Reads JSON and TOML. Any damaged document is one DocumentError in one line."""

import codecs
import json
from pathlib import Path
from typing import Any, TypeVar, overload

import msgspec

from tf_cnn.system.errors import read_file

T = TypeVar('T')


class DocumentError(ValueError):
    """A text does not have the expected content. The message is one line, without the file name."""


@overload
def decode_json(text: str | bytes, kind: type[T], *, strict: bool = True) -> T: ...
@overload
def decode_json(text: str | bytes, kind: Any, *, strict: bool = True) -> Any: ...


def decode_json(text: str | bytes, kind: Any, *, strict: bool = True) -> Any:
    """Decodes JSON as a type, like msgspec; raises DocumentError.

    If not strict, a string such as "3" is also accepted as a number.
    """
    try:
        return msgspec.json.decode(text, type=kind, strict=strict)
    except (RecursionError, ValueError) as error:
        raise _document_error(error) from None


def as_json(value: Any) -> Any:
    """Converts a value, such as a section, to JSON values; nan and infinity become null."""
    # Python's json also writes the lone surrogates of paths that are not UTF-8.
    return json.loads(json.dumps(msgspec.to_builtins(value)), parse_constant=lambda name: None)


def read_json(path: str | Path, kind: type[T]) -> T:
    """Reads a JSON file as a type; raises FileNotFoundError or DocumentError."""
    return decode_json(_read_document(path), kind)


def read_toml(path: str | Path, kind: type[T]) -> T:
    """Reads a TOML file as a type; raises FileNotFoundError or DocumentError."""
    try:
        return msgspec.toml.decode(_read_document(path), type=kind)
    except (RecursionError, ValueError) as error:
        raise _document_error(error) from None


def read_text(path: str | Path, most_bytes: int = 64 << 20) -> str:
    """Returns the text of a file or pipe that a user names.

    Raises OSError if read_file does, and UnicodeDecodeError if decode_text does.
    """
    return decode_text(read_file(path, most_bytes))


def decode_text(data: bytes, errors: str = 'strict') -> str:
    """Decodes UTF-8, or UTF-16 with a byte order mark as PowerShell writes it.

    errors: as in bytes.decode.
    """
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode('utf-16' if is_utf_16 else 'utf-8-sig', errors)


def _read_document(path: str | Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DocumentError(error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        raise DocumentError(str(error)) from None


def _document_error(error: Exception) -> DocumentError:
    reason = (
        'it is nested too deeply'
        if isinstance(error, RecursionError)
        else ' '.join(str(error).split())
    )
    return DocumentError(reason)
