# SPDX-License-Identifier: Apache-2.0
"""The transports to a switch's control plane: a library in this process, and a switch process behind a socket."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

from softswitch.engine.entities import NO_PORT, Event, EventKind
from softswitch.engine.errors import EngineError, EngineTimeout, Internal

MESSAGE_MAX = 1 << 20
"""Bytes of the longest message in either direction (SS_MESSAGE_MAX)."""

_REQUEST, _REPLY, _EVENT = 1, 2, 3
_RECORD = struct.Struct("<BIQI")


class Transport(Protocol):
    """Carries one request batch to the switch and its replies back."""

    def exchange(self, batch: bytes) -> bytes:
        """Exchanges a batch of at most MESSAGE_MAX - 16 bytes for its replies. Raises EngineTimeout or Internal."""

    def close(self) -> None:
        """Closes the connection; further calls raise Internal."""


@cache
def _declared(library: Path) -> ctypes.CDLL:
    """The library of a switch, with the types of its functions."""
    lib = ctypes.CDLL(str(library))
    lib.ss_capture_open.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char_p)]
    lib.ss_capture_open.restype = ctypes.c_void_p
    lib.ss_capture_close.argtypes = [ctypes.c_void_p]
    lib.ss_capture_close.restype = None
    lib.ss_capture_receive.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32,
                                       ctypes.c_uint64]
    lib.ss_capture_receive.restype = None
    lib.ss_capture_tick.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    lib.ss_capture_tick.restype = ctypes.c_uint64
    lib.ss_capture_control.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t,
                                       ctypes.c_void_p, ctypes.c_size_t]
    lib.ss_capture_control.restype = ctypes.c_size_t
    lib.ss_capture_take.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
    lib.ss_capture_take.restype = ctypes.c_void_p
    lib.ss_capture_limit.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    lib.ss_capture_limit.restype = None
    return lib


class _ReplySpace(threading.local):
    """Where a thread's switches write their replies: one buffer for all of them."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(MESSAGE_MAX)


_SPACE = _ReplySpace()


class InProcess:
    """A switch in a library (runtime/capture.c is its other end), with frames in and out by function call."""

    def __init__(self, library: Path, *, cpu_port: int | None, seed: int) -> None:
        self._lib = lib = _declared(library)
        why = ctypes.c_char_p()
        self._capture = lib.ss_capture_open(NO_PORT if cpu_port is None else cpu_port, seed, ctypes.byref(why))
        if not self._capture:
            raise Internal(f"{library}: cannot open the switch: {(why.value or b'no reason given').decode()}")
        self._lock = threading.Lock()      # the switch is single-threaded, and ctypes releases the interpreter's lock
        self.now_us = 0

    def exchange(self, batch: bytes) -> bytes:
        with self._lock:
            self._alive()
            reply = _SPACE.buffer
            n = self._lib.ss_capture_control(self._capture, self.now_us, batch, len(batch), reply, MESSAGE_MAX)
            return ctypes.string_at(reply, n)

    def receive(self, port: int, frame: bytes) -> None:
        """Runs one frame through the pipeline."""
        with self._lock:
            self._alive()
            self._lib.ss_capture_receive(self._capture, port, frame, len(frame), self.now_us)

    def tick(self) -> int | None:
        """Reports idle entries, and returns when the next one is due, in microseconds, if any."""
        with self._lock:
            self._alive()
            due = int(self._lib.ss_capture_tick(self._capture, self.now_us))
        return None if due == 0xFFFFFFFFFFFFFFFF else due

    def limit(self, frames: int) -> None:
        """Lets only so many frames leave between two takes."""
        with self._lock:
            self._alive()
            self._lib.ss_capture_limit(self._capture, frames)

    def take(self) -> tuple[list[tuple[int, bytes]], list[Event]]:
        """The frames and events since the last call, each in order."""
        size = ctypes.c_size_t()
        with self._lock:
            self._alive()
            data = ctypes.string_at(self._lib.ss_capture_take(self._capture, ctypes.byref(size)), size.value)
        frames, events, at = [], [], 0
        while at < len(data):
            kind, ident, now_us, length = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            body = data[at : at + length]
            at += length
            if kind == 0:
                frames.append((ident, body))
            else:
                events.append(Event(EventKind(kind), ident, now_us, body))
        return frames, events

    def start_trace(self, keep: int) -> None:
        """Records what happens to each frame from now on, with at most `keep` bytes of each frame. Raises Internal
        where the library was not built for it (linking.TRACE)."""
        lib = self._lib
        if not hasattr(lib, "ss_capture_trace"):
            raise Internal("the switch was not built for the packet trace")
        lib.ss_capture_trace.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        lib.ss_capture_trace.restype = ctypes.c_bool
        lib.ss_capture_trace_take.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t),
                                              ctypes.POINTER(ctypes.c_uint64)]
        lib.ss_capture_trace_take.restype = ctypes.c_void_p
        with self._lock:
            self._alive()
            if not lib.ss_capture_trace(self._capture, keep):
                raise Internal("no memory for the packet trace")

    def take_trace(self) -> tuple[list[bytes], int]:
        """The records (runtime/records.h) of each frame since the last call, and of how many frames they were lost."""
        size, lost = ctypes.c_size_t(), ctypes.c_uint64()
        with self._lock:
            self._alive()
            data = ctypes.string_at(
                self._lib.ss_capture_trace_take(self._capture, ctypes.byref(size), ctypes.byref(lost)), size.value
            )
        found, at = [], 0
        while at < len(data):
            (length,) = struct.unpack_from("<I", data, at)
            found.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        return found, lost.value

    def close(self) -> None:
        with self._lock:
            if self._capture:
                self._lib.ss_capture_close(self._capture)
                self._capture = None

    def _alive(self) -> None:
        if not self._capture:
            raise Internal("the switch is closed")


class OverSocket:
    """A switch process behind a connected stream socket (protocol.h has the framing).

    A thread reads from the socket; `on_event` runs on it and must not wait for the switch. `on_end` is called once when
    the switch closes the connection before `close` has been called.
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_event: Callable[[Event], None] | None,
        on_end: Callable[[str], None] | None,
        timeout: float,
    ) -> None:
        self.sock = sock
        self._on_event, self._on_end = on_event, on_end
        self.timeout = timeout
        self._send_lock = threading.Lock()
        self._state = threading.Condition()
        self._replies: dict[int, bytes | None] = {}
        self._tag = 0
        self._heard = 0  # messages from the switch so far
        self._ended: str | None = None
        self._closing = False
        sock.setblocking(True)
        # A stopped switch must not block a sender forever; the reader needs no limit, since closing wakes it.
        seconds = int(timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO,
                        struct.pack("ll", seconds, int((timeout - seconds) * 1e6)))
        self._reader = threading.Thread(target=self._read, name="softswitch-events", daemon=True)
        self._reader.start()

    def exchange(self, batch: bytes) -> bytes:
        with self._state:
            if self._ended is not None:
                raise Internal(f"the switch is gone: {self._ended}")
            self._tag = tag = (self._tag + 1) & 0xFFFFFFFF
            self._replies[tag] = None
        try:
            with self._send_lock:
                self.sock.sendall(struct.pack("<IBI", len(batch) + 5, _REQUEST, tag) + batch)
            with self._state:
                answered = self._state.wait_for(
                    lambda: self._replies[tag] is not None or self._ended is not None, self.timeout)
                reply = self._replies[tag]
                if reply is not None:
                    return reply
                if answered:
                    raise Internal(f"the switch is gone: {self._ended}")
                raise EngineTimeout(f"the switch did not answer within {self.timeout} s")
        except BlockingIOError:
            self._end("it took no request for too long")
            raise EngineTimeout(f"the switch took no request within {self.timeout} s") from None
        except OSError as error:
            raise Internal(f"the switch is gone: {error}") from error
        finally:
            with self._state:
                self._replies.pop(tag, None)

    def answers(self, within: float) -> bool:
        """Asks for a sign of life, which is any message at all, and returns whether there is one within so many
        seconds. Raises Internal where the switch has ended."""
        with self._state:
            if self._ended is not None:
                raise Internal(f"the switch is gone: {self._ended}")
            self._tag = tag = (self._tag + 1) & 0xFFFFFFFF
            before = self._heard
        if self._send_lock.acquire(timeout=within):  # another sender holds it while the switch takes nothing
            try:
                with contextlib.suppress(OSError):  # the reader finds out what is wrong with the socket
                    self.sock.send(struct.pack("<IBI", 5, _REQUEST, tag), socket.MSG_DONTWAIT)
            finally:
                self._send_lock.release()
        with self._state:
            return self._state.wait_for(lambda: self._heard != before or self._ended is not None, within)

    def close(self) -> None:
        self._closing = True
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join(self.timeout)
        self.sock.close()

    def _read(self) -> None:
        why = "it closed the connection"
        try:
            while (head := self._take(4)) is not None:
                (size,) = struct.unpack("<I", head)
                if not 1 <= size <= MESSAGE_MAX:
                    why = f"it sent a message of {size} bytes"
                    break
                body = self._take(size)
                if body is None:
                    break
                self._dispatch(body)
        except OSError as error:
            why = str(error)
        except (EngineError, struct.error, ValueError) as error:
            why = f"it sent what cannot be read: {error}"
        self._end(why)

    def _dispatch(self, body: bytes) -> None:
        with self._state:
            self._heard += 1
            self._state.notify_all()
        if body[0] == _REPLY:
            (tag,) = struct.unpack_from("<I", body, 1)
            with self._state:
                if tag in self._replies:
                    self._replies[tag] = body[5:]
                    self._state.notify_all()
        elif body[0] == _EVENT:
            kind, ident, now_us = struct.unpack_from("<BIQ", body, 1)
            if self._on_event is not None:
                self._on_event(Event(EventKind(kind), ident, now_us, body[14:]))
        else:
            raise Internal(f"the switch process sent a message of type {body[0]}: expected {_REPLY} or {_EVENT}; it "
                           "was built by another version: remove softswitch's cache")

    def _take(self, n: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < n:
            part = self.sock.recv(n - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def _end(self, why: str) -> None:
        with self._state:
            first = self._ended is None
            if first:
                self._ended = why
            self._state.notify_all()
        if first and not self._closing and self._on_end is not None:
            self._on_end(why)
