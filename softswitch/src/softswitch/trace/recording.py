# SPDX-License-Identifier: Apache-2.0
"""Recordings: files of records, and the shown trace of a running switch.

    recorder = Recorder(Path("packets.trace"))                    # binary, written by the switch process itself
    recorder = Live(sys.stdout, "text")                           # shown as packets come, by a thread of the server
    outlet = recorder.begin(program.trace)                        # one for each program, handed to its process

    for found in read(Path("packets.trace")):                     # PacketTrace, or Lost
        print(to_text(found))

Whatever the reader does, the switch never waits for it: what finds no room is dropped and counted (runtime/records.h).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from softswitch.runtime import files
from softswitch.trace.as_json import to_json
from softswitch.trace.bmv2 import Bmv2Words
from softswitch.trace.program import TracedProgram, TraceError
from softswitch.trace.records import decode
from softswitch.trace.steps import PacketTrace
from softswitch.trace.text import to_text

log = logging.getLogger(__name__)

LIMIT = 1 << 30
"""Default limit on the bytes of a recording."""

KEEP = 128
"""Default number of bytes of each frame in a binary recording: most headers; more costs speed."""

KEEP_SHOWN = 2048
"""The same when traces are shown as packets arrive."""

_CHUNK = struct.Struct("<IHH")
_DESCRIPTION, _PACKET, _LOST, _END = 1, 2, 3, 4
_CHUNK_MAX = 256 << 20
_PIPE = 1 << 20
_LAST = 5.0  # seconds for what is still to be shown at the end


@dataclass(frozen=True)
class Lost:
    """So many frames are missing here: there was no room for their records, or the limit was reached. None: the
    recording stops before the switch has ended, or it still runs."""

    frames: int | None


@dataclass(frozen=True)
class Outlet:
    """Where a switch process writes its records: an open file, which is its own, and how much."""

    fd: int
    program: int
    limit: int
    keep: int

    def options(self) -> list[str]:
        """The options of the process (runtime/main.c)."""
        return ["--trace", str(self.fd), "--trace-program", str(self.program), "--trace-limit", str(self.limit),
                "--trace-keep", str(self.keep)]


class Tracing(Protocol):
    """Gives each program's process an outlet for its records."""

    def begin(self, description: str) -> Outlet:
        """An outlet for one program; the caller closes its file once the process has it. Raises OSError."""

    def close(self) -> None:
        """Waits until all that came is shown."""


class Recorder:
    """Writes binary records to a file, up to a limit in bytes."""

    def __init__(self, path: Path, *, limit: int = LIMIT, keep: int = KEEP) -> None:
        """Makes the file, which only its owner may read, anew. Raises OSError."""
        self._file = open_private(path)
        self._limit, self._keep = limit, keep
        self._programs = 0

    def begin(self, description: str) -> Outlet:
        self._programs += 1
        data = _started(description)
        fd = os.dup(self._file)  # by the name there may be another's file meanwhile
        try:
            _write(fd, _CHUNK.pack(len(data) + 4, _DESCRIPTION, self._programs & 0xFFFF) + data)
            left = self._limit - os.fstat(fd).st_size
        except BaseException:
            os.close(fd)
            raise
        return Outlet(fd, self._programs & 0xFFFF, max(0, left), self._keep)

    def close(self) -> None:
        """Closes the file here; each process closes what it has."""
        os.close(self._file)


class Following(ABC):
    """Follows the traces of a running switch as packets come: a thread for each program's process."""

    def __init__(self, *, keep: int = KEEP_SHOWN) -> None:
        self._keep = keep
        self._programs = 0
        self._threads: list[threading.Thread] = []

    @abstractmethod
    def put(self, found: PacketTrace | Lost) -> None:
        """Takes what came, from any thread. What raises OSError or ValueError takes no more."""

    def begin(self, description: str) -> Outlet:
        self._programs += 1
        program = TracedProgram(_started(description))
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _PIPE)
        os.set_blocking(theirs, False)
        thread = threading.Thread(target=self._run, args=(ours, program), name="softswitch-trace", daemon=True)
        self._threads = [old for old in self._threads if old.is_alive()] + [thread]
        thread.start()
        return Outlet(theirs, self._programs & 0xFFFF, 1 << 63, self._keep)

    def close(self) -> None:
        """Waits until all that came is taken, for some seconds."""
        for thread in self._threads:
            thread.join(_LAST)

    def _run(self, source: int, program: TracedProgram) -> None:
        try:
            with os.fdopen(source, "rb") as stream:
                for found in _chunks(stream, {}, program):
                    self.put(found)
        except (OSError, ValueError) as error:  # the reader of our output is gone, or its disk is full
            log.warning("the trace ends here: %s", error)
        except TraceError as error:
            log.error("the trace ends here: %s", error)


class Live(Following):
    """Shows traces in a stream as packets come, up to a limit in bytes."""

    def __init__(self, out: IO[str], style: str, *, limit: int | None = None, keep: int = KEEP_SHOWN) -> None:
        """style: "text", "json" (a line a packet) or "bmv2"."""
        super().__init__(keep=keep)
        self._out, self._show, self._left = out, renderer(style), limit
        self._lock = threading.Lock()
        self._lost = 0

    def close(self) -> None:
        super().close()
        if self._lost:
            self._left = None
            self.put(Lost(self._lost))

    def put(self, found: PacketTrace | Lost) -> None:
        text = self._show(found)
        with self._lock:
            if self._left is not None:
                if self._lost or len(text) > self._left:
                    self._lost += (found.frames or 0) if isinstance(found, Lost) else 1
                    return
                self._left -= len(text)
            self._out.write(text)
            self._out.flush()


def renderer(style: str) -> Callable[[PacketTrace | Lost], str]:
    """A function that shows a trace in a style: "text", "json" or "bmv2". Raises ValueError for another style; the
    function raises TraceError."""
    words = Bmv2Words()
    shows: dict[str, Callable[[PacketTrace], str]] = {
        "text": to_text, "json": lambda trace: json.dumps(to_json(trace)) + "\n", "bmv2": words.lines,
    }
    if style not in shows:
        raise ValueError(f"expected one of {', '.join(shows)}, got {style!r}")
    show = shows[style]

    def any_of(found: PacketTrace | Lost) -> str:
        if isinstance(found, PacketTrace):
            try:
                return show(found)
            except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise TraceError(f"packet {found.number} makes no sense, its records are damaged: {error!r}") from None
        if style == "json":
            return json.dumps({"lost": found.frames}) + "\n"
        if found.frames is None:
            return "(the trace stops before the switch has ended: more packets may be missing)\n"
        return f"({found.frames} packets are not shown: there was no room for their trace)\n"

    return any_of


def read(path: Path) -> Iterator[PacketTrace | Lost]:
    """The traces of a recording, in order. Raises OSError, and TraceError where it is damaged."""
    with path.open("rb") as stream:
        yield from _chunks(stream, {}, None)


def _chunks(stream: IO[bytes], programs: dict[int, TracedProgram], only: TracedProgram | None
            ) -> Iterator[PacketTrace | Lost]:
    """Reads chunk after chunk; `only` is the program of all of them, where they have no descriptions."""
    number = 0
    ended = False
    while len(head := _take(stream, _CHUNK.size)) == _CHUNK.size:
        size, kind, which = _CHUNK.unpack(head)
        if not 4 <= size <= _CHUNK_MAX:
            raise TraceError("this is no recording of packets, or it is damaged: expected a chunk, got "
                             f"a length of {size} bytes after {number} packets")
        data = _take(stream, size - 4)
        if len(data) < size - 4:
            break
        ended = kind == _END
        if kind == _DESCRIPTION:
            programs[which] = TracedProgram(data)
        elif kind == _PACKET:
            program = only or programs.get(which)
            if program is None:
                raise TraceError(f"packet {number} is of program {which}, which the recording does not describe")
            yield decode(program, data, number)
            number += 1
        elif kind == _LOST and len(data) == 8:
            frames = int.from_bytes(data, "little")
            yield Lost(frames)
            number += frames
        elif kind != _END:
            raise TraceError(f"this is no recording of packets, or it is damaged: a chunk of type {kind}")
    if not ended:
        yield Lost(None)


def open_private(path: Path) -> int:
    """A descriptor of an empty file, to whose end is written and which its owner alone may read: frames will be in it.

    A new file takes the place of one that is there (runtime/files.py), so that those who have it open read on there;
    another user's is refused, and so is a link of theirs. What is no regular file (a pipe, a terminal) is written to as
    it is. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the file belongs to another user, who could read it", str(path))
    with files.create(path, mode=0o600) as file:
        return os.dup(file.fileno())


def _take(stream: IO[bytes], n: int) -> bytes:
    """n bytes, or as many as there are."""
    parts = []
    while n and (part := stream.read(min(n, 1 << 20))):
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def _started(description: str) -> bytes:
    """The description with the time at which the switch starts, about."""
    return json.dumps({**json.loads(description), "started_us": time.time_ns() // 1000}).encode()


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
