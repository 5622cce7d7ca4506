"""The history of results: an SQLite file to which each run adds its result. Does not import TensorFlow.

One table, `runs`, has the whole documents, and columns by which they are found. docs/compare.md describes it.
"""

import contextlib
import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import RunError, UsageError
from results.document import RESULT, Record, read_document
from results.repeats import repeat_key

# Fields of SQLite's header: the file is a history of this program ('tfcb'), and the version of its table.
_APPLICATION_ID = 0x74666362
_VERSION = 1

_TIMEOUT_SECS = 10.0

_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY,
  started_at TEXT,
  fingerprint TEXT,
  setting TEXT NOT NULL,
  model TEXT,
  images_per_second REAL,
  complete INTEGER NOT NULL,
  document TEXT NOT NULL
)
"""
_INDEX = 'CREATE INDEX IF NOT EXISTS runs_of_a_setting ON runs (fingerprint, setting, started_at)'


def add(path: str, document: Mapping[str, Any], timeout_secs: float = _TIMEOUT_SECS) -> None:
    """Adds a result to a history, and creates the file if it is missing. A result is added only once.

    Args:
      document: the result, see docs/results.md.
      timeout_secs: how long to wait for other processes that use the file.

    Raises:
      RunError: the file stays locked for that long, or cannot be written.
      UsageError: the file is not a history.
    """
    record = Record(path, document)
    rate = record.images_per_second
    row = (
        document['id'],
        record.started_at,
        record.machine.get('fingerprint'),
        setting_key(record),
        record.model,
        rate if math.isfinite(rate) else None,
        int(record.is_complete),
        json.dumps(document, allow_nan=False),
    )
    with _opened(path, timeout_secs, is_written=True) as database:
        # Takes the lock at once, so that two processes cannot both create the table.
        database.execute('BEGIN IMMEDIATE')
        if _is_new(database):
            database.execute(_TABLE)
            database.execute(_INDEX)
            database.execute(f'PRAGMA application_id = {_APPLICATION_ID}')
            database.execute(f'PRAGMA user_version = {_VERSION}')
        else:
            _check(database, path)
        database.execute(f'INSERT OR IGNORE INTO runs VALUES ({", ".join("?" * len(row))})', row)
        database.execute('COMMIT')


@dataclass(frozen=True)
class History:
    """The results of a history, in the order in which their runs started, and a line for each damaged row."""

    records: list[Record]
    problems: list[str]


def read(path: str, timeout_secs: float = _TIMEOUT_SECS) -> History:
    """Reads all results of a history.

    Raises:
      UsageError: there is no such file, it is not a history, or a newer version of this program made it.
      RunError: the file stays locked for timeout_secs.
    """
    return _read(path, '', (), timeout_secs)


def read_setting(path: str, like: Record, timeout_secs: float = _TIMEOUT_SECS) -> History:
    """Reads the results that have the setting and machine of a run. Raises the same errors as `read`."""
    where = 'WHERE fingerprint = ? AND setting = ?'
    return _read(path, where, (like.machine.get('fingerprint'), setting_key(like)), timeout_secs)


def _read(path: str, where: str, values: tuple[object, ...], timeout_secs: float) -> History:
    if not Path(path).is_file():
        raise UsageError(f'{path}: there is no such file; give a history that --history wrote')
    with _opened(path, timeout_secs, is_written=False) as database:
        _check(database, path)
        # One damaged text must not make the others unreadable.
        database.text_factory = lambda data: data.decode(errors='replace')
        rows = database.execute(f'SELECT id, document FROM runs {where} ORDER BY started_at, rowid', values).fetchall()
    found = History([], [])
    for identity, text in rows:
        try:
            record = read_document(text, f'{path}: run {identity}')
            if isinstance(record, Record):
                found.records.append(record)
        except UsageError as error:
            found.problems.append(str(error))
    return found


def setting_key(record: Record) -> str:
    """Returns a short text that identifies a setting on a machine, with any version of TensorFlow."""
    return hashlib.sha256(repeat_key(record, across_versions=True).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _opened(path: str, timeout_secs: float, *, is_written: bool) -> Iterator[sqlite3.Connection]:
    """Opens a connection that starts no transactions itself; converts SQLite's errors to one line."""
    mode, name = ('rwc', f'--history={path}') if is_written else ('ro', path)
    connection = None
    try:
        address = f'{Path(path).absolute().as_uri()}?mode={mode}'
        connection = sqlite3.connect(address, timeout=timeout_secs, isolation_level=None, uri=True)
        yield connection
    except sqlite3.OperationalError as error:
        if 'locked' in str(error) or 'busy' in str(error):
            raise RunError(
                f'{name}: another process has locked the file for {timeout_secs:g} s, and nothing was '
                'changed; try again when that process has ended'
            ) from None
        raise RunError(f'{name}: the file cannot be used ({error}); check the folder and the disk') from None
    except sqlite3.DatabaseError as error:
        raise UsageError(f'{path}: it is no history ({error}); give a file that --history wrote') from None
    finally:
        if connection:
            # Closing rolls back an open transaction.
            connection.close()


def _is_new(database: sqlite3.Connection) -> bool:
    return not _number(database, 'application_id') and not _number(database, 'schema_version')


def _check(database: sqlite3.Connection, path: str) -> None:
    if _number(database, 'application_id') != _APPLICATION_ID:
        raise UsageError(f'{path}: it is no history of this program ({RESULT}); give a file that --history wrote')
    version = _number(database, 'user_version')
    if version > _VERSION:
        raise UsageError(
            f'{path}: its version is {version}, and this program reads up to {_VERSION}; '
            'install a newer version of this program'
        )


def _number(database: sqlite3.Connection, name: str) -> int:
    return int(database.execute(f'PRAGMA {name}').fetchone()[0])
