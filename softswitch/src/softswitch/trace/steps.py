# SPDX-License-Identifier: Apache-2.0
"""The processing of a packet, as a tree of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from softswitch.trace.program import Place, TracedProgram


@dataclass(slots=True)
class Step:
    """One step on a packet's way, and the steps within it; docs/trace.md lists the kinds.

    what    its kind: "pass", "state", "apply", "drop"...
    name    of the state, table, action, header, field or extern
    text    its P4 source, one line
    place   where in the source it is
    value   a number, or bytes, that was recorded with it
    about   what else is known, as JSON has it
    """

    what: str
    name: str = ""
    text: str = ""
    place: Place | None = None
    value: int | bytes | None = None
    about: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def walk(self) -> Iterator[Step]:
        """This step and all within it, in the order in which they happened but for passes, which are whole."""
        yield self
        for step in self.steps:
            yield from step.walk()


@dataclass(slots=True)
class PacketTrace:
    """The processing of one frame from its arrival on.

    number   counts the frames of a recording, from 0
    port     at which it came in
    now_us   when, in microseconds since the switch started
    length   in bytes
    frame    its bytes, as many as were recorded
    steps    the passes in the order in which they ran, and steps outside of any pass: the first pass, with those of
             the copies that it made; then those of packets that waited until it was done
    cut      True if there was no room for some of its steps
    """

    program: TracedProgram
    number: int
    port: int
    now_us: int
    length: int
    frame: bytes
    steps: list[Step] = field(default_factory=list)
    cut: bool = False

    def walk(self) -> Iterator[Step]:
        """All steps."""
        for step in self.steps:
            yield from step.walk()

    def of(self, what: str) -> list[Step]:
        """All steps of a kind, for example "drop"."""
        return [step for step in self.walk() if step.what == what]
