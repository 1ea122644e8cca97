# SPDX-License-Identifier: Apache-2.0
"""The language of packet tests (STF), as p4c's own tests use it: text to a list of statements.

    add TABLE [PRIORITY] FIELD:VALUE ... ACTION(PARAM:VALUE, ...) [= LABEL]      larger priority wins
    setdefault TABLE ACTION(...)            remove all            wait            no_packet
    packet PORT HEX                         expect PORT [HEX [$]]     * is any nibble, $ ends the frame
    check_counter NAME(INDEX or LABEL) [packets|bytes ==|!=|<|<=|>|>= N]
    mirroring_add, mirroring_add_mc, mirroring_delete, mirroring_get, mc_mgrp_create, mc_node_create, mc_node_update,
    mc_node_associate, counter_read, counter_write, register_read, register_write, register_reset, meter_get_rates,
    meter_set_rates, meter_array_set_rates                with the arguments of BMv2's simple_switch_CLI

Values: decimal, 0x, 0b, 0o; * for a digit that does not matter; VALUE/LENGTH for prefixes; LOW..HIGH for ranges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


class StfSyntaxError(Exception):
    """A statement that cannot be read; the message names file, line and what was expected.

    Remedy: correct the line that the message shows; docs/softswitch.md has the language.
    """


@dataclass(frozen=True)
class Statement:
    """A statement and the line it stands on."""

    line: int


@dataclass(frozen=True)
class ActionCall:
    """An action with named arguments."""

    action: str
    args: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Add(Statement):
    """`add`: an entry; fields as (name, value in the script's notation)."""

    table: str
    priority: int | None
    fields: tuple[tuple[str, str], ...]
    call: ActionCall
    label: str | None


@dataclass(frozen=True)
class SetDefault(Statement):
    """`setdefault`: a table's default action."""

    table: str
    call: ActionCall


@dataclass(frozen=True)
class Packet(Statement):
    """`packet`: a frame that comes in at a port."""

    port: int
    data: bytes


@dataclass(frozen=True)
class Expect(Statement):
    """`expect`: a frame that leaves a port; pattern: hex digits and *, or None where any frame is accepted."""

    port: int
    pattern: str | None
    exact: bool


@dataclass(frozen=True)
class NoPacket(Statement):
    """`no_packet`: no frame may come out unexpectedly."""


@dataclass(frozen=True)
class Wait(Statement):
    """`wait`: a second of the switch's clock passes."""


@dataclass(frozen=True)
class RemoveAll(Statement):
    """`remove_all`: entries of all tables."""


@dataclass(frozen=True)
class CheckCounter(Statement):
    """`check_counter`; check: (packets or bytes, comparison, number), or None where the counter only has to exist."""

    counter: str
    index: str
    check: tuple[str, str, int] | None


@dataclass(frozen=True)
class Command(Statement):
    """One of simple_switch_CLI's commands."""

    name: str
    args: tuple[str, ...]


COMMANDS = frozenset((
    "mirroring_add", "mirroring_add_mc", "mirroring_delete", "mirroring_get", "mc_mgrp_create", "mc_node_create",
    "mc_node_update", "mc_node_associate", "counter_read", "counter_write", "register_read", "register_write",
    "register_reset", "meter_get_rates", "meter_set_rates", "meter_array_set_rates",
))
"""simple_switch_CLI's commands that tests may use."""

_NAME = r'"[^"]+"|[A-Za-z_$][\w$]*(?:\[\d+\])?(?:\.(?:[A-Za-z_$][\w$]*(?:\[\d+\])?))*'
_VALUE = r"0[xX][0-9a-fA-F*]+|0[bB][01*]+|0[oO][0-7*]+|\d+"
_ADD_HEAD = re.compile(rf"\s*({_NAME})\s*(\d+(?![\w:]))?\s*")
_FIELD = re.compile(rf"\s*({_NAME})\s*:\s*((?:{_VALUE})(?:\s*(?:/|\.\.)\s*(?:{_VALUE}))?)\s*")
_CALL = re.compile(rf"\s*({_NAME})\s*\(([^()]*)\)\s*(?:=\s*(\S+))?\s*$")
_ARG = re.compile(rf"\s*({_NAME})\s*:\s*({_VALUE})\s*$")
_SET = re.compile(rf"\s*({_NAME})\s+(.*)$")
_DATA = re.compile(r"\s*(\d+)\s*([0-9a-fA-F*\s]*?)\s*(\$?)\s*$")
_CHECK = re.compile(
    rf"\s*({_NAME})\s*\(\s*(\$?\w+)\s*\)\s*(?:(packets|bytes)\s*(==|!=|<=|>=|<|>)\s*(\d+))?\s*$", re.IGNORECASE)


def number(text: str) -> int:
    """Parse an integer in any of the notations, without *."""
    return int(text, 0) if not text.isdecimal() else int(text)


def parse(text: str, name: str = "<stf>") -> list[Statement]:
    """Parse all statements of a test. Raises StfSyntaxError."""
    return list(_statements(text, name))


def _statements(text: str, name: str) -> Iterator[Statement]:
    for line, raw in enumerate(text.splitlines(), 1):
        words = raw.split("#", 1)[0].strip()
        if not words:
            continue
        keyword, _, rest = words.partition(" ") if " " in words else words.partition("\t")
        try:
            yield _statement(keyword.lower(), rest.strip(), line)
        except ValueError as error:
            raise StfSyntaxError(f"{name}:{line}: {error}\n    {raw.strip()}") from None


def _statement(keyword: str, rest: str, line: int) -> Statement:
    match keyword:
        case "add":
            return _add(rest, line)
        case "setdefault":
            found = _need(_SET, rest, "setdefault TABLE ACTION(PARAM:VALUE, ...)")
            return SetDefault(line, _unquote(found[1]), _call(found[2])[0])
        case "packet":
            found = _need(_DATA, rest, "packet PORT HEX")
            return Packet(line, int(found[1]), bytes.fromhex("".join(found[2].split())))
        case "expect":
            found = _need(_DATA, rest, "expect PORT [HEX with * for any nibble] [$]")
            pattern = "".join(found[2].split()).lower()
            return Expect(line, int(found[1]), pattern if pattern or found[3] else None, bool(found[3]))
        case "no_packet":
            return NoPacket(line)
        case "wait":
            return Wait(line)
        case "remove":
            if rest.lower() != "all":
                raise ValueError("expected: remove all")
            return RemoveAll(line)
        case "check_counter":
            found = _need(_CHECK, rest, "check_counter NAME(INDEX) [packets|bytes COMPARISON NUMBER]")
            check = (found[3].lower(), found[4], int(found[5])) if found[3] else None
            return CheckCounter(line, _unquote(found[1]), found[2], check)
        case _ if keyword in COMMANDS:
            return Command(line, keyword, tuple(rest.split()))
    known = ", ".join(sorted({"add", "setdefault", "packet", "expect", "no_packet", "wait", "remove",
                              "check_counter"} | COMMANDS))
    raise ValueError(f'unknown statement "{keyword}"; expected one of {known}')


def _add(rest: str, line: int) -> Add:
    shape = "add TABLE [PRIORITY] FIELD:VALUE ... ACTION(PARAM:VALUE, ...) [= LABEL]"
    head = _need(_ADD_HEAD, rest, shape, whole=False)
    at, fields = head.end(), []
    while field := _FIELD.match(rest, at):
        fields.append((_unquote(field[1]), "".join(field[2].split())))
        at = field.end()
    call, label = _call(rest[at:])
    priority = int(head[2]) if head[2] else None
    return Add(line, _unquote(head[1]), priority, tuple(fields), call, label)


def _call(text: str) -> tuple[ActionCall, str | None]:
    found = _need(_CALL, text, "ACTION(PARAM:VALUE, ...)")
    args = []
    for arg in filter(str.strip, found[2].split(",")):
        pair = _need(_ARG, arg, "PARAM:VALUE")
        args.append((_unquote(pair[1]), pair[2]))
    return ActionCall(_unquote(found[1]), tuple(args)), found[3]


def _need(pattern: re.Pattern[str], text: str, shape: str, *, whole: bool = True) -> re.Match[str]:
    found = pattern.match(text)
    if found is None or (whole and found.end() != len(text)):
        raise ValueError(f'expected: {shape}; got "{text.strip()}"')
    return found


def _unquote(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name
