# SPDX-License-Identifier: Apache-2.0
"""An engine whose switch runs inside this process, for tests and `softswitch stf`.

    with LocalEngine.open(compile_file(Path("l2.p4"))) as engine:
        engine.insert(entry)
        engine.inject(1, frame)                      # [(2, frame)]
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from softswitch.engine.engine import Engine
from softswitch.engine.entities import Event
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.linking import Compiled, build
from softswitch.engine.transport import InProcess


class LocalEngine(Engine):
    """An Engine whose switch runs in this process: frames enter and leave by calls, and the caller sets the clock."""

    FLAGS: tuple[str, ...] = ()
    """Further flags of the C compiler."""

    @classmethod
    def open(cls, program: Compiled | str | Path, *, cpu_port: int | None = None, seed: int = 1) -> Self:
        """Opens a compiled program, C text, a C file, or a library made by `linking.build`. Raises cc.BuildError.

        cpu_port   the port of packet-in and packet-out, or None
        seed       of the switch's random numbers
        """
        built = isinstance(program, Path) and program.suffix == ".so"
        library = program if isinstance(program, Path) and built else build(program, flags=cls.FLAGS)
        return cls(InProcess(library, cpu_port=cpu_port, seed=seed))

    def __init__(self, transport: InProcess) -> None:
        self._local = transport
        self._frames: list[tuple[int, bytes]] = []
        self.events: list[Event] = []
        """Events so far, in order; the caller may clear the list."""
        super().__init__(transport)

    def __enter__(self) -> Self:
        return self

    def inject(self, port: int, frame: bytes, *, now_us: int | None = None) -> list[tuple[int, bytes]]:
        """Runs one frame through the switch and returns the (port, frame) pairs that leave; events go to `events`."""
        if now_us is not None:
            self.advance(now_us)
        if not 0 <= port <= 511:
            raise InvalidArgument(f"port {port} is not within 0..511")
        self._local.receive(port, frame)
        return self.take()

    @property
    def now_us(self) -> int:
        """Microseconds of the switch's clock since its start."""
        return self._local.now_us

    def advance(self, now_us: int) -> int | None:
        """Sets the clock (microseconds since the start), reports idle entries, and returns when the next one is due."""
        if now_us < self._local.now_us:
            raise InvalidArgument(f"time goes back from {self._local.now_us} to {now_us} us")
        self._local.now_us = now_us
        due = self._local.tick()
        self._collect()
        return due

    def take(self) -> list[tuple[int, bytes]]:
        """The frames that have left since the last call, for example after packet_out."""
        self._collect()
        frames, self._frames = self._frames, []
        return frames

    def limit_output(self, frames: int = 0xFFFFFFFF) -> None:
        """Lets queues take only so many frames until the next take().  In process no link is ever busy: without this,
        nothing could show what a program does where a queue is full."""
        self._local.limit(frames)

    def _collect(self) -> None:
        frames, events = self._local.take()
        self._frames += frames
        self.events += events
