# SPDX-License-Identifier: Apache-2.0
"""Carries frames between the agent of a guest, or of another machine, and the programs here that use it: one thread
each."""

from __future__ import annotations

import collections
import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from netfold.topo.agents.frames import BUSY_SECONDS, FROM_GUEST, Backlog, BadFrame, Kind, Splitter, pack

log = logging.getLogger(__name__)

DOOR_CONNECTIONS = 64
"""Most connections at once at a door that every user of this machine reaches; one more replaces the door's oldest."""
UNIX_DOOR_CONNECTIONS = 8192
"""The same of a door in a folder that is this user's alone: ranks, and switches."""
ALIVE_SECONDS = 1.0
"""Seconds between frames that tell another machine that this side is alive."""


@dataclass
class _Peer:
    """A program here that talks to the guest: `attach`, or the other end of a connection that is carried."""

    socket: socket.socket
    channel: int
    splitter: Splitter | None = None
    """Splits the frames of `attach`; None for a connection's plain bytes."""
    waiting: Backlog = field(default_factory=Backlog)
    """Data that it has not read yet."""
    held: bool = False
    """True if the agent's side accepts no more of its data for now."""
    closing: bool = False
    """True if it is to be closed once it has read that data."""
    door: str | None = None
    """The name of the door to which it came."""


class Line(threading.Thread):
    """Carries frames until either end is closed.

    guest    the line to the agent
    place    path of the socket at which programs ask for commands (attach.py)
    sockets  unix sockets here that the guest reaches, in the order that the agent knows
    doors    listening sockets here, by the names of the sockets there to which their connections go
    alive    whether this side says each second that it is there
    first    a frame for the agent before all others
    """

    def __init__(self, guest: socket.socket, place: Path, sockets: Sequence[Path],
                 doors: Mapping[str, socket.socket] | None = None, *, alive: bool = False,
                 first: bytes = b"") -> None:
        super().__init__(name=f"line of {place.stem}", daemon=True)
        self.ready = threading.Event()
        """Set once the agent has answered."""
        self.ready_at = 0.0
        """Time of that answer (time.monotonic)."""
        self.said = b""
        """The content of that answer."""
        self.heard_at = 0.0
        """Time of the agent's last frame (time.monotonic)."""
        self.failures: collections.deque[str] = collections.deque()
        """Failures that the agent has reported: refused requests, and processes that have ended; reading one removes
        it."""
        self._doors = {door: name for name, door in (doors or {}).items()}
        self._alive = alive
        self._sockets = sockets
        self._guest = _Peer(guest, 0)
        self._from_agent = Splitter()
        self.peers: dict[int, _Peer] = {}
        self._next = 0
        self._selector = selectors.DefaultSelector()
        place.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        place.chmod(0o600)
        self._listener.listen(64)
        for listener in (self._listener, *self._doors):
            self._selector.register(listener, selectors.EVENT_READ, None)
        guest.setblocking(False)
        self._selector.register(guest, selectors.EVENT_READ, self._guest)
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._open = True
        if first:
            self._send(self._guest, first)
        self.start()

    def close(self) -> None:
        """End the thread and close everything."""
        with contextlib.suppress(OSError):  # it has ended with the guest
            self._wake.send(b"x")
        self.join()

    def run(self) -> None:
        """Carry frames until the line ends."""
        try:
            due = 0.0
            while self._open:
                for key, events in self._selector.select(ALIVE_SECONDS if self._alive else None):
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._welcome()
                    elif key.fileobj in self._doors:
                        self._enter(key.fileobj)
                    elif key.data.socket.fileno() >= 0:  # not closed by what was served before it
                        self._serve(key.data, events)
                if self._alive and time.monotonic() >= due and not self._guest.waiting:
                    due = time.monotonic() + ALIVE_SECONDS
                    self._send(self._guest, pack(0, Kind.ALIVE))
        except BadFrame as error:
            self.failures.append(f"its answer is none of an agent: {error}; does its shell print something of its own "
                                 "when a command is run?")
        finally:
            for peer in [*self.peers.values(), self._guest]:
                peer.socket.close()
            for other in (self._listener, *self._doors, self._woken, self._wake):
                other.close()
            self._selector.close()

    def _enter(self, door: socket.socket) -> None:
        """Carry a connection that came to a door."""
        name = self._doors[door]
        visitors = [peer for peer in self.peers.values() if peer.door == name]
        if len(visitors) >= (UNIX_DOOR_CONNECTIONS if door.family == socket.AF_UNIX else DOOR_CONNECTIONS):
            log.warning("%s: %d connections came to its door %s: the oldest made room", self.name, len(visitors), name)
            self._send(self._guest, pack(visitors[0].channel, Kind.CLOSE))
            self._forget(visitors[0])
        if (connection := self._accepted(door)) is None:
            return
        channel = self._number()
        self._add(connection, channel, None)
        self.peers[channel].door = name
        self._send(self._guest, pack(channel, Kind.CONNECT, name.encode()))

    def _welcome(self) -> None:
        """Take a command's connection."""
        if (connection := self._accepted(self._listener)) is not None:
            self._add(connection, self._number(), Splitter())

    def _accepted(self, listener: socket.socket) -> socket.socket | None:
        """The next connection of a listener; None where it has gone already, or where no descriptor is left for it: it
        waits then, and is taken once one is free."""
        try:
            return listener.accept()[0]
        except OSError as error:
            log.warning("%s: a connection is not taken yet: %s", self.name, error)
            time.sleep(BUSY_SECONDS if error.errno in (errno.EMFILE, errno.ENFILE) else 0.0)
            return None

    def _number(self) -> int:
        self._next = (self._next + 1) % FROM_GUEST
        return self._next

    def _add(self, connection: socket.socket, channel: int, splitter: Splitter | None) -> None:
        connection.setblocking(False)
        peer = self.peers[channel] = _Peer(connection, channel, splitter)
        self._watch(peer)

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ or peer.socket.fileno() < 0:
            return
        try:
            data = peer.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if peer is self._guest:
            self._open = bool(data)
            self.heard_at = time.monotonic()
            for channel, kind, content in self._from_agent.feed(data):
                self._from_guest(channel, kind, content)
        elif peer.splitter is None:
            self._send(self._guest, pack(peer.channel, Kind.DATA if data else Kind.CLOSE, data))
            if not data:
                self._forget(peer)
        else:
            try:
                for _, kind, content in peer.splitter.feed(data):
                    self._send(self._guest, pack(peer.channel, kind, content))
            except BadFrame as error:
                log.warning("%s: a program that asked for a command sends no frames, its command ends: %s", self.name,
                            error)
                data = b""
            if not data:  # `attach` was killed, or is none, and its command goes the same way
                self._send(self._guest, pack(peer.channel, Kind.SIGNAL, bytes([9])))
                self._forget(peer)

    def _from_guest(self, channel: int, kind: Kind, content: bytes) -> None:
        if kind is Kind.READY:
            self.ready_at, self.said = time.monotonic(), content
            self.ready.set()
        elif kind is Kind.FAILED:
            self.failures.append(content.decode(errors="replace"))
        elif kind is Kind.OPEN:
            self._connect(channel, int.from_bytes(content, "big"))
        elif (peer := self.peers.get(channel)) is None:
            return  # it has ended meanwhile
        elif kind is Kind.DATA:
            self._send(peer, content)
        elif kind in (Kind.HOLD, Kind.GO) and peer.splitter is None:  # `attach` holds its input, and no signals
            peer.held = kind is Kind.HOLD
            self._watch(peer)
        elif kind is Kind.CLOSE:
            self._finish(peer)
        else:
            self._send(peer, pack(0, kind, content))
            if kind is Kind.EXIT:
                self._finish(peer)

    def _connect(self, channel: int, number: int) -> None:
        connection = None
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(self._sockets[number]))
        except (OSError, IndexError):
            if connection is not None:
                connection.close()
            self._send(self._guest, pack(channel, Kind.CLOSE))
            return
        self._add(connection, channel, None)

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.waiting.append(data)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        peer.waiting.give(peer.socket.send)
        if peer.closing and not peer.waiting:
            self._forget(peer)
            return
        self._watch(peer)
        if peer.waiting.turns():
            self._hold(peer)

    def _hold(self, peer: _Peer) -> None:
        """Stop those who send to a peer, or let them go on: its command or connection there, or all programs here."""
        if peer is not self._guest:
            self._send(self._guest, pack(peer.channel, Kind.HOLD if peer.waiting.full else Kind.GO))
            return
        for other in self.peers.values():
            self._watch(other)

    def _watch(self, peer: _Peer) -> None:
        """Watch what a peer is served for now."""
        reads = peer is self._guest or not (peer.held or self._guest.waiting.full)
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if peer.waiting else 0)
        known = peer.socket in self._selector.get_map()
        if events and known:
            self._selector.modify(peer.socket, events, peer)
        elif events:
            self._selector.register(peer.socket, events, peer)
        elif known:
            self._selector.unregister(peer.socket)

    def _finish(self, peer: _Peer) -> None:
        peer.closing = True
        self._flush(peer)

    def _forget(self, peer: _Peer) -> None:
        self.peers.pop(peer.channel, None)
        if peer.socket in self._selector.get_map():
            self._selector.unregister(peer.socket)
        peer.socket.close()
