# SPDX-License-Identifier: Apache-2.0
"""Reads the records of one frame (runtime/records.h) and makes its tree of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from softswitch.trace.program import Site, TracedKey, TracedProgram, TraceError
from softswitch.trace.reasons import DropReason, Writer, never, words
from softswitch.trace.steps import PacketTrace, Step

_HEAD = struct.Struct("<HBI")
_LOOKUP = struct.Struct("<BBIQIiII")
_NO_LIST = 0xFFFFFFFF
_DEEPEST = 100  # steps within steps; what is nested deeper in the program stands side by side
_INSTANCE_TYPES = ("normal", "ingress clone", "egress clone", "coalesced", "recirculated", "replica", "resubmitted")
_DO_ACTION, _DO_MEMBER, _DO_GROUP = 0, 1, 2


class RecordKind(IntEnum):
    """Kinds of records, with the numbers of records.h."""

    SITE = 1
    PACKET = 2
    PASS = 3
    PASS_END = 4
    PARSED = 5
    LOOKUP = 6
    DROP = 7
    OUT = 8
    PACKET_IN = 9
    CLONE = 10
    MULTICAST = 11
    RESUBMIT = 12
    RECIRCULATE = 13
    EGRESS_SPEC = 14
    LOG = 15
    CUT = 16


def decode(program: TracedProgram, records: bytes, number: int = 0) -> PacketTrace:
    """The tree of one frame. Raises TraceError for what no switch has written."""
    try:
        return _Decoder(program, records, number).run()
    except (struct.error, IndexError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise TraceError(f"the records of frame {number} are damaged: {error!r}") from None


@dataclass
class _Pass:
    """A pass that runs, or ran: the steps that are open in it, and who wrote what leads the packet on."""

    step: Step
    parent: _Pass | None
    open: list[tuple[int, Step]] = field(default_factory=list)
    writers: dict[str, Writer] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    offset: int = 0
    index: list[int] = field(default_factory=list)
    checksum: Step | None = None
    extern: Step | None = None

    @property
    def top(self) -> Step:
        return self.open[-1][1] if self.open else self.step

    def find(self, what: str) -> Step | None:
        """The innermost open step of a kind."""
        return next((step for _, step in reversed(self.open) if step.what == what), None)


class _Decoder:
    """Goes through the records of one frame."""

    def __init__(self, program: TracedProgram, records: bytes, number: int) -> None:
        self.program = program
        self.records = records
        self.trace = PacketTrace(program, number, 0, 0, 0, b"")
        self.passes: dict[int, _Pass] = {}
        self.running: list[_Pass] = []

    def run(self) -> PacketTrace:
        at = 0
        while at < len(self.records):
            length, kind, ident = _HEAD.unpack_from(self.records, at)
            at += _HEAD.size
            if at + length > len(self.records):
                raise TraceError(f"a record of {length} bytes, of which {len(self.records) - at} are there")
            self.record(RecordKind(kind), ident, self.records[at : at + length])
            at += length
        return self.trace

    def record(self, kind: RecordKind, ident: int, data: bytes) -> None:
        if kind is RecordKind.SITE:
            self.site(self.program.sites[ident], data)
        elif kind is RecordKind.LOOKUP:
            self.lookup(ident, data)
        elif kind is RecordKind.PACKET:
            self.trace.port = ident
            self.trace.now_us, self.trace.length = struct.unpack_from("<QI", data)
            self.trace.frame = data[12:]
        elif kind is RecordKind.PASS:
            self.begin(ident, data)
        elif kind is RecordKind.PASS_END:
            self.running.pop()
        elif kind is RecordKind.LOG:
            text = data.decode(errors="replace")
            self.add(Step("log", text=text), inside=True)
        elif kind is RecordKind.CUT:
            self.trace.cut = True
        elif kind in (RecordKind.OUT, RecordKind.PACKET_IN):
            self.out(kind, ident, data)
        elif kind is RecordKind.DROP:
            self.drop(DropReason(ident), struct.unpack("<I", data)[0])
        else:
            self.decision(kind, ident, struct.unpack(f"<{len(data) // 4}I", data))

    # ---- passes -------------------------------------------------------------------------------------------------

    @property
    def now(self) -> _Pass | None:
        return self.running[-1] if self.running else None

    def add(self, step: Step, *, inside: bool = False) -> Step:
        """Adds a step: to the innermost open one, or to the pass, in which nothing is open any more then."""
        now = self.now
        if now is None:
            self.trace.steps.append(step)
        else:
            if not inside:
                now.open.clear()
            now.top.steps.append(step)
        return step

    def begin(self, ident: int, data: bytes) -> None:
        kind = data[0]
        parent, port, instance, instance_type, length, depth = struct.unpack_from("<6I", data, 1)
        name = ("ingress", "clone", "egress")[kind]
        about: dict[str, Any] = {"number": ident, "parent": parent, "port": port, "length": length,
                                 "instance_type": _INSTANCE_TYPES[instance_type]}
        if name == "egress":
            about.update(instance=instance, queue_depth=depth)
        step = Step("pass", name, about=about)
        self.passes[ident] = _Pass(step, self.now or self.passes.get(parent))
        self.add(step)
        self.running.append(self.passes[ident])

    # ---- what the program records -------------------------------------------------------------------------------

    def site(self, site: Site, data: bytes) -> None:
        now = self.now
        if now is None:
            raise TraceError("a step outside of any pass")
        value = _value(site, data)
        match site.what:
            case "index":
                assert isinstance(value, int)
                now.index.append(value)
                return
            case "result" | "written" | "given" | "computed":
                self.result(now, site, value)
                return
        name = site.name
        while "[?]" in name and now.index:
            name = name.replace("[?]", f"[{now.index.pop(0)}]", 1)
        now.index.clear()
        step = Step(site.what, name, site.text, site.place, value, dict(site.about))
        if site.what == "key":
            step.about["bits"] = site.bits
        if site.depth is not None:
            depth = min(site.depth, _DEEPEST)
            while now.open and now.open[-1][0] >= depth:
                now.open.pop()
            now.top.steps.append(step)
            now.open.append((depth, step))
            if site.what == "checksum" and value:
                now.checksum = step
                if site.name == "verify":
                    step.about["ok"] = True
            return
        now.top.steps.append(step)
        match site.what:
            case "extract":
                self.extracted(now, step, data)
            case "advance":
                assert isinstance(value, int)
                now.offset += value // 8
            case "parser_error":
                assert isinstance(value, int)
                step.name = self.program.errors[value]
            case "set":
                if site.bits > 0:
                    step.about["bits"] = site.bits
                self.wrote(now, step)
            case _:
                now.extern = step

    def result(self, now: _Pass, site: Site, value: int | bytes | None) -> None:
        """Records the result of an earlier step."""
        step = now.checksum if site.what in ("given", "computed") else now.extern
        if step is not None:
            step.about["value" if site.what == "written" else site.what] = _json(value)

    def wrote(self, now: _Pass, step: Step) -> None:
        head, _, name = step.name.partition(".")
        if head != "standard_metadata":
            return
        if name == "checksum_error" and step.value and now.checksum is not None:
            now.checksum.about["ok"] = False
        if name in ("egress_spec", "mcast_grp"):
            statement = now.find("statement")
            assert step.place is not None
            place = statement.place if statement is not None and statement.place is not None else step.place
            now.writers[name] = Writer(place, statement.text if statement else "", now.find("apply"))

    def extracted(self, now: _Pass, step: Step, data: bytes) -> None:
        fields = self.program.headers[str(step.about.pop("header"))]
        step.about.update(offset=now.offset, bytes=data.hex(), fields=_fields(fields, data))
        step.value = None
        now.offset += len(data)

    # ---- what the runtime records -------------------------------------------------------------------------------

    def lookup(self, ident: int, data: bytes) -> None:
        table = self.program.tables[ident]
        now = self.now
        step = now.find("apply") if now is not None else None
        if now is None or step is None or step.name != table.name:
            raise TraceError(f"a lookup in table {table.name}, which was not applied")
        hit, kind, action, handle, slot, priority, target, member = _LOOKUP.unpack_from(data)
        sizes = [(key.bits + 7) // 8 for key in table.keys]
        parts, at = [], _LOOKUP.size
        for _ in range(3 if hit else 1):
            values = []
            for size in sizes:
                values.append(int.from_bytes(data[at : at + size], "big"))
                at += size
            parts.append(values)
        about = step.about
        about.update(hit=bool(hit), table_place=str(table.place))
        about["key"] = [_key(key, i, parts) for i, key in enumerate(table.keys)]
        if hit:
            about.update(handle=handle, slot=slot)
            if any(key.match in ("ternary", "range", "optional") for key in table.keys):
                about["priority"] = priority
            if kind == _DO_GROUP:
                about["group"] = target
            if kind in (_DO_MEMBER, _DO_GROUP):
                about["member"] = member
        else:
            now.missed.append(table.name)
        about["action"], about["params"] = None, {}
        if action < len(table.actions):
            chosen = table.actions[action]
            about["action"] = chosen.name
            for name, bits in chosen.params:
                about["params"][name] = int.from_bytes(data[at : at + (bits + 7) // 8], "big")
                at += (bits + 7) // 8

    def out(self, kind: RecordKind, ident: int, data: bytes) -> None:
        (length,) = struct.unpack_from("<I", data)
        what = "out" if kind is RecordKind.OUT else "packet_in"
        step = Step(what, value=data[4:], about={"port": ident, "length": length})
        now = self.now
        source = now.parent if now is not None else None
        if kind is RecordKind.OUT and ident == 0 and source is not None and self.unassigned(source):
            step.about["why"] = f"port 0{never(0, source.missed)}"
        self.add(step)

    def unassigned(self, source: _Pass) -> bool:
        """True if a packet left ingress only because egress_spec is 0 until the program writes it."""
        return source.step.name == "ingress" and not source.writers

    def drop(self, reason: DropReason, detail: int) -> None:
        now = self.now
        writer, missed, field_name = None, [], "egress_spec"
        if reason in (DropReason.NO_GROUP, DropReason.EMPTY_GROUP):
            field_name = "mcast_grp"
        of: _Pass | None = now
        if reason in (DropReason.NO_PORT, DropReason.PORT_DOWN) and now is not None and now.step.name == "egress":
            unicast = now.step.about["instance_type"] == "normal"
            of = now.parent if unicast else None
        if of is not None:
            writer, missed = of.writers.get(field_name), of.missed
        about: dict[str, Any] = {"reason": reason.name.lower(), "missed": missed}
        step = Step("drop", reason.name.lower(), words(reason, detail, writer, missed), about=about)
        if writer is not None:
            step.place = writer.place
        self.add(step)

    def decision(self, kind: RecordKind, ident: int, numbers: tuple[int, ...]) -> None:
        """Records the traffic manager's decision on a packet."""
        now = self.now
        if kind is RecordKind.PARSED:
            self.add(Step("parsed", self.program.errors[ident], about={"payload": numbers[0]}))
        elif kind is RecordKind.EGRESS_SPEC:
            step = self.add(Step("unicast", value=ident, about={"port": ident}))
            if now is not None and "egress_spec" in now.writers:
                step.place = now.writers["egress_spec"].place
                step.about["by"] = str(now.writers["egress_spec"])
            elif now is not None and ident == 0:
                step.about["by"] = f"port 0{never(0, now.missed)}"
        elif kind is RecordKind.MULTICAST:
            step = self.add(Step("multicast", value=ident, about={"exists": bool(numbers[0]), "replicas": numbers[1]}))
            if now is not None and "mcast_grp" in now.writers:
                step.place = now.writers["mcast_grp"].place
        elif kind is RecordKind.CLONE:
            exists, egress, group, replicas = numbers
            about: dict[str, Any] = {"exists": bool(exists), "from": "egress" if egress else "ingress",
                                     "replicas": replicas}
            if group:
                about["group"] = group
            text = "" if exists else f"clone session {ident} does not exist: no copy is made"
            self.add(Step("copies", text=text, value=ident, about=about))
        elif kind in (RecordKind.RESUBMIT, RecordKind.RECIRCULATE):
            about = {"length": numbers[0]}
            if ident != _NO_LIST:
                about["field_list"] = ident
            self.add(Step("again", kind.name.lower(), about=about))


# ---- values --------------------------------------------------------------------------------------------------------


def _value(site: Site, data: bytes) -> int | bytes | None:
    if site.bits < 0 or site.what == "extract":
        return data
    if site.bits == 0:
        return None
    value = int.from_bytes(data, "little")
    if site.signed and value >> (site.bits - 1) & 1:
        value -= 1 << site.bits
    return value


def _json(value: int | bytes | None) -> int | str | None:
    return value.hex() if isinstance(value, bytes) else value


def _fields(fields: list[tuple[str, int]], data: bytes) -> dict[str, int | str]:
    """The fields of a header, by name; that of a varbit is its bytes in hexadecimal digits."""
    whole, total = int.from_bytes(data, "big"), 8 * len(data)
    left, found = total, {}  # type: int, dict[str, int | str]
    varbit = total - sum(bits for _, bits in fields if bits > 0)
    for name, bits in fields:
        size = bits if bits >= 0 else varbit
        left -= size
        value = whole >> left & ((1 << size) - 1) if size > 0 else 0
        found[name] = value if bits >= 0 else value.to_bytes((size + 7) // 8, "big").hex()
    return found


def _key(key: TracedKey, i: int, parts: list[list[int]]) -> dict[str, Any]:
    """One key field of a lookup: the packet's value and, on a hit, what the entry asks for."""
    about: dict[str, Any] = {"name": key.name, "match": key.match, "bits": key.bits, "value": parts[0][i]}
    if len(parts) == 3:
        value, mask = parts[1][i], parts[2][i]
        if key.match == "lpm":
            about["entry"] = {"value": value, "prefix": mask.bit_count()}
        elif key.match == "range":
            about["entry"] = {"low": value, "high": mask}
        elif key.match in ("ternary", "optional"):
            about["entry"] = {"value": value, "mask": mask}
        else:
            about["entry"] = {"value": value}
    return about
