# SPDX-License-Identifier: Apache-2.0
"""A switch inside this process that tells what happened to each frame.

    with TracedEngine.compile(Path("l2.p4")) as engine:
        engine.insert(entry)
        for trace in engine.receive_traced(1, frame):
            print(to_text(trace))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from softswitch.compiler.driver import Program, compile_file
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.linking import TRACE
from softswitch.engine.local import LocalEngine
from softswitch.trace.program import TracedProgram
from softswitch.trace.records import decode
from softswitch.trace.steps import PacketTrace

_KEEP = 16384


class TracedEngine(LocalEngine):
    """A LocalEngine whose program is built for the packet trace."""

    FLAGS = (TRACE,)
    program: TracedProgram
    _frames_traced = 0

    @classmethod
    def compile(
        cls, path: Path, *, include: Sequence[Path] = (), defines: Mapping[str, str] | None = None,
        cpu_port: int | None = None, seed: int = 1,
    ) -> Self:
        """Compiles a P4 file and opens it. Raises CompileError, cc.BuildError."""
        program = compile_file(path, include=include, defines=defines, trace=True)
        return cls.of(program, cpu_port=cpu_port, seed=seed)

    @classmethod
    def of(cls, program: Program, *, cpu_port: int | None = None, seed: int = 1) -> Self:
        """Opens a program that was compiled with trace=True. Raises InvalidArgument for another, cc.BuildError."""
        if not program.trace:
            raise InvalidArgument(f"{program.name}: expected a program that was compiled with trace=True")
        engine = cls.open(program, cpu_port=cpu_port, seed=seed)
        engine.program = TracedProgram(program.trace)
        engine._local.start_trace(_KEEP)
        return engine

    def receive_traced(self, port: int, frame: bytes, *, now_us: int | None = None) -> list[PacketTrace]:
        """Runs one frame through the switch and returns what happened to it; what leaves is in its "out" steps, and
        in `take()`. More than one trace where others are due, of packet-outs for example."""
        left = self.inject(port, frame, now_us=now_us)
        self._frames = left + self._frames
        return self.traces()

    def traces(self) -> list[PacketTrace]:
        """The traces since the last call, in order."""
        found, _ = self._local.take_trace()
        traces = [decode(self.program, data, self._frames_traced + i) for i, data in enumerate(found)]
        self._frames_traced += len(found)
        return traces
