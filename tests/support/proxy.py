"""A proxy between a server and its database, which can be cut, and mended again."""

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class Proxy:
    """Listens on a port of loopback. ``cut``: nothing goes through any more, and nobody is told. ``deaf``: what goes to
    the database arrives, and no reply comes back."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self.is_deaf = False
        self._sockets: list[socket.socket] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        self.is_deaf = False
        self._open.set()

    def break_connections(self) -> None:
        """Those that there are."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def break_soon(self, when: Callable[[], bool]) -> threading.Thread:
        """Break them as soon as this is true."""

        def wait_and_break() -> None:
            while not when():
                time.sleep(0.01)
            self.break_connections()

        thread = threading.Thread(target=wait_and_break, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        self._closed = True
        self._listener.close()
        self.mend()
        self.break_connections()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._open.wait()
        try:
            far = self._connect()
        except OSError:
            near.close()
            return
        self._sockets += [near, far]
        with selectors.DefaultSelector() as ready, suppress(OSError, ValueError):
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select(1.0):
                    self._open.wait()
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        raise OSError
                    if not (self.is_deaf and key.fileobj is far):
                        key.data.sendall(data)
        for one in (near, far):
            with suppress(OSError):
                one.close()
