# SPDX-License-Identifier: Apache-2.0
"""Frames compared with the patterns of packet tests, and differences drawn as hexdumps."""

from __future__ import annotations


def matches(pattern: str, exact: bool, frame: bytes) -> bool:
    """True if a frame matches a pattern of hex digits and *; without `exact` it may be longer."""
    got = frame.hex()
    if len(got) < len(pattern) or (exact and len(got) > len(pattern)):
        return False
    return all(p in ("*", g) for p, g in zip(pattern, got, strict=False))


def draw_difference(pattern: str | None, exact: bool, frame: bytes, *, width: int = 16) -> str:
    """Draw both frames as hexdumps, line by line, with a ^ under every nibble that is wrong, missing or superfluous."""
    got, lines = frame.hex(), []
    end = max(len(pattern or ""), len(got))
    for at in range(0, end, 2 * width):
        want_row, got_row = (pattern or "")[at : at + 2 * width], got[at : at + 2 * width]
        marks = "".join(_mark(want_row[i : i + 1], got_row[i : i + 1], exact) for i in range(2 * width))
        if pattern is not None:
            lines.append(f"    {at // 2:04x}  expected  {_spaced(want_row)}")
        lines.append(f"    {at // 2:04x}  got       {_spaced(got_row)}")
        if pattern is not None and marks.strip():
            lines.append(f"                    {_spaced(marks).rstrip()}")
    if pattern is not None and len(pattern) != len(got):
        bound = "exactly" if exact else "at least"
        lines.append(f"    expected {bound} {len(pattern) // 2} bytes, got {len(frame)}")
    return "\n".join(lines) or "    (empty frame)"


def _mark(want: str, got: str, exact: bool) -> str:
    if not want:
        return "^" if got and exact else " "
    return " " if got and want in ("*", got) else "^"


def _spaced(row: str) -> str:
    return " ".join(row[i : i + 2] for i in range(0, len(row), 2))
