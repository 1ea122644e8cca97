# SPDX-License-Identifier: Apache-2.0
"""The same entries and frames into a program on BMv2 and on softswitch: are the packets that leave the same?

Entries come from the P4Info and frames from what networks carry and from the numbers in the program's text, both from
small pools, so that frames hit entries. A frame goes in when all that the one before made has left, so that state
changes in the same order on both.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from finsy.proto import p4i, p4r

from foreign import frames
from softswitch.compiler.driver import Program
from softswitch.engine.linking import build
from softswitch.engine.local import LocalEngine
from softswitch.p4runtime import entities
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.schema import Schema
from switch_support.bmv2 import Bmv2

PORTS = 8
ENTRIES = 12
"""For each table."""
FRAMES = 96
LATE = 1.5
"""Seconds after which a packet of BMv2's is not expected any more."""
_DEFAULT_ONLY = p4i.ActionRef.DEFAULT_ONLY
_FREE = {
    "time": r"\b(ingress_global_timestamp|egress_global_timestamp|enq_timestamp|deq_timedelta)\b",
    "queue depth": r"\b(enq_qdepth|deq_qdepth)\b",
    "random": r"\brandom\s*(<[^>]*>)?\s*\(",
}
"""What the specification leaves to the switch: a difference in a program that reads it says nothing."""
_STATE = re.compile(r"\b(register|meter|direct_meter)\b")
_LEFT_OUT = {
    "loop": r"\bfor\s*\(",
    "exit": r"\baction\s+\w+\s*\([^)]*\b(?:in)?out\b[^)]*\)\s*\{[^}]*\bexit(?:_\w+\(\))?;",
}
"""What p4c's BMv2 back end does not do, as measured, in the program's text."""
_AGAIN = 4
"""Frames that are tried once more, alone."""

Frame = tuple[int, bytes]
"""A port and what enters or leaves there."""


@dataclass(frozen=True)
class Result:
    """The result of a program's traffic.

    same      every packet left alike
    entries   so, but one switch took an entry that the other refused
    stale     BMv2 sends something else only where packets came before, though the program keeps no state: it reads
              fields of a header that the packet does not have, where BMv2 has those of an earlier packet
    history   the same, of a program with registers or meters, which might keep what was read so
    free      the program reads what the specification does not fix
    p4c       p4c leaves out what the program says: it runs a loop in `apply` once only, does not copy out at `exit`,
              and tables with an action profile lose their default action (it warns of that)
    bmv2      BMv2 did not start with the program, or it ended
    differs   none of these: somebody has to look
    """

    verdict: str
    message: str = ""


@dataclass(frozen=True)
class _Difference:
    at: int
    frame: Frame
    ours: list[Frame]
    theirs: list[Frame]

    def __str__(self) -> str:
        return (f"frame {self.at}, port {self.frame[0]}: {self.frame[1].hex()}\n"
                f"  ours {_show(self.ours)}\n  BMv2 {_show(self.theirs)}")


class _Bmv2Failed(Exception):
    """BMv2 does not start, or has ended."""


def compare(
    program: Program, theirs: p4i.P4Info, warnings: str, folder: Path, cache: Path, rng: random.Random
) -> Result:
    """Runs a program that both compilers take. The folder has p4c's program.json and program.txtpb; the libraries
    that are built go to `cache`; `warnings` are p4c's."""
    library = build(program, flags=["-O1", "-g0"], cache_dir=cache)  # -O0 takes longer: it keeps each inline call
    text = _own_text(program.preprocessed)
    pool = frames.Pool(program.preprocessed, rng)
    entries = list(updates(theirs, pool, rng))
    traffic = [(rng.randrange(PORTS), pool.frame()) for _ in range(FRAMES)]
    stateful = _STATE.search(text) is not None
    try:
        refused, found, left = _play(program, library, folder, entries, traffic, stop=stateful)
        words = f"{len(entries)} entries, {len(traffic)} frames in, {left} out"
        if not found:
            return Result("entries", "\n".join([words, *refused[:20]])) if refused else Result("same", words)
        words = str(found[0])
        if free := [name for name, pattern in _FREE.items() if re.search(pattern, text)]:
            return Result("free", f"{', '.join(free)}\n{words}")
        if left_out := [name for name, pattern in _LEFT_OUT.items() if re.search(pattern, text)]:
            return Result("p4c", f"{', '.join(left_out)}\n{words}")
        if "does not support default_action" in warnings:
            return Result("p4c", f"default action\n{words}")
        # A packet too many may be of the frame before, of which none was expected.
        again = {at for one in found[:_AGAIN] for at in (one.at, one.at - 1) if at >= 0}
        for at in sorted(again):
            alone = _play(program, library, folder, entries, [traffic[at]], stop=False)[1]
            if alone:
                return Result("differs", f"{words}\n  alone: {alone[0]}")
        return Result("history" if stateful else "stale", words)
    except _Bmv2Failed as error:
        return Result("bmv2", str(error)[:1000])


def _play(
    program: Program, library: Path, folder: Path, entries: Sequence[p4r.Update], traffic: Sequence[Frame], *,
    stop: bool
) -> tuple[list[str], list[_Difference], int]:
    """Runs fresh switches; returns the entries that only one takes, the frames that leave otherwise (stop: the first),
    and how many leave."""
    with LocalEngine.open(library) as engine, tempfile.TemporaryDirectory(dir=folder) as place:
        for name in ("program.json", "program.txtpb"):
            shutil.copy(folder / name, place)
        digests = Digests(lambda _: None)
        schema = Schema(program.p4info, engine)
        digests.describe(schema.digests, program.p4info)
        context = Context(schema, engine, digests)
        try:
            # With one queue, which is the default, it drops packets of every priority but 0.
            bmv2 = Bmv2(None, Path(place), ports=PORTS, options=("--priority-queues", "8")).__enter__()
        except Exception as error:
            digests.close()
            raise _Bmv2Failed(f"does not start: {error}") from error
        try:
            refused = _install(context, bmv2, entries)
            sent = [engine.inject(port, data, now_us=1000 * (at + 1)) for at, (port, data) in enumerate(traffic)]
            found = []
            left = 0
            for at, got in enumerate(bmv2.one_by_one(traffic, sent, LATE)):
                expected = [(port, data) for port, data in sent[at] if port < PORTS]
                got = [(port, data) for port, data in got if data]  # no network carries an empty frame
                left += len(got)
                if sorted(got) != sorted(expected):
                    if bmv2.status is not None:
                        raise _Bmv2Failed(f"ended with status {bmv2.status} at frame {at}")
                    found.append(_Difference(at, traffic[at], expected, got))
                    if stop:
                        break
            return refused, found, left
        finally:
            bmv2.close()
            digests.close()


def _install(context: Context, bmv2: Bmv2, entries: Sequence[p4r.Update]) -> list[str]:
    """Writes the entries to both switches, and takes back what only one of them takes; returns what that was."""
    refused = []
    for update in entries:
        mine = entities.write(context, [update])[0]
        other = bmv2.write(update)
        if "UNAVAILABLE" in other:
            raise _Bmv2Failed(f"ended at an entry: {other}")
        if (mine is None) == (other == ""):
            continue
        refused.append(f"{_words(update)}: ours {mine or 'takes it'}; BMv2 {other or 'takes it'}"[:600])
        undo = p4r.Update(type=p4r.Update.DELETE, entity=update.entity)
        if update.type == p4r.Update.INSERT:
            if mine is None:
                entities.write(context, [undo])
            else:
                bmv2.write(undo)
    return refused


def _own_text(preprocessed: str) -> str:
    """The program without the standard's files, which name all of it."""
    kept, own = [], True
    for line in preprocessed.split("\n"):
        if match := re.match(r'#line \d+ "(.*)"', line):
            own = match[1].strip("<>") not in ("core.p4", "v1model.p4")
        elif own:
            kept.append(line)
    return "\n".join(kept)


def _show(packets: Sequence[tuple[int, bytes]]) -> str:
    return ", ".join(f"{port}: {data.hex()}" for port, data in sorted(packets)) or "nothing"


def _words(update: p4r.Update) -> str:
    return " ".join(str(update.entity).split())


def updates(info: p4i.P4Info, pool: frames.Pool, rng: random.Random) -> Iterator[p4r.Update]:
    """Entries for everything that a P4Info describes, and multicast groups and clone sessions."""
    for group in (1, 2, 3, 5):
        update = p4r.Update(type=p4r.Update.INSERT)
        entry = update.entity.packet_replication_engine_entry.multicast_group_entry
        entry.multicast_group_id = group
        for port in rng.sample(range(PORTS), rng.randint(1, 3)):
            entry.replicas.add(egress_port=port, instance=rng.randint(0, 3))
        yield update
    for session in (1, 2, 3, 5, 99, 100, 250, 500):
        update = p4r.Update(type=p4r.Update.INSERT)
        clone = update.entity.packet_replication_engine_entry.clone_session_entry
        clone.session_id = session
        clone.replicas.add(egress_port=rng.randrange(PORTS), instance=1)
        yield update
    actions = {action.preamble.id: action for action in info.actions}
    members: dict[int, list[int]] = {}
    groups: dict[int, list[int]] = {}
    tables = {table.preamble.id: table for table in info.tables}
    for profile in info.action_profiles:
        table = tables[profile.table_ids[0]]
        refs = [ref for ref in table.action_refs if ref.scope != _DEFAULT_ONLY]
        for member in range(1, 7):
            update = p4r.Update(type=p4r.Update.INSERT)
            made = update.entity.action_profile_member
            made.action_profile_id, made.member_id = profile.preamble.id, member
            _action(made.action, actions[rng.choice(refs).id], pool, rng)
            members.setdefault(profile.preamble.id, []).append(member)
            yield update
        if profile.with_selector:
            for group in range(1, 4):
                update = p4r.Update(type=p4r.Update.INSERT)
                bundle = update.entity.action_profile_group
                bundle.action_profile_id, bundle.group_id, bundle.max_size = profile.preamble.id, group, 8
                for member in rng.sample(range(1, 7), group):
                    bundle.members.add(member_id=member, weight=1)
                groups.setdefault(profile.preamble.id, []).append(group)
                yield update
    for table in info.tables:
        # BMv2 refuses entries beside initial ones, P4Runtime does not.
        if table.is_const_table or table.has_initial_entries or not table.match_fields:
            continue
        refs = [ref for ref in table.action_refs if ref.scope != _DEFAULT_ONLY]
        seen: set[bytes] = set()
        for _ in range(ENTRIES if refs else 0):
            update = p4r.Update(type=p4r.Update.INSERT)
            entry = update.entity.table_entry
            entry.table_id = table.preamble.id
            ranked = False
            for field in table.match_fields:
                _match(entry, field, pool, rng)
                ranked |= field.match_type not in (p4i.MatchField.EXACT, p4i.MatchField.LPM)
            key = b"".join(match.SerializeToString(deterministic=True) for match in entry.match)
            if key in seen:
                continue
            seen.add(key)
            if ranked:
                entry.priority = len(seen)
            if table.implementation_id:
                if (made_groups := groups.get(table.implementation_id)) and rng.random() < 0.5:
                    entry.action.action_profile_group_id = rng.choice(made_groups)
                else:
                    entry.action.action_profile_member_id = rng.choice(members[table.implementation_id])
            else:
                _action(entry.action.action, actions[rng.choice(refs).id], pool, rng)
            yield update
    for table in info.tables:
        choices = [ref for ref in table.action_refs if ref.scope != p4i.ActionRef.TABLE_ONLY]
        if table.const_default_action_id or table.implementation_id or not choices or rng.random() < 0.6:
            continue
        update = p4r.Update(type=p4r.Update.MODIFY)
        update.entity.table_entry.table_id = table.preamble.id
        update.entity.table_entry.is_default_action = True
        _action(update.entity.table_entry.action.action, actions[rng.choice(choices).id], pool, rng)
        yield update


def canonical(value: int) -> bytes:
    """P4Runtime's shortest byte string of a value."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _action(message: p4r.Action, action: p4i.Action, pool: frames.Pool, rng: random.Random) -> None:
    message.action_id = action.preamble.id
    for param in action.params:
        is_port = "port" in param.name.lower() or param.bitwidth == 9
        value = rng.randrange(PORTS) if is_port else pool.value(param.bitwidth)
        message.params.add(param_id=param.id, value=canonical(value & ((1 << param.bitwidth) - 1))
                           if param.bitwidth else b"name")


def _match(entry: p4r.TableEntry, field: p4i.MatchField, pool: frames.Pool, rng: random.Random) -> None:
    width = field.bitwidth
    ones = (1 << width) - 1
    is_port = width == 9 or "ingress_port" in field.name
    value = (rng.randrange(PORTS) if is_port else pool.value(width)) & ones
    if field.match_type == p4i.MatchField.EXACT:
        entry.match.add(field_id=field.id).exact.value = canonical(value) if width else b"name"
        return
    if rng.random() < 0.25 or not width:
        return
    if field.match_type == p4i.MatchField.LPM and width % 8:
        return  # PI and BMv2 count a prefix from the byte's first bit, though it is no bit of the field
    match = p4r.FieldMatch(field_id=field.id)
    if field.match_type == p4i.MatchField.LPM:
        match.lpm.prefix_len = rng.choice([width, width, max(1, width * 3 // 4), max(1, width // 2)])
        match.lpm.value = canonical(value >> (width - match.lpm.prefix_len) << (width - match.lpm.prefix_len))
    elif field.match_type == p4i.MatchField.TERNARY:
        mask = rng.choice([ones, ones, ones >> width // 2, ones ^ (ones >> width // 2), 1])
        if not mask:
            return
        match.ternary.value, match.ternary.mask = canonical(value & mask), canonical(mask)
    elif field.match_type == p4i.MatchField.RANGE:
        low, high = sorted((value, pool.value(width) & ones))
        if (low, high) == (0, ones):
            return
        match.range.low, match.range.high = canonical(low), canonical(high)
    elif field.match_type == p4i.MatchField.OPTIONAL:
        match.optional.value = canonical(value)
    entry.match.append(match)


