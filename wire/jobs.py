# SPDX-License-Identifier: Apache-2.0
"""Messages of the job service, between a rank (host/) and the controller.

gRPC carries them as JSON and msgspec checks every field at the border: no generated code ties us to one protobuf.
A job's life: every rank calls ``Join`` and all get their ``Plan`` together; ``Report`` and ``Leave`` end it, once
all others say that they are ``Settled``.  A rank whose repeats bring nothing calls ``Suspect``, and one that waits in
vain asks ``Missing`` for whom.  Where a switch or a link goes away, ranks are told to ``Halt``, and
``Resume`` over other trees. Meanwhile each may hold a ``Watch`` open: the controller tells it what happens to the
others, and takes a broken one for its death.  Every request carries the fabric's token, where the fabric has one. """

from __future__ import annotations

from typing import Final

import msgspec

from netfold.wire.roce import PATH_MTU

SERVICE: Final = "netfold.Jobs"
PROTOCOL: Final = 5
"""Raised whenever packets or messages change their meaning: mismatched sides refuse each other."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank asks to take part.  All ranks of a job must agree on everything but rank and addresses."""

    job: str
    world: int
    rank: int
    address: str
    """IPv4 address on the fabric, where results are to arrive."""
    tcp: str
    """``address:port`` where this rank's TCP ring listens."""
    path_mtu: int
    """What it wants; 0: what the fabric has, which the plan says."""
    protocol: int = PROTOCOL
    timeout: float = 30.0
    """Seconds to wait for the other ranks."""
    token: str = ""
    fold: bool = True
    """Whether this rank can use trees; where one cannot, the job gets none, and takes no slots."""
    lane_bits: int = 32
    """Of lanes of float32 sums where an operation says nothing else."""


class RankStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One connection of one rank: contributions leave for the ring's next rank, results arrive under ``qp``.

    A connection is a queue pair for each operation (roce.LaneOperation); both fields name the one of operation 0, a
    multiple of 8, and the operation is added.
    """

    peer: str
    """IPv4 address of rank + 1: where contributions are addressed."""
    peer_qp: int
    """Destination queue pair of contributions: rank + 1's ``qp``."""
    qp: int
    """Destination queue pair of the results that this rank gets."""
    source_port: int
    """UDP source port of contributions: the flow's entropy."""
    psn: int
    """First PSN."""
    slots: int
    """Slots that the switches hold for this stream, a power of two; the window is half of it."""


class RankTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One aggregation tree: a stream for the data, and one for what ranks agree on before it leaves."""

    name: str
    """Of the root switch."""
    weight: float
    data: RankStream
    agreement: RankStream
    """Signatures of operations, and the scales of their blocks: their largest of all ranks (host/native/fold.h)."""


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank as the others reach it: its fabric address, and ADDRESS:PORT of its TCP listener."""

    rank: int
    address: str
    tcp: str


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank needs to know.  ``trees`` is empty where nothing folds: ``reason`` then says why."""

    job: str
    epoch: int
    rank: int
    world: int
    peers: list[Peer]
    trees: list[RankTree]
    """Of this rank and those in its place on the other machines: of all ranks, where each has a machine of its own."""
    reason: str = ""
    machines: list[list[int]] = []
    """Ranks by machine, that is by fabric address; empty: each has its own.  Where a machine has n ranks and there are
    trees, all have n, and connections and source ports of its l-th rank leave the remainder l divided by n."""
    rate: float = 0.0
    """Bytes per second of the slowest of the ranks' links; 0: the fabric's file does not say."""
    ring: list[int] = []
    """Ranks in the order of a ring that crosses each link between switches at most once each way; empty: by address."""
    path_mtu: int = PATH_MTU
    """Payload bytes of every data packet on this fabric."""
    round: int = 0
    """How often the trees were planned anew."""


class RankReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's totals, for `netfold status` and the demo's table."""

    job: str
    rank: int
    epoch: int
    operations: int
    bytes_reduced: int
    packets_sent: int
    retransmissions: int
    by_tree: dict[str, int] = {}
    """Payload bytes folded by each tree."""
    token: str = ""


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank has no more operations.  Answered with `Done` when the job can do without it."""

    job: str
    rank: int
    epoch: int
    reason: str = ""
    """Why it leaves before the end; empty where all is well."""
    token: str = ""


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank wants to know what happens to the job.  The answer is a stream of events, from Join to Leave."""

    job: str
    rank: int
    epoch: int
    token: str = ""


class AskMissing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank gets no result any more: for whom do the switches wait?  Or, as ``Suspect``: is a link to blame?"""

    job: str
    rank: int
    epoch: int
    waits: dict[int, int]
    """Its own queue pairs, as the plan has them -> the lowest PSN of each that was sent and has no result."""
    token: str = ""


class MissingContributions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer: what the slots of these PSNs hold at this moment."""

    ranks: list[int]
    """Whose contributions are missing; empty where it is a packet between switches, or nothing waits."""
    why: list[str]
    """In words: switch, slot, bitmap, by stream."""


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank has stopped for `Halt`: it sends nothing, and takes no result, until it has the answer, a new `Plan`.

    The plan has as many trees as the one before, and the ``psn`` of each stream is where all ranks begin again.
    """

    job: str
    rank: int
    epoch: int
    missing: dict[int, int]
    """Its own queue pairs, as its present plan has them -> the PSN of the lowest packet without a result."""
    timeout: float = 10.0
    """Seconds to wait for the other ranks, and for switches to come back."""
    token: str = ""


class Watching(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The first event: from now on this rank's death is noticed."""


class RankLost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A rank is gone without having left."""

    rank: int
    address: str
    host: str
    """Its name in the fabric."""
    why: str


class JobEndedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="JobEnded"):
    """The switches hold nothing of the job any more, although this rank has not left."""

    why: str


class Halt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Something that the job's trees need is gone: stop, and call `Resume`."""

    round: int
    """Counts them: a plan with this number, or a higher one, answers it."""
    why: str


class Settle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Another rank wants to leave: say `Settled` when all is finished that this rank has begun."""


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `Settle`: this rank lacks no result."""

    job: str
    rank: int
    epoch: int
    token: str = ""


Event = Watching | RankLost | JobEndedEvent | Halt | Settle


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to what needs none."""
