# SPDX-License-Identifier: Apache-2.0
"""Runs packet tests (STF, softswitch.stf_script) against a program: `softswitch stf PROGRAM.p4 TEST.stf`.

    report = run(Path("prog.p4"), Path("prog.stf"))
    print(report)                 # what differs, as a hexdump with the differing nibbles marked
    report.passed                 # every expectation held and no other frame came out

A frame passes the switch at once, in this process; expectations are compared at the end, port by port, in order.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from softswitch.engine.engine import Engine
from softswitch.engine.entities import (
    ActionInfo,
    CloneSession,
    Count,
    DoAction,
    EngineError,
    Entry,
    InvalidArgument,
    KeyField,
    MatchKind,
    MeterConfig,
    Multicast,
    Named,
    TableInfo,
    by_name,
)
from softswitch.engine.local import LocalEngine
from softswitch.stf_script import (
    Add,
    Call,
    CheckCounter,
    Command,
    Expect,
    NoPacket,
    Packet,
    RemoveAll,
    SetDefault,
    Statement,
    Wait,
    number,
    parse,
)

PACKET_US = 1000
"""Time between two packets, microseconds."""
WAIT_US = 1_000_000
"""What `wait` waits, microseconds of the switch's clock."""

_COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
            ">=": operator.ge}
_LABELLED = "$"
_STAR_TO_ZERO = str.maketrans("*", "0")

_Thing = TypeVar("_Thing", bound=Named | ActionInfo)


@dataclass
class Report:
    """What a test showed; `failures` says what was wrong, each with file and line, `notes` what *_read printed."""

    name: str
    sent: int = 0
    received: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every expectation held and no unexpected frame came out."""
        return not self.failures

    def __str__(self) -> str:
        verdict = "passed" if self.passed else f"FAILED ({len(self.failures)})"
        head = f"{self.name}: {verdict}; {self.sent} frames in, {self.received} out"
        return "\n".join([*self.notes, *self.failures, head])


def run(
    program: Path, test: Path, *, include: Sequence[Path] = (), defines: Mapping[str, str] | None = None, seed: int = 1
) -> Report:
    """Compiles a program and runs a test on it.

    Raises CompileError (bad program), BuildError (C compiler), StfSyntaxError (bad test), OSError.
    """
    from softswitch.compiler.driver import compile_file

    statements = parse(test.read_text(), str(test))
    compiled = compile_file(program, include=include, defines=defines or {})
    params = {action.preamble.id: [p.name for p in action.params] for action in compiled.p4info.actions}
    with Engine.in_process(compiled, seed=seed) as engine:
        return run_statements(engine, statements, params, str(test))


def run_statements(
    engine: LocalEngine, statements: Sequence[Statement], params: Mapping[int, Sequence[str]], name: str = "<stf>"
) -> Report:
    """Runs statements on a switch; `params` has the parameter names of each action by p4info id."""
    return _Runner(engine, params, name).run(statements)


class _Runner:
    def __init__(self, engine: LocalEngine, params: Mapping[int, Sequence[str]], name: str) -> None:
        self._engine, self._params, self._name = engine, params, name
        self._report = Report(name)
        self._out: dict[int, deque[bytes]] = defaultdict(deque)
        self._nodes: list[tuple[int, list[int]]] = []          # BMv2's L1 handles: (rid, ports)
        self._groups: dict[int, list[int]] = {}
        self._labels: dict[str, Entry] = {}

    def run(self, statements: Sequence[Statement]) -> Report:
        for statement in statements:
            try:
                self._execute(statement)
            except (EngineError, ValueError, LookupError) as error:
                self._fail(statement.line, str(error))
        self._compare([s for s in statements if isinstance(s, Expect)],
                      [s for s in statements if isinstance(s, NoPacket)])
        return self._report

    def _execute(self, s: Statement) -> None:
        match s:
            case Packet():
                self._send(s)
            case Add():
                self._add(s)
            case SetDefault():
                table = self._table(s.table)
                self._engine.set_default(table, self._do(table, s.call))
            case RemoveAll():
                for table in self._engine.info.tables:
                    if not table.const_entries:
                        self._engine.clear(table)
            case Wait():
                self._engine.advance(self._engine.now_us + WAIT_US)
            case CheckCounter():
                self._check_counter(s)
            case Command():
                self._command(s)

    def _fail(self, line: int, what: str) -> None:
        self._report.failures.append(f"{self._name}:{line}: {what}")

    # ---- frames --------------------------------------------------------------------------------------------

    def _send(self, s: Packet) -> None:
        self._report.sent += 1
        for port, frame in self._engine.inject(s.port, s.data, now_us=self._engine.now_us + PACKET_US):
            self._report.received += 1
            self._out[port].append(frame)

    def _compare(self, expected: Sequence[Expect], none: Sequence[NoPacket]) -> None:
        anything = {s.port for s in expected if s.pattern is None}
        place: dict[int, int] = defaultdict(int)
        for s in expected:
            got = self._out[s.port]
            if s.pattern is None:
                if not got:
                    self._fail(s.line, f"expected a frame on port {s.port}, none came")
                continue
            place[s.port] += 1
            if not got:
                self._fail(s.line, f"expected frame {place[s.port]} on port {s.port}, none came")
                continue
            frame = got.popleft()
            if not matches(s.pattern, s.exact, frame):
                self._fail(s.line, f"frame {place[s.port]} on port {s.port} differs:\n"
                           + draw_difference(s.pattern, s.exact, frame))
        for port, frames in sorted(self._out.items()):
            for frame in frames if port not in anything else ():
                line = none[0].line if none else 0
                self._fail(line, f"unexpected frame on port {port}:\n" + draw_difference(None, False, frame))

    # ---- tables --------------------------------------------------------------------------------------------

    def _table(self, name: str) -> TableInfo:
        return _by_ending(self._engine.info.tables, name, "table")

    def _do(self, table: TableInfo, call: Call) -> DoAction:
        action = _by_ending(table.actions, call.action, f"action of table {table.name}")
        names, given = self._params.get(action.id, ()), dict(call.args)
        missing, extra = set(names) - set(given), set(given) - set(names)
        if missing or extra:
            raise InvalidArgument(f"action {action.name} takes ({', '.join(names)}), got ({', '.join(given)})")
        return DoAction(action.index, action.pack([number(given[name]) for name in names]))

    def _add(self, s: Add) -> None:
        table = self._table(s.table)
        fields = [_any(key) for key in table.keys]
        for name, value in s.fields:
            index = _field_index(table, name)
            fields[index] = _field(table.keys[index], value)
        key, mask = table.pack_key(fields)
        priority = (s.priority or 0) if table.has_priority else 0
        entry = Entry(table, key, mask, self._do(table, s.call), priority)
        self._engine.insert(entry)
        if s.label:
            self._labels[s.label.removeprefix(_LABELLED)] = entry

    def _check_counter(self, s: CheckCounter) -> None:
        counter = _by_ending(self._engine.info.counters, s.counter, "counter")
        index = s.index.removeprefix(_LABELLED)
        if counter.table >= 0:
            at = self._labels.get(index)
            if at is None:
                raise InvalidArgument(f"{counter.name} is direct: expected the label of an entry, got {s.index}")
            count = self._engine.entry(at.table, at.key, at.mask, at.priority).count
        else:
            (count,) = self._engine.read_counter(counter, number(index), 1)
        if s.check is None:
            return
        kind, comparison, wanted = s.check
        value = count.packets if kind == "packets" else count.bytes
        if not _COMPARE[comparison](value, wanted):
            self._fail(s.line, f"{counter.name}({s.index}) has {value} {kind}, expected {comparison} {wanted}")

    # ---- simple_switch_CLI's commands ----------------------------------------------------------------------

    def _command(self, s: Command) -> None:
        engine, name, args = self._engine, s.name, s.args
        try:
            match name:
                case "mirroring_add":
                    self._mirror(number(args[0]), CloneSession(number(args[0]), ((number(args[1]), 0),)))
                case "mirroring_add_mc":
                    self._mirror(number(args[0]), CloneSession(number(args[0]), (), group=number(args[1])))
                case "mirroring_delete":
                    engine.write_clone_session("delete", CloneSession(number(args[0]), ()))
                case "mirroring_get":
                    self._note(s, engine.clone_sessions(number(args[0])))
                case "mc_mgrp_create":
                    self._groups[number(args[0])] = []
                    engine.write_multicast("insert", Multicast(number(args[0]), ()))
                case "mc_node_create":
                    self._nodes.append((number(args[0]), [number(port) for port in args[1:]]))
                case "mc_node_update":
                    rid, _ = self._nodes[number(args[0])]
                    self._nodes[number(args[0])] = (rid, [number(port) for port in args[1:]])
                    self._write_groups()
                case "mc_node_associate":
                    self._groups[number(args[0])].append(number(args[1]))
                    self._write_groups()
                case _:
                    self._state_command(s)
        except LookupError:
            call = " ".join((name, *args))
            raise InvalidArgument(f"{call}: an argument is missing, or there is no such node") from None

    def _state_command(self, s: Command) -> None:
        engine, args = self._engine, s.args
        match s.name.split("_")[0]:
            case "register":
                register = _by_ending(engine.info.registers, args[0], "register")
                if s.name == "register_read":
                    self._note(s, engine.read_register(register, number(args[1]), 1)[0])
                elif s.name == "register_write":
                    engine.write_register(register, number(args[1]), [number(args[2])])
                else:
                    engine.reset_register(register)
            case "counter":
                counter = _by_ending(engine.info.counters, args[0], "counter")
                if s.name == "counter_read":
                    self._note(s, engine.read_counter(counter, number(args[1]), 1)[0])
                else:
                    engine.write_counter(counter, number(args[1]), [Count(number(args[2]), number(args[3]))])
            case _:
                meter = _by_ending(engine.info.meters, args[0], "meter")
                if s.name == "meter_get_rates":
                    self._note(s, engine.read_meter(meter, number(args[1]), 1)[0])
                elif s.name == "meter_set_rates":
                    engine.write_meter(meter, number(args[1]), [_rates(args[2:])])
                else:
                    engine.write_meter(meter, 0, [_rates(args[1:])] * meter.size)

    def _mirror(self, ident: int, session: CloneSession) -> None:
        known = {s.session for s in self._engine.clone_sessions()}
        self._engine.write_clone_session("modify" if ident in known else "insert", session)

    def _write_groups(self) -> None:
        for group, handles in self._groups.items():
            replicas = [(port, rid) for rid, ports in (self._nodes[h] for h in handles) for port in sorted(ports)]
            self._engine.write_multicast("modify", Multicast(group, tuple(replicas)))

    def _note(self, s: Command, value: object) -> None:
        self._report.notes.append(f"{self._name}:{s.line}: {s.name} {' '.join(s.args)} = {value}")


# ---- matching names and values -----------------------------------------------------------------------------


def _by_ending(things: Sequence[_Thing], name: str, kind: str) -> _Thing:
    """The thing of this name; else the one whose name ends so (after a dot if possible), as p4c's runner has it."""
    found = by_name(things, name) or [thing for thing in things if thing.name.endswith(name)]
    if len(found) != 1:
        have = ", ".join(thing.name for thing in things) or "none"
        raise InvalidArgument(f"{kind} {name} is {'ambiguous' if found else 'unknown'} (there is {have})")
    return found[0]


def _field_index(table: TableInfo, name: str) -> int:
    """Which key field is meant: its name, its last part, NAME$1 for NAME[1], $valid or valid for $valid$."""
    wanted = re.sub(r"\$(\d+)", r"[\1]", name)
    if wanted == "valid" or wanted.endswith((".valid", "$valid")):
        wanted = re.sub(r"\$?valid$", "$valid$", wanted)
    names = [key.name for key in table.keys]
    for found in (
        [i for i, key in enumerate(names) if key in (wanted, wanted + "$", wanted + ".$valid$")],
        [i for i, key in enumerate(names) if key.endswith(("." + wanted, "." + wanted + "$"))],
    ):
        if len(found) == 1:
            return found[0]
    raise InvalidArgument(f"table {table.name} has no key field {name} (it has {', '.join(names)})")


def _any(key: KeyField) -> tuple[int, int]:
    return (0, key.ones) if key.match is MatchKind.EXACT else key.any


def _field(key: KeyField, text: str) -> tuple[int, int]:
    """The (value, mask) that a value of the test means for this field."""
    if ".." in text:
        low, high = (number(part) for part in text.split(".."))
        if key.match is not MatchKind.RANGE:
            raise InvalidArgument(f"key field {key.name} is no range, got {text}")
        return low, high
    if "/" in text:
        value, length = (number(part) for part in text.split("/"))
        return key.prefix(value, length)
    digits = text.translate(_STAR_TO_ZERO)
    match key.match:
        case MatchKind.RANGE:
            return number(text), number(text)
        case MatchKind.TERNARY:
            return number(digits), _mask(text, key)
        case MatchKind.LPM if not text.isdecimal():
            per_digit = {"x": 4, "b": 1, "o": 3}[text[1].lower()]
            return key.prefix(number(digits), (len(text) - 2 - text.count("*")) * per_digit)
    if "*" in text:
        raise InvalidArgument(f"key field {key.name} takes no * ({key.match.name.lower()}), got {text}")
    return number(text), key.ones


def _mask(text: str, key: KeyField) -> int:
    """A ternary value's mask covers the digits that are written, no more: 0x1 leaves the bits above the digit open."""
    if text.isdecimal():
        return key.ones
    full = {"x": "f", "b": "1", "o": "7"}[text[1].lower()]
    return number(text[:2] + re.sub(r"[^*]", full, text[2:]).translate(_STAR_TO_ZERO)) & key.ones


def _rates(args: Sequence[str]) -> MeterConfig:
    """simple_switch_CLI's RATE:BURST RATE:BURST, committed first, rates in units a microsecond."""
    if len(args) != 2 or any(":" not in arg for arg in args):
        raise InvalidArgument(f"expected RATE:BURST RATE:BURST, got {' '.join(args)}")
    (cir, cburst), (pir, pburst) = (arg.split(":") for arg in args)
    return MeterConfig(round(float(cir) * 1e6), int(cburst), round(float(pir) * 1e6), int(pburst))


# ---- comparing frames --------------------------------------------------------------------------------------


def matches(pattern: str, exact: bool, frame: bytes) -> bool:
    """Whether a frame is what a pattern (hex digits and *) describes; without `exact` it may be longer."""
    got = frame.hex()
    if len(got) < len(pattern) or (exact and len(got) > len(pattern)):
        return False
    return all(p in ("*", g) for p, g in zip(pattern, got, strict=False))


def draw_difference(pattern: str | None, exact: bool, frame: bytes, *, width: int = 16) -> str:
    """Both frames as hexdumps, line under line, with a ^ under every nibble that is wrong, missing or too much."""
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
