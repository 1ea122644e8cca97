# SPDX-License-Identifier: Apache-2.0
"""The plan of a job, as the controller makes it for each rank: the other ranks, its trees and streams, its secrets.

In a job of 1,023 ranks, what all plans have alike are 70 KB, or 13 compressed, and it is compressed once for all ranks:

    controller  SharedParts --pack--> Plan.shared, the same in the plan of each rank
    rank        Plan --whole--> the plan with all of these in its fields
"""

from __future__ import annotations

import base64
import hmac
import zlib
from typing import Annotated, Any, Final, Literal

import msgspec

from netfold.wire.bounds import Name
from netfold.wire.roce import PATH_MTU, UDP_PORT

Verb = Literal["write", "send"]
"""The RDMA operation whose packets carry data: WRITE_* or SEND_* of roce.Opcode."""
MOST_BYTES: Final = 1 << 24
"""Bytes at most of what all plans say alike, uncompressed: 4,096 ranks have half a million."""


class Secret(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A secret in a message.  Neither repr() nor a pretty printer shows it, so that no log does."""

    value: str = ""
    """The secret in hexadecimal digits; empty: there is none."""

    def __repr__(self) -> str:
        return "Secret(...)" if self.value else "Secret()"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("value", "...")] if self.value else []

    def matches(self, other: Secret) -> bool:
        """True if both are the same, in a time that does not depend on the place of the difference; an empty one
        matches none."""
        return bool(self.value) and hmac.compare_digest(self.value.encode(), other.value.encode())


class RailEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several rails, as a rank has it."""

    kind: Name
    at: Name
    """``address:port`` on the rail's plane at which the rank answers the other ranks' questions."""


RailEnds = Annotated[list[RailEnd], msgspec.Meta(max_length=64)]


class Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The change of a job's ranks between two incarnations (`Reform`)."""

    former: list[int]
    """By rank: its number before; -1 of one that has joined now."""
    lost: list[int]
    """Numbers before of those that are no ranks any more."""
    finished: list[int]
    """By rank: the number of the last operation that it had finished (`Reform.finished`); of one that has joined now,
    the least of the others'.  All count on from the least."""


class RankStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank's view of one connection: contributions are addressed to the next rank of the ring, results arrive on
    ``qp``.

    A connection has a queue pair for each lane operation (roce.LaneOperation); both fields name that of operation 0, a
    multiple of 8, to which the operation's number is added.

    An RC rank has two queue pairs for a stream, which its NIC numbers: ``peer_qp``, ``qp``, ``source_port`` and
    ``predecessor_port`` are 0.  *Out* leads from its own address to ``peer`` and carries contributions; *in* leads from
    its fold address (`Plan.fold_address`) to ``predecessor``, takes results and acknowledges them.  The RC ranks of a
    job are a ring of their own.
    """

    peer: str
    """IPv4 address of rank + 1, to which contributions are addressed; of an RC rank: the fold address of the next RC
    rank."""
    peer_qp: int
    """Destination queue pair of contributions: the ``qp`` of rank + 1."""
    qp: int
    """Destination queue pair of the results that this rank receives."""
    source_port: int
    """UDP source port of contributions, by which switches choose their path."""
    psn: int
    """First PSN, of contributions and results."""
    slots: int
    """Slots that the switches hold for this stream, a power of two; the window of a windowed rank is half of it, and an
    RC rank has at most two messages of ``slots // 4`` packets under way."""
    predecessor: str
    """IPv4 address of rank - 1, which results have as their source; of an RC rank: that of the RC rank before."""
    predecessor_port: int
    """UDP source port of results: that of rank - 1's contributions."""
    peer_port: int = UDP_PORT
    """UDP port of ``peer``: that of rank + 1."""


class RankTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank's view of an aggregation tree: a stream for the data, and one for what ranks agree on before the data is
    sent."""

    name: str
    """Name of the root switch."""
    weight: float
    data: RankStream
    agreement: RankStream
    """Stream for signatures of operations and for the scales of blocks, of which the switches take the maximum over all
    ranks (host/native/fold.h)."""
    stays: bool = False
    """After a recovery round: this tree's switches hold what they held, so that its streams are those of the plan
    before and go on where they are; no ``psn`` counts."""


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank as the others reach it: its fabric address, ADDRESS:PORT of its TCP listener, and the UDP port at which it
    receives RoCEv2."""

    rank: int
    address: str
    tcp: str
    udp_port: int = UDP_PORT
    host: str = ""
    """Name of its host in the fabric file, for messages; empty: no controller has planned the job."""
    rails: list[RailEnd] = []
    """The rails of `Join`."""

    @property
    def where(self) -> str:
        """Its host's name, or its address where that is not known."""
        return self.host or self.address


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The controller's plan of a job for one rank.  ``trees`` is empty if nothing folds, and ``reason`` says why."""

    job: str
    epoch: int
    rank: int
    world: int
    peers: list[Peer]
    trees: list[RankTree]
    """Trees of this rank and the ranks with the same index on the other machines; where each rank has a machine of its
    own, those are all ranks."""
    reason: str = ""
    machines: list[list[int]] = []
    """Ranks by machine, that is by fabric address; empty: each rank has its own machine.  Where there are trees, and
    the machine with the fewest ranks has n, the first n ranks of each machine fold."""
    rate: float = 0.0
    """Bytes per second of the slowest of the ranks' links; 0: the fabric file does not say."""
    ring: list[int] = []
    """Ranks in the order of a ring that crosses each link between switches at most once in each direction; empty: sort
    by address."""
    places: list[list[int]] = []
    """Ranks by row and column where they are at the places of a mesh, one each, whose neighbours have links of their
    own; empty: they are on none."""
    path_mtu: int = PATH_MTU
    """Payload bytes of every data packet on this fabric."""
    round: int = 0
    """Number of recovery rounds so far, in each of which the trees were planned anew."""
    secret: Secret = Secret()
    """Secret of the job: 32 random bytes, the same for all its ranks and known to nobody else."""
    rank_secret: Secret = Secret()
    """Secret between this rank and the controller, which every request of the rank carries; empty without a
    controller."""
    ticket: Secret = Secret()
    """Resumption ticket: the controller's own sealed record of the job, opaque to ranks, which give it back in `Watch`
    so that a controller that was started anew can go on with the job; empty: this rank holds none."""
    waits: bool = False
    """True if other ranks hold the job's ticket, so that this one registers with a new controller after one of them
    has."""
    controllers: list[str] = []
    """gRPC addresses at which this fabric's controller or its standby may answer, besides those that the rank knows."""
    stand_in: str = ""
    """ADDRESS:PORT of the first of the ranks that fold together, which stands in for the switches over TCP, since no
    trees are left (``reason`` says why); ``trees`` then are the streams to it.  Empty: the switches fold."""
    folds_until: int = 0
    """With ``stand_in``: the number of the last operation that folds, which some rank has begun."""
    fold_address: str = ""
    """For an RC rank: the fold address of its host, which is the peer of its *in* queue pairs."""
    verb: Verb = "write"
    """How all ranks of the job send data."""
    change: Change | None = None
    """How the ranks have changed, in the first plan of an incarnation that `Reform` began; None: all ranks joined."""
    message: int = 0
    """Most packets of a message: all ranks cut what they send on a stream into messages of ``message`` packets, or of a
    quarter of the stream's slots where those are fewer; 0: each rank as it likes."""
    presence: bool = True
    """True if contributions with and without lanes may meet in a slot (docs/protocol.md, "Packets without lanes").  It
    is False if NICs take part, and on BMv2, where no packet can grow."""
    inside: bool = False
    """True if this rank has no trees because its machine has more ranks than the machine with the fewest: the first
    ranks of its machine fold its data, which it adds in their shared memory (``machines``)."""

    shared: str = ""
    """The common parts of all plans of the job, compressed (`pack`): ``peers``, ``machines``, ``ring`` and
    ``places``, which are empty then.  Empty: these fields have them."""

    @property
    def folds(self) -> bool:
        """True if switches fold for this job."""
        return bool(self.trees) or self.inside

    @property
    def registers(self) -> bool:
        """True if a newly started controller can continue the job, so that this rank registers there."""
        return bool(self.ticket.value) or self.waits


class SharedParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of a `Plan` that are the same for all ranks of a job."""

    peers: list[Peer]
    machines: list[list[int]]
    ring: list[int]
    places: list[list[int]]


_decoder: Final = msgspec.json.Decoder(SharedParts)


def pack(shared: SharedParts) -> str:
    """The value of ``Plan.shared``."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(shared))).decode()


def whole(plan: Plan) -> Plan:
    """The plan with what it shares with others in its own fields.  Raises ValueError where that does not decode."""
    if not plan.shared:
        return plan
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(base64.b64decode(plan.shared, validate=True), MOST_BYTES)
        if not inflate.eof:
            raise ValueError(f"expected {MOST_BYTES} bytes at most")
        shared = _decoder.decode(text)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"plan of job {plan.job!r} for rank {plan.rank}: shared: {error}") from error
    return msgspec.structs.replace(plan, shared="", peers=shared.peers, machines=shared.machines, ring=shared.ring,
                                   places=shared.places)
