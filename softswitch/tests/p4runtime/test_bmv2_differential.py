# SPDX-License-Identifier: Apache-2.0
"""The same writes over P4Runtime to softswitch and to BMv2: the same codes, and the same read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from finsy.proto import p4r

from softswitch.compiler.driver import Program, compile_file
from softswitch.p4runtime.program import Compiler
from switch_support import NATIVE
from switch_support.bmv2 import Bmv2
from switch_support.client import DELETE, INSERT, MODIFY, Client, serving

WRITTEN = NATIVE / "written.p4"
MAX_GROUP_SIZE = 16

Step = tuple[p4r.Update.Type.ValueType, p4r.Entity]


@cache
def program() -> Program:
    return compile_file(WRITTEN)


def ident(name: str) -> int:
    info = program().p4info
    objects = (*info.tables, *info.actions, *info.action_profiles, *info.counters, *info.direct_counters)
    return next(one.preamble.id for one in objects if one.preamble.name == name)


@contextmanager
def softswitch() -> Iterator[Client]:
    """softswitch with the program."""
    with serving(builder=Compiler()) as (_, address), Client(address) as client:
        client.become_primary()
        config = p4r.ForwardingPipelineConfig(p4info=program().p4info, p4_device_config=program().preprocessed.encode())
        client.push(config)
        yield client


@contextmanager
def bmv2(folder: Path) -> Iterator[Client]:
    """BMv2 with the program; the client writes as the primary whose stream `Bmv2` holds."""
    with Bmv2(WRITTEN, folder, ports=1), Client(f"unix:{folder}/grpc") as client:
        client.election = 1
        yield client


def action(name: str, port: int) -> p4r.Action:
    return p4r.Action(action_id=ident(name), params=[p4r.Action.Param(param_id=1, value=bytes([port]))])


def member(number: int) -> p4r.Entity:
    return p4r.Entity(action_profile_member=p4r.ActionProfileMember(
        action_profile_id=ident("I.spread"), member_id=number, action=action("I.forward", 1)))


def group(number: int, *weights: int, max_size: int = 0) -> p4r.Entity:
    """A group with member 1 of the first weight, member 2 of the second."""
    members = [p4r.ActionProfileGroup.Member(member_id=at, weight=weight) for at, weight in enumerate(weights, 1)]
    return p4r.Entity(action_profile_group=p4r.ActionProfileGroup(
        action_profile_id=ident("I.spread"), group_id=number, members=members, max_size=max_size))


def selecting(key: int, what: p4r.TableAction) -> p4r.Entity:
    message = p4r.TableEntry(table_id=ident("I.select_t"), action=what)
    message.match.add(field_id=1).exact.value = bytes([key])
    return p4r.Entity(table_entry=message)


def one_shot(*weights: int) -> p4r.TableAction:
    actions = [p4r.ActionProfileAction(action=action("I.forward", 1), weight=weight) for weight in weights]
    return p4r.TableAction(action_profile_action_set=p4r.ActionProfileActionSet(action_profile_actions=actions))


def by_member(number: int) -> p4r.TableAction:
    return p4r.TableAction(action_profile_member_id=number)


def aging(idle_timeout_ns: int) -> p4r.Entity:
    message = p4r.TableEntry(table_id=ident("I.aging_t"), idle_timeout_ns=idle_timeout_ns,
                             action=p4r.TableAction(action=action("I.counted", 1)))
    message.match.add(field_id=1).exact.value = b"\x05"
    return p4r.Entity(table_entry=message)


def data(packets: int, octets: int) -> p4r.CounterData:
    return p4r.CounterData(packet_count=packets, byte_count=octets)


def cell(name: str, index: int, packets: int = 0, octets: int = 0) -> p4r.Entity:
    return p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=ident(name), index=p4r.Index(index=index),
                                                     data=data(packets, octets)))


def direct(packets: int = 0, octets: int = 0) -> p4r.Entity:
    entry = aging(0).table_entry
    entry.ClearField("action")  # BMv2 gives back what it was asked with
    return p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=entry, data=data(packets, octets)))


def sizes() -> list[Step]:
    """Sizes of groups, and their changes."""
    return [(INSERT, member(1)), (INSERT, member(2)), (INSERT, group(1, 1, 1, max_size=4)),
            (MODIFY, group(1, 2, 2, max_size=4)), (MODIFY, group(1, 1, max_size=5)), (MODIFY, group(1, 1, max_size=-1)),
            (MODIFY, group(1, 3, 1)), (MODIFY, group(1, 3, 2)), (INSERT, group(2, max_size=-1)),
            (INSERT, group(2, max_size=MAX_GROUP_SIZE + 1)), (INSERT, group(2, max_size=MAX_GROUP_SIZE)),
            (DELETE, group(2)), (DELETE, group(2))]


def modes() -> list[Step]:
    """One-shot action sets beside members and groups of the same selector."""
    return [(INSERT, selecting(1, one_shot(1, 2))), (INSERT, member(1)), (INSERT, group(1)),
            (INSERT, selecting(2, by_member(1))), (MODIFY, selecting(1, one_shot(3))),
            (DELETE, selecting(1, p4r.TableAction())), (INSERT, member(1)), (INSERT, selecting(1, one_shot(1))),
            (INSERT, selecting(1, by_member(1))), (DELETE, selecting(1, p4r.TableAction())), (DELETE, member(1)),
            (INSERT, selecting(1, one_shot(1))), (DELETE, selecting(1, p4r.TableAction()))]


def counts() -> list[Step]:
    """Counters of each unit, and an entry that ages."""
    cells = [(MODIFY, cell(name, 1, 7, 700)) for name in ("I.packets", "I.octets", "I.both")]
    return [*cells, (INSERT, aging(1_234_567_891)), (MODIFY, direct(7, 700))]


def profiles() -> list[p4r.Entity]:
    """Entities that read all groups and members."""
    profile = ident("I.spread")
    return [p4r.Entity(action_profile_group=p4r.ActionProfileGroup(action_profile_id=profile)),
            p4r.Entity(action_profile_member=p4r.ActionProfileMember(action_profile_id=profile))]


def counters() -> list[p4r.Entity]:
    """What reads the entry that ages and all counters that were written."""
    cells = [cell(name, 1) for name in ("I.packets", "I.octets", "I.both")]
    return [p4r.Entity(table_entry=p4r.TableEntry(table_id=ident("I.aging_t"))), direct(), *cells]


def said(client: Client, steps: list[Step], asked: list[p4r.Entity]) -> list[object]:
    """The code of each write, and what can be read at the end.  BMv2 lists a member with a weight several times."""
    codes = [client.codes(step) for step in steps]
    return [codes, [list(dict.fromkeys(str(found) for found in client.read(one))) for one in asked]]


@pytest.mark.needs("bmv2")
@pytest.mark.parametrize(("steps", "asked"), [(sizes, profiles), (modes, profiles), (counts, counters)])
def test_writes_end_and_read_back_as_on_bmv2(
    steps: Callable[[], list[Step]], asked: Callable[[], list[p4r.Entity]], tmp_path: Path
) -> None:
    """Each write ends with the same code, and the same can be read afterwards."""
    with softswitch() as ours, bmv2(tmp_path) as theirs:
        assert said(ours, steps(), asked()) == said(theirs, steps(), asked())


@pytest.mark.needs("bmv2")
@pytest.mark.timeout(120)
def test_an_entry_that_stays_idle_is_told_again_as_by_bmv2(tmp_path: Path) -> None:
    """Once for each timeout that ends: a report starts the timer anew."""
    asked = aging(500_000_000)
    with softswitch() as ours, bmv2(tmp_path) as theirs:
        for client in (ours, theirs):
            stream = client.become_primary(2)
            client.write((INSERT, asked))
            for _ in range(2):
                (found,) = stream.next().idle_timeout_notification.table_entry
                assert found.match == asked.table_entry.match
