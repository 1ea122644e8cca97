# SPDX-License-Identifier: Apache-2.0
"""Traces as JSON; docs/trace.md describes it."""

from __future__ import annotations

from typing import Any

from softswitch.trace.steps import PacketTrace, Step


def to_json(trace: PacketTrace) -> dict[str, Any]:
    """The trace of a frame as JSON has it: of strings, numbers, booleans, lists and dicts."""
    data: dict[str, Any] = {
        "number": trace.number, "program": trace.program.name, "port": trace.port, "now_us": trace.now_us,
        "length": trace.length, "frame": trace.frame.hex(), "steps": [_step(step) for step in trace.steps],
    }
    if trace.cut:
        data["cut"] = True
    return data


def _step(step: Step) -> dict[str, Any]:
    data: dict[str, Any] = {"what": step.what}
    if step.name:
        data["name"] = step.name
    if step.text:
        data["text"] = step.text
    if step.place is not None:
        place = step.place
        data["pos"] = {"file": place.file, "line": place.line, "column": place.column, "length": place.length}
    if step.value is not None:
        data["value"] = step.value.hex() if isinstance(step.value, bytes) else step.value
    if step.about:
        data["about"] = step.about
    if step.steps:
        data["steps"] = [_step(inner) for inner in step.steps]
    return data
