# SPDX-License-Identifier: Apache-2.0
"""Tickets say what was sealed, to who has the key, and nothing else is taken for one."""

from __future__ import annotations

import base64
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.jobs import ticket
from netfold.controller.jobs.ticket import Record, TicketError
from netfold.fabric import trees
from netfold.fabric.generate import leafspine
from netfold.fabric.slots import SIZES, Allocator
from netfold.wire.jobs import Join, Secret

KEY = b"k" * 32


def record() -> Record:
    """A job of four ranks with all that it holds on the switches of a 2x2x4 fabric."""
    fabric = leafspine(2, 2, 4)
    hosts = [host.name for host in fabric.hosts]
    planned = trees.plan(fabric.graph(), hosts)
    allocator = Allocator([s.name for s in fabric.switches], SIZES["softswitch"], random.Random(3))
    epoch = allocator.open()
    streams = allocator.admit(epoch, planned, [list(range(4))])
    joins = [Join("j", 4, rank, host.address, "10.0.0.1:1", 1024) for rank, host in enumerate(fabric.hosts)]
    return Record(fabric.name, "j", epoch, Secret("5ec3e7"), joins, hosts, planned, planned, streams, epoch, 2,
                  "", False, "red")


RECORD = record()
SEALED = ticket.seal(KEY, RECORD)


def test_a_ticket_says_what_was_sealed() -> None:
    """Every tree, stream and number comes back equal."""
    assert ticket.unseal(KEY, SEALED) == RECORD


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
    sealed = ticket._mac(KEY, body) + body
    with pytest.raises(TicketError, match="another version"):
        ticket.unseal(KEY, Secret(base64.urlsafe_b64encode(sealed).decode()))


def test_a_ticket_shows_in_no_representation() -> None:
    """It holds the job's secret."""
    assert SEALED.value not in repr(SEALED)
