# SPDX-License-Identifier: Apache-2.0
"""Messages of the path service, between a rank (host/) and the controller: which flow takes which path.

A rank announces once which flows it is going to have (``Follow``).  It receives a ``Paths`` at once and whenever its
paths change: because a link failed or came back, a rank suspects an uplink, or an operator drains something.  With
``Suspect`` it reports a path on which packets are not acknowledged.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from netfold.wire import roce
from netfold.wire.bounds import MAX_FLOWS, Count, Int32, Name
from netfold.wire.jobs import MAX_WORLD
from netfold.wire.plan import Secret

SERVICE: Final = "netfold.Paths"
PathPort = Annotated[int, Meta(ge=roce.PATH_PORT, lt=roce.TCP_PATH_PORT)]
"""A UDP source port that names a path, or, the first one, says that packets are sprayed."""


def tcp_ports(source_port: int) -> tuple[int, ...]:
    """The TCP ports that name the same path as a UDP source port, the one to try first ahead; none for a port that
    names no path, or one beyond those that TCP's ports can name (`netfold.fabric.routing.room`)."""
    place = source_port - roce.PATH_PORT
    if place == 0:
        return (roce.TCP_PATH_PORT,)
    if place == roce.TCP_SAME_PATH:
        return (roce.TCP_PATH_PORT + roce.TCP_SAME_PATH,)
    if not 0 < place < roce.TCP_SAME_PATH:
        return ()
    return roce.TCP_PATH_PORT + place, roce.TCP_PATH_PORT + roce.TCP_SAME_PATH + place


def udp_port(tcp_port: int) -> int:
    """The UDP source port that names the same path as a TCP port from TCP_PATH_PORT up."""
    place = tcp_port - roce.TCP_PATH_PORT
    return roce.PATH_PORT + (place if place == roce.TCP_SAME_PATH else place % roce.TCP_SAME_PATH)


class PathFlow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes from one rank to another in one step of a collective."""

    source: Int32
    destination: Int32
    size: Count


class Follow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's announcement: the collective that it is going to run, or its flows.  Flows of one step run at the same
    time and share uplinks; steps run one after the other.
    """

    job: Name
    rank: Int32
    epoch: Int32
    steps: Annotated[list[Annotated[list[PathFlow], Meta(max_length=MAX_FLOWS)]], Meta(max_length=MAX_FLOWS)] = []
    """Flows by step, used where ``collective`` is empty: this rank's flows, or all ranks' for ``scope`` "leaf".  At
    most one flow to each peer over all steps."""
    scope: Literal["host", "leaf", "auto"] = "host"
    """"host": each rank's flows are split by themselves; "leaf": all flows of a step between two leaves are split
    together, into fewer pieces; "auto", for a named collective: "leaf", unless there are too many flows to plan them
    together."""
    collective: Name = ""
    """Name of a collective whose flows the controller knows; for an unknown name it plans as if every rank sent to
    every other."""
    ranks: Annotated[list[Int32], Meta(max_length=MAX_WORLD)] = []
    """Ranks that take part, in the collective's own order (that of its ring, above all); empty: all, by number."""
    root: Int32 = 0
    """Index in ``ranks`` of the root of broadcasts, gathers and the like."""
    secret: Secret = Secret()


class PathPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes ``offset .. offset+size`` of the flow to ``peer``, sent on a queue pair with this UDP source port."""

    peer: Int32
    offset: Count
    size: Annotated[int, Meta(ge=1, lt=2**62)]
    source_port: PathPort


class Reach(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All working paths to a peer, by UDP source port; none where both ranks are under one leaf."""

    peer: Int32
    leaf: Name
    source_ports: list[PathPort]


class Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The paths that this rank's flows take from now on."""

    version: Count
    ports: list[PathPort]
    """Every source port that may ever name a path of this rank; the mesh binds all of them."""
    pieces: list[PathPiece]
    """Pieces sorted by peer, then offset; flows under one leaf have none."""
    reaches: list[Reach]


class Suspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report that packets to ``peer`` from ``source_port`` were not acknowledged although they were retransmitted."""

    job: Name
    rank: Int32
    epoch: Int32
    peer: Int32
    source_port: Int32
    secret: Secret = Secret()


class Noted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to Suspect."""

    uplink: str
    """``switch:port`` of the uplink that is suspected; empty where the source port names no path."""
