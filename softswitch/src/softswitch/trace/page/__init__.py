# SPDX-License-Identifier: Apache-2.0
"""The packets' way through the P4 source as a page: one HTML file that needs no network.

    Path("trace.html").write_text(render(program, traces))

`render` puts the traces into the page; served by a switch (serving.py), the same page asks for more as they come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softswitch.trace.as_json import to_json
from softswitch.trace.program import TracedProgram
from softswitch.trace.steps import PacketTrace

_LINE = re.compile(r'#(?:line)?\s*(\d+)\s+"((?:[^"\\]|\\.)*)"')
_LARGEST_EXACT = 2**53 - 1
"""Greatest whole number that JavaScript has without rounding, Number.MAX_SAFE_INTEGER."""

_LIBRARY = {"core.p4", "v1model.p4"}


def source_files(program: TracedProgram) -> dict[str, list[tuple[int, str]]]:
    """The lines of each file of a program, (number, text), from its preprocessed text; the language's own left out."""
    files: dict[str, list[tuple[int, str]]] = {}
    name, number = program.name, 1
    for text in program.source.splitlines():
        mark = _LINE.match(text)
        if mark:
            number, name = int(mark[1]), mark[2]
            continue
        if Path(name).name not in _LIBRARY:
            lines = files.setdefault(name, [])
            if text.strip() or lines:
                lines.append((number, text))
        number += 1
    return {file: lines for file, lines in files.items() if any(text.strip() for _, text in lines)}


def program_json(program: TracedProgram) -> dict[str, Any]:
    """The page's data about a program: its name and its source."""
    return {"name": program.name, "files": source_files(program)}


def packet_json(trace: PacketTrace) -> dict[str, Any]:
    """The trace as JSON, with numbers that scripts in a browser would round as hexadecimal digits."""
    exact: dict[str, Any] = _exact(to_json(trace))
    return exact


def _exact(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _exact(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_exact(value) for value in data]
    if isinstance(data, int) and abs(data) > _LARGEST_EXACT:
        digits = f"{abs(data):x}"
        return f"{'-' if data < 0 else ''}{'0' * (len(digits) % 2)}{digits}"
    return data


def render(program: TracedProgram | None, traces: Sequence[PacketTrace], *, live: bool = False) -> str:
    """The page as HTML; live: it asks the server that it comes from for packets."""
    data = {"program": program_json(program) if program else None, "live": live,
            "packets": [packet_json(trace) for trace in traces]}
    # what is within <script> ends at "</script" and may not begin a comment: programs and packets are strangers' text
    text = json.dumps(data).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    template = (Path(__file__).parent / "page.html").read_text()
    return template.replace("/*DATA*/null", text, 1)
