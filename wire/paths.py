# SPDX-License-Identifier: Apache-2.0
"""Messages of the path service, between a rank (host/) and the controller: which flow takes which path.

A rank says once which flows it is going to have (``Follow``), and gets a ``Paths`` now and whenever they change: a link
went down or came back, somebody suspects an uplink, the operator wants it otherwise.  ``Suspect`` is how it says that a
path does not answer.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

SERVICE: Final = "netfold.Paths"


class PathFlow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes from rank to rank in one step of a collective."""

    source: int
    destination: int
    size: int


class Follow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank sends: which collective it is going to run, or which flows.  Flows of one step run together and share
    uplinks; steps come one after the other."""

    job: str
    rank: int
    epoch: int
    steps: list[list[PathFlow]] = []
    """Where ``collective`` is empty: this rank's flows; all ranks' for ``scope`` "leaf".  At most one flow to each peer
    in all."""
    scope: Literal["host", "leaf", "auto"] = "host"
    """"host": these flows are cut by themselves; "leaf": all flows of a step between two leaves are cut together, into
    fewer pieces; "auto", for a named collective: the latter, unless there are too many to be planned together."""
    collective: str = ""
    """A name that the controller knows the flows of; of one that it does not: as if everybody sent to everybody."""
    ranks: list[int] = []
    """Who takes part in it, in its order: of the ring, above all.  Empty: all, by number."""
    root: int = 0
    """Whence or where to, a place in ``ranks``: of broadcasts, gathers and the like."""
    token: str = ""


class PathPiece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes ``offset .. offset+size`` of the flow to ``peer``: a queue pair that leaves by ``source_port``."""

    peer: int
    offset: int
    size: int
    source_port: int


class Reach(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All live paths to a peer, by UDP source port; none where both share a leaf."""

    peer: int
    leaf: str
    source_ports: list[int]


class Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this rank's flows go from now on."""

    version: int
    ports: list[int]
    """Every source port that may ever name a path of this rank: what a mesh binds."""
    pieces: list[PathPiece]
    """By peer, then offset.  Flows under one leaf have none."""
    reaches: list[Reach]


class Suspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What this rank sent to ``peer`` by ``source_port`` was not acknowledged, however often it was repeated."""

    job: str
    rank: int
    epoch: int
    peer: int
    source_port: int
    token: str = ""


class Noted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to Suspect."""

    uplink: str
    """``switch:port`` of the uplink that is blamed; empty where the source port names no path."""
