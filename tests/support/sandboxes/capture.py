# SPDX-License-Identifier: Apache-2.0
"""Every frame on every interface of this network namespace, as the wire would show it."""

from __future__ import annotations

import socket
import threading
from types import TracebackType

ETH_P_ALL = 0x0003
_SO_RCVBUFFORCE = 33
_BUFFER = 64 << 20


class Capture:
    """Collects (interface, frame) in the background between `with` and its end; frames come in twice, once for each end
    of a veth pair that lies in this namespace."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes]] = []
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        except PermissionError:  # in a user namespace
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._bell, self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._collect, name="capture")

    def __enter__(self) -> Capture:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.close()
        self._thread.join(20)
        self._bell.close()
        self._socket.close()

    def _collect(self) -> None:
        import selectors

        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._socket in ready:
                    frame, (interface, *_) = self._socket.recvfrom(65536)
                    self.frames.append((interface, frame))
                elif self._bell in ready:  # only once the socket is empty
                    return
