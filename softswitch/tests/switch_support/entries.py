# SPDX-License-Identifier: Apache-2.0
"""Table entries of the test program over P4Runtime, one of every match kind."""

from __future__ import annotations

from finsy.proto import p4r

EXACT, LPM, TERNARY, RANGE, OPTIONAL, SELECT, FIXED = range(0x02000001, 0x02000008)
FORWARD, SET, DROP = 0x01000001, 0x01000002, 0x01000003


def forward(port: int | bytes) -> p4r.TableAction:
    value = port if isinstance(port, bytes) else bytes([port])
    return p4r.TableAction(action=p4r.Action(action_id=FORWARD, params=[p4r.Action.Param(param_id=1, value=value)]))


def exact(value: bytes, field: int = 1) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, exact=p4r.FieldMatch.Exact(value=value))


def lpm(value: bytes, length: int, field: int = 2) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=length))


def ternary(value: bytes, mask: bytes, field: int = 1) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def in_range(low: bytes, high: bytes, field: int = 1) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, range=p4r.FieldMatch.Range(low=low, high=high))


def optional(value: bytes, field: int = 1) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, optional=p4r.FieldMatch.Optional(value=value))


def entry(table: int, *match: p4r.FieldMatch, action: p4r.TableAction | None = None, **more: object) -> p4r.Entity:
    message = p4r.TableEntry(table_id=table, match=match, **more)  # type: ignore[arg-type]
    if action is not None:
        message.action.CopyFrom(action)
    return p4r.Entity(table_entry=message)


ENTRIES = [
    entry(EXACT, exact(b"\x05"), action=forward(3)),
    entry(LPM, exact(b"\x01"), lpm(b"\x0a\x00\x00\x00", 8), action=forward(1)),
    entry(LPM, exact(b"\x00"), action=forward(2)),
    entry(TERNARY, ternary(b"\x12\x00", b"\xff\x00"), action=forward(1), priority=10),
    entry(TERNARY, ternary(b"\x01", b"\x0f", 2), action=forward(2), priority=1),
    entry(RANGE, in_range(b"\x00", b"\xff"), action=forward(1), priority=3),
    entry(OPTIONAL, optional(b"\xff\xff\xff\xff"), action=forward(1), priority=3),
    entry(OPTIONAL, action=forward(2), priority=2),
]
