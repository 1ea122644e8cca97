# SPDX-License-Identifier: Apache-2.0
"""The digests of a program, published by nanomsg as BMv2 does, for control planes that use thrift.

Control planes ask `bm_mgmt_get_info` for the address of a socket, subscribe to it with nanomsg (nnpy), and acknowledge
each list of digests by `bm_learning_ack_buffer`. This is nanomsg's publisher without its library: the ipc transport is
a unix socket, on which each side greets with eight bytes that name its half of the protocol, and each message goes
behind a byte of 1 and its length (nanomsg's RFC sp-ipc-mapping-01). Subscribers filter by topic themselves, so every
subscriber receives everything.

A message of digests is BMv2's learning header, little endian, and then the samples, whose fields take whole bytes each:
"LEA|", device id (8 bytes), context 0 (4), list id (4), buffer id (8), number of samples (4).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

SAMPLES = 16
"""Most samples of a list, as in BMv2."""
TIMEOUT_S = 1.0
"""Seconds after which a list is sent even if it is not full, as in BMv2."""
KEPT_MAX = 100_000
"""Most samples of one list that wait for an acknowledgement; further ones are dropped, and logged."""
SUBSCRIBERS_MAX = 32
WAITING_MAX = 1000
"""Most messages that wait for one subscriber; further ones are lost to it, as with nanomsg's publisher."""
SCHEME = "ipc://"

_HEADER = struct.Struct("<4sQiiQI")
_GREETING = struct.Struct(">4sHH")
_PUBLISHER, _SUBSCRIBER = 0x20, 0x21
_FRAME = struct.Struct(">BQ")


def default_address(device_id: int) -> str:
    """Where BMv2 with this device id publishes."""
    return f"{SCHEME}/tmp/bmv2-{device_id}-notifications.ipc"


@dataclass
class _List:
    """Samples that wait to be sent, and those that are not acknowledged yet: no sample is in both, or twice in one."""

    waiting: dict[bytes, None] = field(default_factory=dict)
    sent: dict[int, list[bytes | None]] = field(default_factory=dict)  # by buffer; None: acknowledged
    unacknowledged: set[bytes] = field(default_factory=set)
    samples: int = SAMPLES
    timeout_s: float = TIMEOUT_S
    due: float | None = None
    next_buffer: int = 0
    lost: int = 0


class Learning:
    """Collects samples into lists, each sample once until it is acknowledged. Thread-safe.

    lists  id of the list of each digest, by the digest's number in the engine
    """

    def __init__(
        self, device_id: int, lists: Mapping[int, int], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._device_id = device_id
        self._ids = dict(lists)
        self._lists = {ident: _List() for ident in self._ids.values()}
        self._clock = clock
        self._lock = threading.Lock()

    def add(self, index: int, sample: bytes) -> bytes | None:
        """Takes a sample from the data plane; returns the message that has become complete with it."""
        with self._lock:
            ident = self._ids[index]
            kept = self._lists[ident]
            if sample in kept.waiting or sample in kept.unacknowledged:
                return None
            if len(kept.waiting) + len(kept.unacknowledged) >= KEPT_MAX:
                kept.lost += 1
                if kept.lost.bit_count() == 1:
                    log.warning("learn list %d: %d samples lost, since %d others are not acknowledged", ident,
                                kept.lost, KEPT_MAX)
                return None
            if not kept.waiting and kept.timeout_s:
                kept.due = self._clock() + kept.timeout_s
            kept.waiting[sample] = None
            return self._take(ident, kept) if len(kept.waiting) >= kept.samples else None

    def due(self) -> float | None:
        """When, by the clock, the next list must be sent that is not full."""
        with self._lock:
            return min((kept.due for kept in self._lists.values() if kept.due is not None), default=None)

    def expired(self) -> list[bytes]:
        """The messages whose time has come."""
        with self._lock:
            now = self._clock()
            return [self._take(ident, kept) for ident, kept in self._lists.items()
                    if kept.due is not None and kept.due <= now]

    def acknowledge(self, ident: int, buffer: int, samples: list[int] | None = None) -> bool:
        """Acknowledges samples of a buffer by their positions, None all of them; False: there is no such list."""
        with self._lock:
            kept = self._lists.get(ident)
            if kept is None:
                return False
            sent = kept.sent.get(buffer, [])
            for position in range(len(sent)) if samples is None else samples:
                if 0 <= position < len(sent) and (sample := sent[position]) is not None:
                    kept.unacknowledged.discard(sample)
                    sent[position] = None
            if all(sample is None for sample in sent):
                kept.sent.pop(buffer, None)
            return True

    def set_timeout(self, ident: int, milliseconds: int) -> bool:
        """0: lists are sent when they are full only. False: there is no such list."""
        with self._lock:
            kept = self._lists.get(ident)
            if kept is not None:
                kept.timeout_s = milliseconds / 1000
                kept.due = self._clock() + kept.timeout_s if kept.waiting and milliseconds else None
            return kept is not None

    def set_samples(self, ident: int, samples: int) -> bool:
        """Samples of a list at most, from the next sample on. False: there is no such list."""
        with self._lock:
            kept = self._lists.get(ident)
            if kept is not None:
                kept.samples = max(samples, 1)
            return kept is not None

    def reset(self) -> None:
        """Forgets all samples."""
        with self._lock:
            for kept in self._lists.values():
                kept.waiting.clear()
                kept.sent.clear()
                kept.unacknowledged.clear()
                kept.due = None

    def _take(self, ident: int, kept: _List) -> bytes:
        samples = list(kept.waiting)
        header = _HEADER.pack(b"LEA|", self._device_id, 0, ident, kept.next_buffer, len(samples))
        kept.sent[kept.next_buffer] = list(samples)
        kept.unacknowledged.update(samples)
        kept.next_buffer += 1
        kept.waiting.clear()
        kept.due = None
        return header + b"".join(samples)


class _Subscriber:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.greeted = False
        self.received = b""
        self.out: deque[bytes] = deque()
        self.rest = b""
        """The rest of the message that is being sent."""


class Notifications:
    """Publishes the digests at a unix socket, which only its owner may open; one thread serves all subscribers."""

    def __init__(self, device_id: int, address: str | None = None) -> None:
        """address  ipc://PATH; None: where BMv2 publishes. Raises ValueError for another transport."""
        self.address = address or default_address(device_id)
        if not self.address.startswith(SCHEME):
            raise ValueError(f"--notifications-addr {self.address}: expected {SCHEME}PATH, the one transport of "
                             "nanomsg that is spoken here")
        self._path = self.address.removeprefix(SCHEME)
        self._device_id = device_id
        self.learning = Learning(device_id, {})
        self._subscribers: dict[int, _Subscriber] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._awake, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._awake.setblocking(False)
        self._listening: socket.socket | None = None
        self._inode = 0
        self._thread = threading.Thread(target=self._serve, name="softswitch-notifications", daemon=True)

    def start(self) -> None:
        """Raises OSError, with the address in its text, where the socket cannot be made."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            _remove_left_over(self._path)
            os.fchmod(listening.fileno(), 0o600)  # before the file is there, whatever the umask
            listening.bind(self._path)
            listening.listen(SUBSCRIBERS_MAX)
            self._inode = os.stat(self._path).st_ino
        except OSError as error:
            listening.close()
            why = error.strerror or error  # a path that is too long has no number
            raise OSError(error.errno, f"digests for thrift's clients: {self._path}: {why}") from error
        self._listening = listening
        self._selector.register(listening, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections, and removes the socket's file."""
        self._closed = True
        self._signal()
        if self._thread.ident is not None:
            self._thread.join(2.0)
        if self._listening is not None:
            self._listening.close()
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == self._inode:  # not another's, who came since
                    os.unlink(self._path)
        for subscriber in list(self._subscribers.values()):
            subscriber.connection.close()
        self._selector.close()
        self._awake.close()
        self._wake.close()

    def describe(self, lists: Mapping[int, int]) -> None:
        """Sets the program's digests: the id of the list of each, by its number in the engine."""
        self.learning = Learning(self._device_id, lists)

    def learned(self, index: int, sample: bytes) -> None:
        """Takes a digest from the data plane; without subscribers, it is forgotten at once."""
        with self._lock:
            if not self._subscribers:
                return
        message = self.learning.add(index, sample)
        if message is not None:
            self.publish(message)
        else:
            self._signal()  # a list may have begun, whose time runs

    def publish(self, message: bytes) -> None:
        """Sends a message to all subscribers; it is lost to those for whom too many wait already."""
        with self._lock:
            for subscriber in self._subscribers.values():
                if subscriber.greeted and len(subscriber.out) < WAITING_MAX:
                    subscriber.out.append(_FRAME.pack(1, len(message)) + message)
        self._signal()

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: the thread is awake anyhow
            self._wake.send(b"\0")

    def _serve(self) -> None:
        while not self._closed:
            due = self.learning.due()
            events = self._selector.select(None if due is None else max(0.0, due - time.monotonic()))
            for key, mask in events:
                if key.fileobj is self._listening:
                    self._accept()
                elif key.fileobj is self._awake:
                    with contextlib.suppress(BlockingIOError):
                        self._awake.recv(4096)
                else:
                    self._exchange(self._subscribers[key.fd], mask)
            for message in self.learning.expired():
                self.publish(message)
            for subscriber in list(self._subscribers.values()):
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if subscriber.out or subscriber.rest else 0)
                self._selector.modify(subscriber.connection, wanted)

    def _accept(self) -> None:
        assert self._listening is not None
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        with self._lock:
            self._subscribers[connection.fileno()] = _Subscriber(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _exchange(self, subscriber: _Subscriber, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                self._read(subscriber)
            if mask & selectors.EVENT_WRITE:
                while subscriber.rest or subscriber.out:
                    subscriber.rest = subscriber.rest or subscriber.out.popleft()
                    subscriber.rest = subscriber.rest[subscriber.connection.send(subscriber.rest):]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(subscriber)

    def _read(self, subscriber: _Subscriber) -> None:
        """Reads the greeting; a subscriber sends nothing else. Raises ConnectionError at the end, or for another."""
        data = subscriber.connection.recv(4096)
        if not data:
            raise ConnectionError
        if subscriber.greeted:
            return
        subscriber.received += data
        if len(subscriber.received) >= _GREETING.size:
            magic, protocol, _ = _GREETING.unpack_from(subscriber.received)
            if magic != b"\0SP\0" or protocol != _SUBSCRIBER:
                raise ConnectionError
            # Only now: one who has our greeting can rely on the messages that are published from then on.
            subscriber.out.append(_GREETING.pack(b"\0SP\0", _PUBLISHER, 0))
            subscriber.greeted = True

    def _drop(self, subscriber: _Subscriber) -> None:
        self._selector.unregister(subscriber.connection)
        with self._lock:
            del self._subscribers[subscriber.connection.fileno()]
        subscriber.connection.close()


def _remove_left_over(path: str) -> None:
    """Removes the socket of a switch that was killed. Raises OSError: somebody listens there, or it is another's."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            except BlockingIOError:
                return  # somebody listens: as many connections wait as may
