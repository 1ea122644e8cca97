# SPDX-License-Identifier: Apache-2.0
"""Tickets say what was sealed, to who has the key, and nothing else is taken for one."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import random
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.jobs import ticket
from netfold.controller.jobs.ticket import Record, TicketError
from netfold.fabric.folding import trees
from netfold.fabric.folding.slots import Allocator, RcEnd, sizes_of
from netfold.fabric.generate import leafspine
from netfold.wire.jobs import Join
from netfold.wire.plan import Secret

KEY = b"k" * 32


def record(leaves: int = 2, spines: int = 2, ranks: int = 4) -> Record:
    """A job of a rank on each host with all that it holds on the switches of a leaf-spine fabric."""
    fabric = leafspine(leaves, spines, ranks)
    hosts = [host.name for host in fabric.hosts]
    planned = trees.plan(fabric.graph(), hosts)
    allocator = Allocator([s.name for s in fabric.switches], sizes_of("softswitch", 1024), random.Random(3))
    streams = allocator.admit(planned, [list(range(ranks))])
    joins = [Join("j", ranks, rank, host.address, "10.0.0.1:1", 1024) for rank, host in enumerate(fabric.hosts)]
    return Record(fabric.name, "j", allocator.draw(), Secret("5ec3e7"), joins, hosts, planned, planned, streams, 2,
                  "", False, "red")


RECORD = record()
SEALED = ticket.seal(KEY, RECORD)


def test_a_ticket_says_what_was_sealed() -> None:
    """Every tree, stream and number comes back equal."""
    assert ticket.unseal(KEY, SEALED) == RECORD


@pytest.mark.parametrize("rc", [(0, 1, 2, 3), (1, 3)])
def test_a_ticket_knows_the_queue_pairs_of_nics(rc: tuple[int, ...]) -> None:
    """Of all ranks or of some: numbers, addresses of 64 bits and keys of each stream, by place."""
    ends = itertools.count(1)
    told = [dataclasses.replace(stream, rc_ranks=rc, rc={
        place: RcEnd(next(ends), 2**24 - next(ends), 2**64 - next(ends), 2**32 - next(ends)) for place in rc
    }) for stream in RECORD.streams]
    nics = msgspec.structs.replace(RECORD, streams=told, joins=[
        msgspec.structs.replace(join, kind="rc" if join.rank in rc else "windowed") for join in RECORD.joins])
    found = ticket.unseal(KEY, ticket.seal(KEY, nics))
    assert found == nics
    assert [stream.rc for stream in found.streams] == [stream.rc for stream in told]


def test_what_trees_share_is_in_a_ticket_once() -> None:
    """It goes to every rank: a tree costs little more than its root where others have the same leaves, and nothing
    where it is one of the first trees as well as of those of now."""
    large = record(8, 8, 256)
    sealed = ticket.seal(KEY, large)
    assert ticket.unseal(KEY, sealed) == large
    assert len(large.trees) == 8
    without_first, one = (len(ticket.seal(KEY, msgspec.structs.replace(large, **less)).value) for less in (
        {"first_trees": []}, {"first_trees": large.trees[:1], "trees": large.trees[:1], "streams": large.streams[:2]}))
    assert len(sealed.value) - without_first < 100
    streams = sum(len(msgspec.json.encode((s.ranks, s.connections, s.source_ports))) for s in large.streams[2:])
    assert len(sealed.value) - one < streams, "trees are many times as long as the numbers of their streams"


@given(st.integers(0, len(base64.urlsafe_b64decode(SEALED.value)) * 8 - 1))
def test_a_ticket_with_any_bit_changed_is_refused(bit: int) -> None:
    """Seal and record are protected to the last bit."""
    sealed = bytearray(base64.urlsafe_b64decode(SEALED.value))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(TicketError, match="expected the seal"):
        ticket.unseal(KEY, Secret(base64.urlsafe_b64encode(sealed).decode()))


@given(st.integers(0, len(SEALED.value) - 1), st.integers(0, 6))
def test_a_ticket_with_any_digit_changed_is_refused(place: int, bit: int) -> None:
    """Also where base64 would decode to the same: digits have bits that mean nothing, and other characters are
    skipped."""
    changed = chr(ord(SEALED.value[place]) ^ 1 << bit)
    with pytest.raises(TicketError):
        ticket.unseal(KEY, Secret(SEALED.value[:place] + changed + SEALED.value[place + 1:]))


@pytest.mark.parametrize("text", ["", "A", "ä", "A" * 43, SEALED.value[:-4], SEALED.value + "AAAA", SEALED.value + " "])
def test_what_is_no_ticket_is_refused(text: str) -> None:
    """Text of other lengths and alphabets among it."""
    with pytest.raises(TicketError):
        ticket.unseal(KEY, Secret(text))


def test_another_fabrics_ticket_is_refused() -> None:
    """Another key made its seal."""
    with pytest.raises(TicketError, match="same fabric key"):
        ticket.unseal(b"l" * 32, SEALED)


def test_another_versions_ticket_says_so() -> None:
    """A record with other fields, under the right seal."""
    body = zlib.compress(b'{"fabric":"f"}')
    sealed = ticket.mac_of(KEY, body) + body
    with pytest.raises(TicketError, match="another version"):
        ticket.unseal(KEY, Secret(base64.urlsafe_b64encode(sealed).decode()))


def test_a_ticket_shows_in_no_representation() -> None:
    """It holds the job's secret."""
    assert SEALED.value not in repr(SEALED)
