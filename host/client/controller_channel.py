# SPDX-License-Identifier: Apache-2.0
"""The connection to whichever controller of a fabric answers: the first one, one started anew, or a standby."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
import msgspec

from netfold.host.client.hang_watch import HangWatch
from netfold.host.client.stream_listener import CLOSE_SECONDS
from netfold.host.errors import JoinRefused
from netfold.host.forked import disconnect, ends_in_child
from netfold.rpc import channel as tls
from netfold.rpc.certificates import TlsError

log = logging.getLogger("netfold")

AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN})
"""Status codes of calls that no controller, or only one that was shutting down, has answered; any other code is an
answer."""


class ControllerChannel:
    """A gRPC channel to one of several addresses, of which one has a controller at a time.

    Raises TlsError, and JoinRefused in a process that was forked from one with a channel.

    addresses  "host:port" or "unix:/path" each, tried in turn
    metadata   what every call carries
    """

    _works = True
    """False if gRPC does not work in this process: after a fork beside an open channel, calls never end."""

    def __init__(self, addresses: Sequence[str], metadata: tuple[tuple[str, str], ...] = ()) -> None:
        if not ControllerChannel._works:
            raise JoinRefused(f"{','.join(addresses)}: this process was forked from a rank of a job, and gRPC works in "
                              "that one alone: fork before the first join, or start a process of its own (spawn)")
        if not addresses:
            raise ValueError("no address of a controller: expected host:port or unix:/path, or several with commas")
        for address in addresses:
            tls.check(address, token=bool(metadata))
        self._addresses = list(addresses)
        self._numbers = [number for address in addresses for number in in_numbers(address)]
        """The same addresses as numbers, without host names: a forked child cannot resolve names."""
        self._metadata = metadata
        self._place = 0
        self._lock = threading.Lock()
        self._closed = False
        self.channel = tls.channel(self._addresses[0])
        """The current channel."""
        self._hang_watch: HangWatch | None = None
        self._watch_for_hangs()
        ends_in_child(self)

    def after_fork(self) -> None:
        """This is a forked child, which does not have gRPC's threads: the channel is never freed here, since that waits
        for them, and the connection is let go of where gRPC has not done so (GRPC_ENABLE_FORK_SUPPORT=0)."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.channel))
        ControllerChannel._works &= self._closed
        self._lock, self._closed = threading.Lock(), True
        disconnect(connections_to(self._numbers))

    @property
    def addresses(self) -> list[str]:
        """The addresses that are tried."""
        return list(self._addresses)

    def learn(self, addresses: Sequence[str]) -> None:
        """Adds addresses at which a controller may answer later; those are left out, with a warning, to which a token
        would go in the clear."""
        for address in addresses:
            if address in self._addresses:
                continue
            try:
                tls.check(address, token=bool(self._metadata))
            except TlsError as error:
                log.warning("another address of the controller is not used: %s", error)
                continue
            with self._lock:
                self._addresses.append(address)
                self._numbers += in_numbers(address)
        self._watch_for_hangs()

    def _watch_for_hangs(self) -> None:
        """Go on from a controller that hangs, where another one may take over."""
        if len(self._addresses) > 1 and self._hang_watch is None:
            self._hang_watch = HangWatch(self._here_and_others, self._on_hang)
            self._hang_watch.start()

    def _here_and_others(self) -> tuple[str, list[str]]:
        with self._lock:
            return self._addresses[self._place], [*self._addresses[:self._place], *self._addresses[self._place + 1:]]

    def _on_hang(self) -> None:
        log.warning("the controller at %s hangs, and another one serves: going on to that", self._here_and_others()[0])
        self.go_on(self.channel)

    def go_on(self, failed: grpc.Channel) -> None:
        """Goes over to a new channel to the next address, after calls on ``failed`` were not answered; calls that are
        under way there end with CANCELLED.  Does nothing where that has happened meanwhile."""
        with self._lock:
            if self.channel is not failed or self._closed:
                return
            self._place = (self._place + 1) % len(self._addresses)
            self.channel = tls.channel(self._addresses[self._place])
        _close(failed)

    def unary(self, method: str, answer: Any) -> Callable[..., Any]:
        """A method, given as ``service/method``, with one answer, on the channel of the moment when it is called."""
        decode = msgspec.json.Decoder(answer).decode

        def call(request: msgspec.Struct, timeout: float) -> Any:
            while True:
                channel = self.channel
                try:
                    return channel.unary_unary(f"/{method}", msgspec.json.encode, decode)(
                        request, timeout=timeout, metadata=self._metadata
                    )
                except ValueError:  # it is closed: by this rank, or because another call found nobody there
                    if self.channel is channel:
                        raise

        return call

    def stream(self, method: str, answer: Any) -> Callable[..., Any]:
        """A method, given as ``service/method``, with a stream of answers, on the channel of the moment when it is
        called."""
        decode = msgspec.json.Decoder(answer).decode

        def call(request: msgspec.Struct) -> Any:
            return self.channel.unary_stream(f"/{method}", msgspec.json.encode, decode)(
                request, metadata=self._metadata
            )

        return call

    def close(self) -> None:
        """Closes the channel, waiting ``CLOSE_SECONDS`` at most, because gRPC sets no bound to it and a rank that has
        left must not hang."""
        with self._lock:
            self._closed = True
        if self._hang_watch is not None:
            self._hang_watch.close()
        closing = _close(self.channel)
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("the connection to %s did not close within %g s; left behind", self._addresses[self._place],
                        CLOSE_SECONDS)


def in_numbers(address: str) -> list[str]:
    """The address, or where it has a host's name those that the name stands for now."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:"):
        return [address]
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:  # gRPC's own error names it
        return []
    return [f"{one[4][0]}:{port}" for one in found]


def connections_to(addresses: Sequence[str]) -> Iterator[int]:
    """Descriptors of this process that are connected to one of these addresses, which have no names of hosts."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                peer = sock.getpeername()
            for address in addresses:
                host, _, port = address.rpartition(":")
                if address.startswith("unix:"):
                    same = isinstance(peer, str) and peer == address.removeprefix("unix:").replace("//", "", 1)
                else:
                    same = (isinstance(peer, tuple) and str(peer[1]) == port
                            and peer[0].removeprefix("::ffff:") == host.strip("[]"))
                if same:
                    yield int(name)


def _close(channel: grpc.Channel) -> threading.Thread:
    closing = threading.Thread(target=channel.close, name="netfold-close", daemon=True)
    closing.start()
    return closing
