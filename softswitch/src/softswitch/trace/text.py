# SPDX-License-Identifier: Apache-2.0
"""Traces as text for people: one line a step, indented, with the place in the source at its end."""

from __future__ import annotations

from typing import Any

from softswitch.runtime.printable import clean
from softswitch.trace.reasons import DROP_PORT
from softswitch.trace.steps import PacketTrace, Step

_STAGES = {"parse": "parser", "verify_checksum": "checksums", "ingress": "control", "egress": "control",
           "compute_checksum": "checksums", "deparse": "deparser"}
_COLUMN = 88
_BYTES = 128
"""Most bytes of a frame that are shown; JSON has all that were recorded."""


def to_text(trace: PacketTrace) -> str:
    """The trace of a frame as lines, with a line break at the end."""
    lines = [f"packet {trace.number}: {trace.length} bytes in at port {trace.port}, {trace.now_us / 1e6:.6f} s",
             f"  {_bytes(trace.frame, trace.length)}"]
    for step in trace.steps:
        _show(step, 1, lines)
    if trace.cut:
        lines.append("  (there are more steps, for which there was no room)")
    return "\n".join(lines) + "\n"


def _show(step: Step, depth: int, lines: list[str]) -> None:
    text = clean(_words(step))
    inner = step.steps
    if step.what == "statement" and len(inner) == 1 and inner[0].what == "set" and not inner[0].steps:
        text += f"    = {clean(_number(inner[0]))}"
        inner = []
    line = f"{'  ' * depth}{text}"
    if step.place is not None and step.what not in ("set", "extract", "emit"):
        line = f"{line:<{_COLUMN}}  {clean(step.place.brief)}"
    lines.append(line)
    if step.what in ("out", "packet_in") and isinstance(step.value, bytes):
        lines.append(f"{'  ' * (depth + 1)}{_bytes(step.value, step.about['length'])}")
    for part in inner:
        if part.what != "unicast" or part.value != DROP_PORT:  # the drop itself follows
            _show(part, depth + 1, lines)


def _words(step: Step) -> str:
    about = step.about
    match step.what:
        case "pass":
            return _pass(step)
        case "stage":
            return f"{_STAGES.get(step.name, step.name)} {step.text}"
        case "block":
            return f"apply {step.text}"
        case "state":
            return f"state {step.name}"
        case "key":
            return f"select on {_number(step)}"
        case "select":
            return f"case {step.text} -> {step.name}" if step.text else "no case matches -> reject"
        case "next":
            return f"-> {step.name}"
        case "extract":
            fields = ", ".join(f"{name} {_value(value)}" for name, value in about.get("fields", {}).items())
            return f"extract {step.name} at byte {about['offset']}: {fields}"
        case "parser_error":
            return f"parser error {step.name}"
        case "parsed":
            rest = f"{about['payload']} bytes of payload"
            return f"parsed: {rest}" if step.name == "NoError" else f"parser_error is {step.name}; {rest}"
        case "condition":
            return f"if ({step.text}): {'true' if step.value else 'false'}"
        case "case":
            return f"case {step.text}"
        case "set":
            return f"{step.name} = {_number(step)}"
        case "valid" | "invalid":
            return f"{step.name} is {step.what}"
        case "apply":
            return _apply(step)
        case "action":
            return f"action {step.name}"
        case "checksum":
            return _checksum(step)
        case "emit":
            return f"emit {step.name}"
        case "log":
            return f"log: {step.text}"
        case "drop":
            return f"DROPPED: {step.text}"
        case "out" | "packet_in":
            where = f"port {about['port']}" if step.what == "out" else "the controller"
            why = f" ({about['why']})" if "why" in about else ""
            return f"out: {about['length']} bytes to {where}{why}"
        case "unicast":
            by = f": {about['by']}" if "by" in about else ""
            return f"egress_spec is {about['port']}{by}"
        case "multicast":
            return f"multicast group {_number(step)}: {about['replicas']} replicas"
        case "copies":
            return step.text or f"clone session {_number(step)}: {about['replicas']} replicas" + (
                f" and multicast group {about['group']}" if "group" in about else "")
        case "again":
            how = "resubmitted" if step.name == "resubmit" else "recirculated"
            return f"{how}: {about['length']} bytes from the parser on again"
    shown = "" if step.value is None else f"[{_number(step)}]"
    result = f" -> {_value(about['result'])}" if "result" in about else ""
    written = f" = {_value(about['value'])}" if "value" in about else ""
    return step.text or f"{step.what.replace('_', ' ')} {step.name}{shown}{written}{result}".rstrip()


def _pass(step: Step) -> str:
    about = step.about
    kind = "" if about["instance_type"] == "normal" else f", {about['instance_type']}"
    if step.name == "egress":
        instance = f", instance {about['instance']}" if about.get("instance") else ""
        return f"EGRESS to port {about['port']}{instance}{kind}"
    if step.name == "clone":
        return "CLONE of the frame as it came"
    return f"INGRESS from port {about['port']}{kind}"


def _apply(step: Step) -> str:
    about = step.about
    if "hit" not in about:
        return f"table {step.name}"
    key = ", ".join(_key(part) for part in about["key"])
    params = ", ".join(f"{name} {_value(value)}" for name, value in about["params"].items())
    runs = f"{about['action']}({params})" if about["action"] else "no action"
    head = f"table {step.name}: {key or 'no key'}: "
    if not about["hit"]:
        return f"{head}no entry matches -> default {runs}"
    priority = f", priority {about['priority']}" if "priority" in about else ""
    group = f", group {about['group']}" if "group" in about else ""
    member = f", member {about['member']}" if "member" in about else ""
    return f"{head}hit entry {about['slot']}{priority}{group}{member} -> {runs}"


def _key(part: dict[str, Any]) -> str:
    entry = part.get("entry")
    said = f"{part['name']} {_value(part['value'])}"
    match (part["match"], entry):
        case ("lpm", {"value": value, "prefix": prefix}):
            return f"{said} in {_value(value)}/{prefix}"
        case ("range", {"low": low, "high": high}):
            return f"{said} in {_value(low)}..{_value(high)}"
        case ("ternary" | "optional", {"value": value, "mask": mask}):
            return f"{said} is {_value(value)} &&& {_value(mask)}" if mask else f"{said} (any)"
    return said


def _checksum(step: Step) -> str:
    about = step.about
    if not step.value:
        return f"{step.name}: not asked for"
    if step.name == "update":
        return f"update: {_value(about.get('computed', 0))}"
    if about.get("ok"):
        return "verify: right"
    return f"verify: WRONG: expected {_value(about.get('computed', 0))}, got {_value(about.get('given', 0))}"


def _bytes(frame: bytes, length: int) -> str:
    """The start of a frame of so many bytes, as `softswitch explain --packet` takes it where it is whole."""
    return frame[:_BYTES].hex() + ("..." if length > min(len(frame), _BYTES) else "")


def _number(step: Step) -> str:
    return "(copied)" if step.value is None else _value(step.value)


def _value(value: Any) -> str:
    """A number as people read it: small ones decimal, others in hexadecimal digits, two a byte."""
    if isinstance(value, bytes):
        return value.hex() or "(empty)"
    if isinstance(value, int):
        if -1000 < value < 1000:
            return str(value)
        digits = f"{abs(value):x}"
        return f"{'-' if value < 0 else ''}0x{'0' * (len(digits) % 2)}{digits}"
    return str(value)
