# SPDX-License-Identifier: Apache-2.0
"""Resumption tickets: the controller's own record of a job, sealed and kept by the job's ranks.

    controller --Plan.ticket--> rank ... the controller dies ... rank --Watch.ticket--> new controller

As with the session tickets of TLS (RFC 5077) the server stores nothing: who can show a ticket with a valid seal was
given it by a controller that knows the fabric key.  Whether it is of now, and not of a job that has ended, the switches
say (adoption.py).  A ticket is base64 of HMAC-SHA256 and record; the record is compressed JSON.  It is not encrypted:
it says nothing that the ranks of the job must not know, who know the job's secret.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hmac
import zlib
from typing import Final

import msgspec

from netfold.controller.jobs.job import Job
from netfold.fabric.folding.slots import Stream
from netfold.fabric.folding.trees import Child, Fold, Tree
from netfold.fabric.placement.machines import machines
from netfold.wire.jobs import Join
from netfold.wire.plan import Secret

HOLDERS: Final = 8
"""Most ranks that hold the ticket of a job without RC ranks."""
SEAL_BYTES: Final = 32
_PURPOSE: Final = b"ticket\0"
"""Domain-separation label: a seal for one purpose is invalid for any other."""


class TicketError(ValueError):
    """A ticket that no controller of this fabric has sealed, or only one of another version.

    Remedy: give all controllers of a fabric the same key (`fabric_key_file`) and version. Ranks whose tickets are
    refused join anew.
    """


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The data that a controller needs to continue a job."""

    fabric: str
    """Name of the fabric."""
    job: str
    epoch: int
    secret: Secret
    joins: list[Join]
    """The ranks' requests to join, by rank."""
    hosts: list[str]
    """Names of the ranks' hosts, by rank."""
    first_trees: list[Tree]
    trees: list[Tree]
    streams: list[Stream]
    """Streams that the switches hold, which are those that the ranks know; empty for a job that is not folded."""
    round: int
    """Number of recovery rounds so far."""
    reason: str
    """Why the job is not folded; empty if it is."""
    fell_back: bool
    """True if it was folded before its ranks went over to TCP."""
    tenant: str
    """Name of the tenant whose job it is."""
    parent_epoch: int = 0
    """Epoch of the job of which it is a group; 0: it is none."""
    members: list[int] = []
    """A group's ranks by their numbers in that job."""


class StoredTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree whose folds name their children by the place in a list."""

    root: str
    weight: float
    folds: list[tuple[str, int, str | None, int]]
    """For each fold: switch, place of its children, parent, parent's port."""


class StoredRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as it is in a ticket: what trees share is there once, since they share most of it."""

    record: Record
    """Without trees, and with NO_TREE in the streams."""
    children: list[tuple[Child, ...]]
    """Each different list of children of a switch: that of a leaf is the same in all trees."""
    trees: list[StoredTree]
    """Each different tree."""
    first: list[int]
    """Places in ``trees`` of the record's first trees."""
    now: list[int]
    """... of its trees."""
    of_streams: list[int]
    """... of its streams' trees."""


NO_TREE: Final = Tree("", 0.0, ())
_decoder: Final = msgspec.json.Decoder(StoredRecord)


def holders(job: Job) -> frozenset[int]:
    """The ranks of a job that hold its ticket: a few on machines far apart, since a job of which one rank is gone goes
    on with no controller, and a ticket is as long as the job is large.  RC ranks hold one each: it is what tells those
    that have connected from others."""
    if job.rc_ranks:
        return frozenset(range(job.world))
    first = [ranks[0] for ranks in machines(job.hosts)]
    return frozenset(first[place * len(first) // min(HOLDERS, len(first))] for place in range(min(HOLDERS, len(first))))


def seal(key: bytes, record: Record) -> Secret:
    """The ticket of a record."""
    body = zlib.compress(msgspec.json.encode(_stored(record)), 1)
    return Secret(_text(mac_of(key, body) + body))


def unseal(key: bytes, ticket: Secret) -> Record:
    """The record in a ticket.  Raises TicketError where a single bit is not as it was sealed."""
    try:
        sealed = base64.urlsafe_b64decode(ticket.value.encode())
    except (binascii.Error, ValueError) as error:
        raise TicketError(f"ticket: expected base64, got something else: {error}") from error
    mac, body = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
    # base64 has bits that mean nothing, and its decoder skips what is no digit
    if not hmac.compare_digest(mac, mac_of(key, body)) or _text(sealed) != ticket.value:
        raise TicketError("ticket: expected the seal of this fabric's controller, got another one. Do all controllers "
                          "of the fabric have the same fabric key?")
    try:
        return _restored(_decoder.decode(zlib.decompress(body)))
    except (zlib.error, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TicketError(f"ticket: sealed by a controller of another version: {error}") from error


def _stored(record: Record) -> StoredRecord:
    children: dict[tuple[Child, ...], int] = {}
    places: dict[Tree, int] = {}
    by_identity: dict[int, int] = {}  # streams and lists share their trees, and hashing one walks all of it
    stored: list[StoredTree] = []

    def place(tree: Tree) -> int:
        if (known := by_identity.get(id(tree))) is not None:
            return known
        found = by_identity[id(tree)] = places.setdefault(tree, len(places))
        if found == len(stored):
            stored.append(StoredTree(tree.root, tree.weight, [
                (fold.switch, children.setdefault(fold.children, len(children)), fold.parent, fold.parent_port)
                for fold in tree.folds]))
        return found

    first, now = [place(tree) for tree in record.first_trees], [place(tree) for tree in record.trees]
    of_streams = [place(stream.tree) for stream in record.streams]
    streams = [dataclasses.replace(stream, tree=NO_TREE) for stream in record.streams]
    bare = msgspec.structs.replace(record, first_trees=[], trees=[], streams=streams)
    return StoredRecord(bare, list(children), stored, first, now, of_streams)


def _restored(stored: StoredRecord) -> Record:
    trees = [Tree(tree.root, tree.weight, tuple(Fold(switch, stored.children[place], parent, port)
                                                for switch, place, parent, port in tree.folds))
             for tree in stored.trees]
    streams = [dataclasses.replace(stream, tree=trees[place])
               for stream, place in zip(stored.record.streams, stored.of_streams, strict=True)]
    return msgspec.structs.replace(
        stored.record, first_trees=[trees[place] for place in stored.first],
        trees=[trees[place] for place in stored.now], streams=streams,
    )


def mac_of(key: bytes, body: bytes) -> bytes:
    """The authentication code of a body under a key (HMAC-SHA-256)."""
    return hmac.digest(key, _PURPOSE + body, "sha256")


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode()
