"""Serves the page of results on this machine, and makes it again when results come. Needs the extra `report`."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from errors import UsageError

HOST = '127.0.0.1'
_POLL_SECS = 1.0
_NAMES = (HOST, 'localhost')


class NotNowError(Exception):
    """The page cannot be made now, and may be in a second. Its argument is the HTML to show if there is none yet."""


class PageServer:
    """A server of one page on 127.0.0.1.

    Args:
      paths: the files and folders that are watched: all *.json files in them. make: returns the HTML for a
        version, or raises NotNowError.
      port: 0 for any that is free.

    Attributes:
      address: the URL of the page.

    Raises:
      UsageError: the port is taken, or this user may not use it.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[str], str], port: int) -> None:
        self._paths = paths
        self._make = make
        self._version = ''
        self._page = b''
        try:
            self._server = ThreadingHTTPServer((HOST, port), _handler(self))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(
                f'--port={port}: it cannot be opened ({reason}); write another one, or --port=0 for any that is free'
            ) from None
        self.address = f'http://{HOST}:{self._server.server_address[1]}/'

    @property
    def version(self) -> str:
        return self._version

    @property
    def page(self) -> bytes:
        return self._page

    def refresh(self) -> bool:
        """Makes the page again if the files are others than before; returns whether it did."""
        version = _version_of(self._paths)
        if version == self._version:
            return False
        try:
            self._page = self._make(version).encode()
        except NotNowError as error:
            self._page = self._page or str(error).encode()
            return False
        self._version = version
        return True

    def run(self, told: Callable[[], None] = lambda: None) -> None:
        """Serves until an exception such as KeyboardInterrupt comes.

        Args:
          told: called each time that the page was made again, but the first.
        """
        self.refresh()
        thread = threading.Thread(target=self._server.serve_forever, name='page', daemon=True)
        thread.start()
        try:
            while True:
                time.sleep(_POLL_SECS)
                if self.refresh():
                    told()
        finally:
            self._server.shutdown()
            self._server.server_close()


def _handler(server: PageServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_GET(self) -> None:
            # A page of another site must not read results by a name of its own that leads here.
            if self.headers.get('Host', '').rpartition(':')[0] not in _NAMES:
                self._answer(HTTPStatus.FORBIDDEN, b'unknown host\n', 'text/plain')
            elif self.path == '/':
                self._answer(HTTPStatus.OK, server.page, 'text/html')
            elif self.path == '/version':
                self._answer(HTTPStatus.OK, server.version.encode(), 'text/plain')
            else:
                self._answer(HTTPStatus.NOT_FOUND, b'there is only /\n', 'text/plain')

        def log_message(self, format: str, *args: object) -> None:
            """Requests are nobody's concern."""

        def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header('Content-Type', f'{kind}; charset=utf-8')
            self.send_header('Content-Length', str(len(body)))
            self.send_header('Cache-Control', 'no-store')
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _version_of(paths: Sequence[Path]) -> str:
    """Changes with each file that comes, goes or changes."""
    found = []
    for path in paths:
        for file in sorted(path.rglob('*.json')) if path.is_dir() else [path]:
            try:
                facts = os.stat(file)
            except OSError:
                # It went while we looked.
                continue
            found.append((str(file), facts.st_mtime_ns, facts.st_size))
    return f'{hash(tuple(found)) & (2**64 - 1):016x}'
