# SPDX-License-Identifier: Apache-2.0
"""Runs packet tests (STF, softswitch.stf.script) against a program: `softswitch stf PROGRAM.p4 TEST.stf`.

    report = run(Path("prog.p4"), Path("prog.stf"))
    print(report)                 # what differs, as a hexdump with the differing nibbles marked
    report.passed                 # every expectation held and no other frame came out

A frame passes the switch in this process, without delay; expectations are compared at the end, port by port, in order.
"""

from __future__ import annotations

import operator
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softswitch.engine.entities import DoAction, Entry
from softswitch.engine.errors import EngineError, InvalidArgument
from softswitch.engine.local import LocalEngine
from softswitch.engine.program_info import TableInfo
from softswitch.runtime import files
from softswitch.stf.commands import Commands
from softswitch.stf.frames import draw_difference, matches
from softswitch.stf.script import (
    ActionCall,
    Add,
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
from softswitch.stf.values import any_value, by_ending, field_index, field_value

PACKET_US = 1000
"""Microseconds between two packets."""
WAIT_US = 1_000_000
"""Microseconds of the switch's clock that `wait` waits."""

_COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
            ">=": operator.ge}
_LABELLED = "$"

@dataclass
class Report:
    """The result of a test: `failures`, each with file and line, and `notes`, which *_read commands have printed."""

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

    statements = parse(files.read_text(test), str(test))
    compiled = compile_file(program, include=include, defines=defines or {})
    params = {action.preamble.id: [p.name for p in action.params] for action in compiled.p4info.actions}
    with LocalEngine.open(compiled, seed=seed) as engine:
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
        self._commands = Commands(engine, self._note)
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
                self._commands.run(s)

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
        return by_ending(self._engine.info.tables, name, "table")

    def _do(self, table: TableInfo, call: ActionCall) -> DoAction:
        action = by_ending(table.actions, call.action, f"action of table {table.name}")
        names, given = self._params.get(action.id, ()), dict(call.args)
        missing, extra = set(names) - set(given), set(given) - set(names)
        if missing or extra:
            raise InvalidArgument(f"action {action.name} takes ({', '.join(names)}), got ({', '.join(given)})")
        return DoAction(action.index, action.pack([number(given[name]) for name in names]))

    def _add(self, s: Add) -> None:
        table = self._table(s.table)
        fields = [any_value(key) for key in table.keys]
        for name, value in s.fields:
            index = field_index(table, name)
            fields[index] = field_value(table.keys[index], value)
        key, mask = table.pack_key(fields)
        priority = (s.priority or 0) if table.has_priority else 0
        entry = Entry(table, key, mask, self._do(table, s.call), priority)
        self._engine.insert(entry)
        if s.label:
            self._labels[s.label.removeprefix(_LABELLED)] = entry

    def _check_counter(self, s: CheckCounter) -> None:
        counter = by_ending(self._engine.info.counters, s.counter, "counter")
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

    def _note(self, s: Command, value: object) -> None:
        self._report.notes.append(f"{self._name}:{s.line}: {s.name} {' '.join(s.args)} = {value}")
