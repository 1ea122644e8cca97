# SPDX-License-Identifier: Apache-2.0
"""Traces in the words of BMv2's log (`simple_switch --log-console`), for people and tools that know these.

Lines, their order and their levels are BMv2's. It differs in what stems from how p4c translates a program for BMv2 and
has no place in ours: numbers of conditions and names of tables that p4c makes of statements are made likewise and may
differ; temporary variables and tables have no lines. Copies of a packet follow one another, where BMv2's threads mix
them.
"""

from __future__ import annotations

import re
import time
from pathlib import PurePath
from typing import Any

from softswitch.runtime.printable import clean
from softswitch.trace.program import Site, TracedProgram
from softswitch.trace.reasons import DROP_PORT
from softswitch.trace.steps import PacketTrace, Step

_TOP_PRIORITY = (1 << 31) - 1
"""BMv2's least priority wins and P4Runtime's greatest: one is this minus the other; const entries count from 1."""


_IF_VALID = re.compile(r"verify_checksum\w*\(\s*(?:[\w.]+\.isValid\(\)|\.\.\.)")
"""A verification whose condition is only its header's validity, which BMv2 checks before the condition."""


class Bmv2Words:
    """Writes traces as lines of a log."""

    def __init__(self) -> None:
        self._names: dict[TracedProgram, _Names] = {}

    def lines(self, trace: PacketTrace) -> str:
        """The lines of one packet, with a line break at the end."""
        names = self._names.get(trace.program)
        if names is None:
            names = self._names[trace.program] = _Names(trace.program)
        return _Packet(trace, names).run()


class _Names:
    """Names that p4c gives to what has none in the program: conditions, and tables for statements outside actions."""

    def __init__(self, program: TracedProgram) -> None:
        self.headers: dict[str, int] = {}
        self.stacks: dict[str, int] = {}
        ident = 2  # after "scalars" and "standard_metadata"
        for name, size in program.instances:
            if size:
                self.stacks[name] = len(self.stacks)
            for i in range(size):
                self.headers[f"{name}[{i}]"] = ident + i
            if not size:
                self.headers[name] = ident
            ident += size or 1
        self.const = {table.name: table.const for table in program.tables}
        self.nodes: dict[tuple[int, int], str] = {}
        self.runs: dict[tuple[int, int], str] = {}
        self.checksums: dict[tuple[int, int], str] = {}
        self._walk(program.sites)
        for kind in ("update", "verify"):
            for site in program.sites:
                if site.what == "checksum" and site.name == kind:
                    n = len(self.checksums)
                    self.checksums.setdefault(_at(site), f"cksum_{n - 1}" if n else "cksum")

    def _walk(self, sites: list[Site]) -> None:
        node, stage, used = 2, "", set[str]()
        depth_of_action: int | None = None
        run: int | None = None  # the depth of the run of statements
        for site in sites:
            if site.depth is None:
                continue
            if site.what == "stage":
                stage, run, depth_of_action = site.name, None, None
                continue
            if stage not in ("ingress", "egress"):
                continue
            if depth_of_action is not None and site.depth > depth_of_action:
                continue
            depth_of_action = None
            if site.what == "statement":
                if run != site.depth:
                    base = f"{PurePath(site.place.file).stem}{site.place.line}"
                    name, n = base, 0
                    while name in used:
                        name, n = f"{base}_{n}", n + 1
                    used.add(name)
                    self.runs.setdefault(_at(site), name)
                    run, node = site.depth, node + 1
                continue
            run = None
            if site.what == "action":
                depth_of_action = site.depth
            elif site.what in ("condition", "apply"):
                if site.what == "condition":
                    self.nodes.setdefault(_at(site), f"node_{node}")
                node += 1


def _at(of: Site | Step) -> tuple[int, int]:
    return (of.place.line, of.place.column) if of.place is not None else (0, 0)


class _Packet:
    """Writes the lines of one packet."""

    def __init__(self, trace: PacketTrace, names: _Names) -> None:
        self.trace, self.names = trace, names
        self.out: list[str] = []
        now = (trace.program.started_us + trace.now_us) / 1e6
        self.stamp = f"[{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now * 1000) % 1000:03d}] [bmv2]"
        self.copies = 0
        self.copy = 0
        self.parsed = 0
        self.stage = ""
        self.in_action = False

    def run(self) -> str:
        for i, step in enumerate(self.trace.steps):
            if step.what == "pass" and step.name == "ingress":
                self.ingress(step, self.another() if i else 0)
            elif step.what == "pass":
                self.egress(step, self.another())
        return "\n".join(self.out) + "\n" if self.out else ""

    def say(self, level: str, text: str, *, packet: bool = True) -> None:
        of = f" [{self.trace.number}.{self.copy}] [cxt 0]" if packet else ""
        lines = [clean(line) for line in text.split("\n")]
        self.out.append(f"{self.stamp} [{level}] [thread 1]{of} " + "\n".join(lines))

    def source(self, step: Step) -> str:
        """BMv2's prefix with file and line."""
        if step.place is None:
            return ""
        return f"{PurePath(step.place.file).name}({step.place.line}) "

    def another(self) -> int:
        self.copies += 1
        return self.copies

    # ---- passes -------------------------------------------------------------------------------------------------

    def ingress(self, step: Step, copy: int) -> None:
        self.copy = copy
        self.say("D", f"Processing packet received on port {self.trace.port}")  # in later rounds as well
        end = ""
        steps = list(step.steps)
        for i, part in enumerate(steps):
            if part.what == "pass":
                self.branch(part, copy, multicast="Multicast" in end)
            elif part.what == "stage":
                self.show_stage(part, steps[i + 1 :])
            elif part.what == "copies":
                self.say("D", f"Cloning packet at {part.about['from']}")
                self.where_clones_go(part, steps[i + 1 :])
            elif part.what == "again":
                self.say("D", "Resubmitting packet")
            elif part.what == "multicast":
                end = "Multicast"
                self.say("D", "Multicast requested for packet")
                self.say("D", f"number of packets replicated : {part.about['replicas']} for MGID: {_number(part)}",
                         packet=False)
            elif part.what == "unicast":
                self.say("D", f"Egress port is {_number(part)}")
                if part.value == DROP_PORT:
                    self.say("D", "Dropping packet at the end of ingress")
            elif part.what == "log":
                self.say("I", part.text, packet=False)

    def where_clones_go(self, part: Step, rest: list[Step]) -> None:
        if not part.about["exists"]:
            return
        if "group" in part.about:
            self.say("D", f"Cloning packet to MGID {part.about['group']}")

    def branch(self, part: Step, copy: int, *, multicast: bool) -> None:
        if part.name == "clone":
            self.copy = self.another()
            clone = self.copy
            for inner in part.steps:
                self.copy = clone
                if inner.what == "stage":
                    self.show_stage(inner, [])
                elif inner.what == "pass":
                    self.copy = copy
                    self.say("D", f"Cloning packet to egress port {inner.about['port']}")
                    self.egress(inner, clone)
                    clone = self.another() if inner is not part.steps[-1] else clone
            self.copy = copy
            return
        if multicast:
            self.say("D", f"Replicating packet on port {part.about['port']}")
        self.egress(part, self.another() if multicast else copy)
        self.copy = copy

    def egress(self, step: Step, copy: int) -> None:
        self.copy = copy
        for i, part in enumerate(step.steps):
            if part.what == "stage":
                self.show_stage(part, step.steps[i + 1 :])
            elif part.what == "copies":
                self.say("D", "Cloning packet at egress")
                for made in self.trace.steps:
                    if made.about.get("parent") == step.about["number"] and made.name == "egress":
                        self.say("D", f"Cloning packet to egress port {made.about['port']}")
            elif part.what == "again":
                self.say("D", "Recirculating packet")
            elif part.what == "drop" and part.name == "egress":
                self.say("D", "Dropping packet at the end of egress")
            elif part.what == "out":
                self.say("D", f"Transmitting packet of size {part.about['length']} out of port {part.about['port']}")
            elif part.what == "packet_in":
                self.say("D", f"Transmitting packet of size {part.about['length']} out of port {step.about['port']}")

    # ---- stages -------------------------------------------------------------------------------------------------

    def show_stage(self, step: Step, rest: list[Step]) -> None:
        self.stage = step.name
        match step.name:
            case "parse":
                self.parsed = 0
                self.say("D", "Parser 'parser': start")
                self.parser(step.steps)
                if not any(part.what == "stage" and part.name == "verify_checksum" for part in rest):
                    self.say("D", "Parser 'parser': end")
            case "verify_checksum":
                self.checksums(step)
                self.say("D", "Parser 'parser': end")
            case "ingress" | "egress":
                self.say("D", f"Pipeline '{step.name}': start")
                self.control(step.steps)
                self.say("D", f"Pipeline '{step.name}': end")
            case "compute_checksum":
                self.say("D", "Deparser 'deparser': start")
                self.checksums(step)
            case "deparse":
                for part in step.walk():
                    if part.what == "emit":
                        self.say("D", f"Deparsing header '{part.name.removeprefix('hdr.')}'")
                self.say("D", "Deparser 'deparser': end")

    def parser(self, steps: list[Step]) -> None:
        for step in steps:
            if step.what == "state":
                self.say("D", f"Parser 'parser' entering state '{step.name}'")
                self.in_state(step)
            else:
                self.parser(step.steps)

    def in_state(self, state: Step) -> None:
        key = ""
        for part in state.walk():
            match part.what:
                case "extract":
                    self.extract(part)
                case "advance":
                    assert isinstance(part.value, int)
                    self.parsed += part.value // 8
                    self.say("D", f"Advancing by {part.value // 8} bytes")
                case "set" if isinstance(part.value, int):
                    name = part.name
                    if name.startswith("meta."):
                        name = f"scalars.{self.trace.program.metadata}.{name.removeprefix('meta.')}"
                    name = name.removeprefix("hdr.")
                    self.say("D", f"Parser set: setting field '{name}' from expression, new value is {_number(part)}")
                case "parser_error":
                    self.say("E", f"Exception while parsing: {part.name}")
                    return
                case "key":
                    value = part.value if isinstance(part.value, int) else 0
                    size = (part.about.get("bits", 8) + 7) // 8
                    key += f"{value & ((1 << 8 * size) - 1):0{2 * size}x}"
                case "select":
                    self.say("D", f"Parser state '{state.name}': key is {key}")
                case "next":
                    self.say("D", f"Parser state '{state.name}' has no switch, going to default next state")
        self.say("T", f"Bytes parsed: {self.parsed}")

    def extract(self, step: Step) -> None:
        self.parsed += len(step.about["bytes"]) // 2
        name = step.name.removeprefix("hdr.")
        if step.about.get("stack"):
            stack = self.names.stacks.get(name.partition("[")[0], 0)
            self.say("D", f"Extracting to header stack {stack}, next header is {self.names.headers.get(name, 0)}")
        elif any(isinstance(value, str) for value in step.about["fields"].values()):
            self.say("D", f"Extracting variable-sized header '{name}'")
        else:
            self.say("D", f"Extracting header '{name}'")

    def checksums(self, stage: Step) -> None:
        asked = ""
        for step in stage.walk():
            if step.what == "statement":
                asked = step.text
            if step.what != "checksum":
                continue
            name = self.names.checksums.get(_at(step), "cksum")
            about = step.about
            if not step.value:
                what = "verification" if step.name == "verify" else "update"
                invalid = step.name == "verify" and _IF_VALID.match(asked)
                why = "target field invalid" if invalid else "condition not met"
                self.say("T", f"Skipping checksum '{name}' {what} because {why}")
            elif step.name == "update":
                self.say("D", f"Updating checksum '{name}'")
            else:
                computed, given = about.get("computed", 0), about.get("given", 0)
                self.say("D", f"Checksum '{name}': computed {computed:#x} - actual {given:#x}")
                self.say("D", f"Verified checksum '{name}': {'passed' if about.get('ok') else 'failed'}")

    def control(self, steps: list[Step]) -> None:
        """Steps outside of actions; p4c makes a table of each run of statements, and of each action that is called."""
        for step in steps:
            match step.what:
                case "apply":
                    self.apply(step)
                case "condition":
                    result = "true" if step.value else "false"
                    node = self.names.nodes.get(_at(step), "node")
                    self.say("T", f'{self.source(step)}Condition "{step.text}" ({node}) is {result}')
                    self.control(step.steps)
                case "statement":
                    self.control([part for part in step.steps if part.what == "apply"])
                    name = self.names.runs.get(_at(step))
                    if name is not None:
                        self.table_of_statements(name)
                    self.primitive(step)
                    if step.text == "exit":
                        self.say("D", "Packet is marked for exit, interrupting pipeline")
                case "action":
                    self.table_of_statements(step.name.rpartition(".")[2], step.name)
                    self.action_body(step)
                case "log":
                    self.say("I", step.text, packet=False)
                case _:
                    self.control(step.steps)

    def table_of_statements(self, name: str, action: str = "") -> None:
        self.say("T", f"Applying table 'tbl_{name}'")
        self.say("D", "Looking up key:\n")
        self.say("D", f"Table 'tbl_{name}': miss")
        self.say("D", f"Action entry is {action or name} - ")
        self.say("T", f"Action {action or name}")

    def apply(self, step: Step) -> None:
        about = step.about
        if "hit" not in about:
            return
        self.say("T", f"Applying table '{step.name}'")
        width = max([20, *(len(part["name"]) for part in about["key"])])
        rows = "".join(f"* {part['name']:<{width}}: {_hex(part['value'], part['bits'])}\n" for part in about["key"])
        self.say("D", f"Looking up key:\n{rows}")
        entry = "NULL"
        if about["action"] is not None:
            entry = f"{about['action']} - " + "".join(f"{value:x}," for value in about["params"].values())
        if about["hit"]:
            handle = _handle(about["handle"])
            self.say("D", f"Table '{step.name}': hit with handle {handle}")
            rows = "".join(f"* {part['name']:<{width}}: {_match(part)}\n" for part in about["key"])
            priority = ""
            if "priority" in about:
                const = self.names.const.get(step.name, 0)
                priority = f"Priority: {(const + 1 if const else _TOP_PRIORITY) - about['priority']}\n"
            self.say("D", f"Dumping entry {handle}\nMatch key:\n{rows}{priority}Action entry: {entry}\n")
            if "group" in about:
                self.say("D", f"Choosing member {about['member']} from group {about['group']}")
        else:
            self.say("D", f"Table '{step.name}': miss")
        self.say("D", f"Action entry is {entry}")
        for part in step.steps:
            if part.what == "action":
                self.say("T", f"Action {part.name}")
                self.action_body(part)
            else:
                self.control([part])

    def action_body(self, action: Step) -> None:
        for step in action.steps:
            if step.what == "statement":
                self.primitive(step)
            elif step.what in ("condition", "case", "action", "block"):
                self.action_body(step)
            elif step.what == "log":
                self.say("I", step.text, packet=False)

    def primitive(self, step: Step) -> None:
        self.say("T", f"{self.source(step)}Primitive {step.text}")
        for part in step.steps:
            self.extern(part)

    def extern(self, step: Step) -> None:
        about, index = step.about, _number(step)
        match step.what:
            case "count":
                self.say("T", f"Updated counter '{step.name}' at index {index}")
            case "register_read":
                result = about.get("result")
                self.say("T", f"Read register '{step.name}' at index {index} read value {result}")
            case "register_write":
                self.say("T", f"Wrote register '{step.name}' at index {index} with value {about.get('value')}")
            case "meter":
                self.say("D", f"Executing meter {step.name}[{index}]")
                self.say("T", f"Updated meter '{step.name}' at index {index}, assigning dest field the color result "
                              f"{about.get('result')}")
            case "hash":
                base, most = about.get("base", "?"), about.get("max", "?")
                self.say("T", f"hash(base={base}, max={most}) = {about.get('result')}")
            case "log":
                self.say("I", step.text, packet=False)


def _number(step: Step) -> str:
    """The value of a step, in decimal digits."""
    return step.value.hex() if isinstance(step.value, bytes) else str(step.value)


def _hex(value: int, bits: int) -> str:
    return f"{value:0{2 * ((bits + 7) // 8)}x}"


def _handle(handle: int) -> int:
    """BMv2's number of an entry: its place, and in the upper eight bits how often that was used before."""
    return (handle >> 32 & 0xFF) << 24 | handle & 0xFFFFFF


def _match(part: dict[str, Any]) -> str:
    """A key field of an entry, as BMv2 dumps it."""
    bits, entry = part["bits"], part["entry"]
    match part["match"]:
        case "lpm":
            return f"LPM       {_hex(entry['value'], bits)}/{entry['prefix']}"
        case "range":
            return f"RANGE     {_hex(entry['low'], bits)} -> {_hex(entry['high'], bits)}"
        case "ternary" | "optional":
            return f"TERNARY   {_hex(entry['value'], bits)} &&& {_hex(entry['mask'], bits)}"
    return f"EXACT     {_hex(entry['value'], bits)}"
