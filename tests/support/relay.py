"""A fixed address that passes connections to changing servers, like that of a task that is killed and restarted.

TensorFlow cannot stop a server while its process lives; a relay makes it unreachable for its clients instead.
"""

import contextlib
import socket
import threading


class Relay:
    """Passes connections on to a server, or closes them at once if there is none. Listens until the process ends.

    Attributes:
      address: the HOST:PORT at which it listens.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._lock = threading.Lock()
        self._server: str | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server: str | None) -> None:
        """Passes new connections to the server at this HOST:PORT, or to none. Closes all present connections."""
        with self._lock:
            self._server = server
            for end in self._open:
                _shut(end)
            self._open.clear()

    def _accept(self) -> None:
        while True:
            self._connect(self._listener.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            try:
                if self._server is None:
                    raise ConnectionRefusedError
                host, port = self._server.split(':')
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                return
            self._open += [client, server]
        for source, sink in (client, server), (server, client):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
