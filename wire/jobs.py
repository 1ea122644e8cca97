# SPDX-License-Identifier: Apache-2.0
"""Messages of the job service, between a rank (host/) and the controller.

gRPC carries them as JSON and msgspec checks every field at the border: no generated code ties us to one protobuf.
A job's life: every rank calls ``Join`` and all get their ``Plan`` together; ``Report`` and ``Leave`` end it, once all
others have said that they are ``Settled``.  A rank whose retransmissions bring no result calls ``Suspect``, and one
that has timed out calls ``Missing`` to learn which ranks the switches wait for.  Where a switch or a link fails, ranks
are told to ``Halt``, and call ``Resume`` to go on over other trees.  A rank whose plan has trees opens what it folds
with and calls ``Opened``; where one rank lacks something, none uses the trees.  Meanwhile each may hold a ``Watch``
open: on it the controller reports what happens to the others, and takes a broken one for the rank's death.  Where ranks
are lost, or others wait to join, the ranks that are there call ``Reform``, and go on as a new incarnation of the job.
Some ranks of a job that fold by themselves are a job of their own, which names the first one (``Join.group``).  Every
request of a rank carries the secret that its plan has given it.

A rank is windowed, or it is an RC rank, which folds with the queue pairs of its NIC (``Join.kind``).  What a NIC
chooses, RC ranks tell in a second step after each plan with trees:

    RC rank --Join--> Plan --Connect: its queue pairs--> Connected: its neighbours' queue pairs; the switches are ready

The windowed ranks of such a job get their plans when its RC ranks are connected.  After ``Resume`` it is the same: an
RC rank makes all its queue pairs anew and connects them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from netfold.wire.bounds import (
    MAX_RAILS,
    MAX_STREAMS,
    Address,
    Count,
    Int32,
    Last,
    Name,
    QueuePair,
    RemoteKey,
    Seconds,
    Text,
)
from netfold.wire.plan import Plan, RailEnds, Secret
from netfold.wire.roce import UDP_PORT

SERVICE: Final = "netfold.Jobs"
PROTOCOL: Final = 16
"""Version of packets and messages, raised whenever one changes its meaning: sides with different versions refuse each
other."""
MAX_WORLD: Final = 4096
"""Most ranks of a job."""
LANE_BITS: Final = (32, 16, 8)
"""Widths in bits that the lanes of float32 sums may have."""
RankKind = Literal["windowed", "rc"]
"""How a rank takes part where switches fold: by our own windowed end point, or by RC queue pairs of a NIC."""


class GroupOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Marks a job as a group of some ranks of a running job, which fold by themselves.  The group has a plan, an epoch,
    secrets and events of its own, and ends with that job.  The controller names it.

    A rank proves with its secret that it is a rank of the job.
    """

    job: Name
    epoch: Int32
    rank: Int32
    """This rank in the job."""
    secret: Secret
    """This rank's secret in the job."""
    members: Annotated[list[Int32], msgspec.Meta(max_length=4096)]
    """The ranks of the group by their numbers in the job, in the group's order."""
    number: Count
    """Tells apart groups of the same ranks: all members say the same one, which none of them has used."""


class Join(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's request to take part in a job.  All ranks must agree on everything but rank and addresses."""

    job: Name
    world: Int32
    rank: Int32
    address: Name
    """IPv4 address on the fabric at which results arrive."""
    tcp: Name
    """``address:port`` at which this rank's mesh accepts TCP connections."""
    path_mtu: Int32
    """Path MTU that the rank asks for; 0: that of the fabric, which the plan states."""
    protocol: Int32 = PROTOCOL
    timeout: float = 30.0
    """Seconds to wait for the other ranks."""
    fold: bool = True
    """True if this rank can use trees; if one rank cannot, the job gets none and takes no slots."""
    lane_bits: Int32 = 32
    """Default width in bits of the lanes of float32 sums."""
    kind: RankKind = "windowed"
    joining: bool = False
    """True if this rank joins a running job: it waits until all ranks of that call `Reform` to grow.  ``rank`` and
    ``world`` are 0 and 1 then, and the plan has the real ones."""
    udp_port: Int32 = UDP_PORT
    """UDP port of ``address`` at which results, or the packets of queue pairs, arrive: roce.UDP_PORT, or one of
    roce.UDP_PORTS, which this rank has bound.  An RC rank's is roce.UDP_PORT."""
    lacks: Text = ""
    """The resource that this rank lacks to fold, although its program wants it to.  The job then gets no trees, and all
    its ranks learn the reason.  Empty: it lacks nothing."""
    group: GroupOf | None = None
    """The running job of which this one is a group; ``job`` is then that job's name, and the plan has the group's."""
    rails: RailEnds = []
    """The job's rails, in their order, where it has several.  Each is a job of its own at its plane's controller, and
    this one says who their ranks are: it has no trees."""


class Opened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The notice of a rank whose plan has trees that it has opened what it folds with, or what it lacks: a source port,
    shared memory.  It is answered once all ranks that are there have said so.  Where one of them lacks something, the
    switches hold nothing of the job any more."""

    job: Name
    rank: Int32
    epoch: Int32
    lacks: Text = ""
    """The resource that this rank lacks to fold; empty: nothing."""
    timeout: Seconds = 10.0
    """Seconds to wait for the other ranks."""
    secret: Secret = Secret()


class AllOpened(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `Opened`."""

    lacking: dict[int, str] = {}
    """Rank -> the resource that it lacks; empty: all ranks fold."""
    ticket: Secret = Secret()
    """Where ranks lack something: takes the place of the plan's ticket, by which the switches fold; empty where the
    plan has none."""


class RankReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's totals, for `netfold status` and the demo's table."""

    job: Name
    rank: Int32
    epoch: Int32
    operations: Count
    bytes_reduced: Count
    packets_sent: Count
    retransmissions: Count
    by_tree: Annotated[dict[Name, Count], msgspec.Meta(max_length=MAX_STREAMS)] = {}
    """Payload bytes folded over each tree, by name."""
    secret: Secret = Secret()
    fallback: str = ""
    """Why the switches folded no longer, where the job went on over TCP; else empty."""
    by_rail: Annotated[dict[Name, Count], msgspec.Meta(max_length=MAX_RAILS)] = {}
    """Payload bytes that each rail carried, by its name; empty where one rail carries all."""


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's notice that it has no more operations.  It is answered with `Done` once no other rank can need this
    one."""

    job: Name
    rank: Int32
    epoch: Int32
    reason: Text = ""
    """Why it leaves before the end; empty where all is well."""
    secret: Secret = Secret()
    last: Last = ""
    """After which operation it leaves, and why, for the other ranks: they hear it by `RankLeft`."""
    folded: Count = 0
    """Number of the last operation that has folded on this rank; 0: none."""


class Reform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a rank that has stopped, to go on with those that are there as a new incarnation of the job.

    It is answered once every rank has asked that has neither left nor been lost.  Ranks that do not ask within
    ``timeout`` are evicted where more than half of those that are there have asked; else this one is refused.
    """

    job: Name
    rank: Int32
    epoch: Int32
    tcp: Name
    """``address:port`` at which this rank's next mesh accepts TCP connections."""
    finished: Count
    """Number of the last operation of all ranks that this rank has finished; 0: none."""
    grows: bool = False
    """True if ranks that wait to join should be admitted.  They are if all ranks ask for it and no rank is gone."""
    timeout: Seconds = 10.0
    """Seconds to wait for the other ranks."""
    secret: Secret = Secret()
    rails: RailEnds = []
    """The rails of `Join`, for the new incarnation."""


class Reformed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `Reform`."""

    plan: Plan | None = None
    """This rank's plan in the new incarnation, with its number there, and ``change``; None: all ranks are there and
    nobody waits to join, so the job goes on as it was."""


class Watch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's request for the events of its job.  The answer is a stream of events, from Join to Leave."""

    job: Name
    rank: Int32
    epoch: Int32
    secret: Secret = Secret()
    ticket: Secret = Secret()
    """The ``ticket`` of this rank's latest plan."""
    waits: bool = False
    """``waits`` of that plan: a controller that does not know the job answers once a rank with a ticket has come."""
    planned: Int32 = 0
    """``round`` of that plan."""
    folds: bool = False
    """True if the switches fold according to that plan."""
    round: Int32 = 0
    """Number of the last recovery round that this rank was told of (`Halt`); 0: of none.  Where it is higher than the
    plan's, the rank stands still."""


class AskMissing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's question, because results have stopped, which ranks the switches wait for; as ``Suspect``, whether a
    link has failed."""

    job: Name
    rank: Int32
    epoch: Int32
    waits: Annotated[dict[Int32, Int32], msgspec.Meta(max_length=MAX_STREAMS)]
    """Place of a stream in this rank's plan -> the lowest PSN that was sent on it and has no result.  Places are
    counted as in `Connect.pairs`: 0 and 1 are data and agreement of the first tree, 2 and 3 of the second one, ..."""
    secret: Secret = Secret()
    broken: Text = ""
    """Why queue pairs of this RC rank are in error: all ranks are to halt, and it makes them anew.  Empty: none is."""


class MissingContributions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to AskMissing: what the slots of these PSNs hold at this moment."""

    ranks: list[int]
    """Ranks whose contributions are missing; empty where a packet between switches is missing, or nothing waits."""
    why: list[str]
    """For each stream a description of its slot: switch, slot, bitmap."""


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a rank that has stopped for `Halt`: it sends nothing and takes no result until it has the answer,
    a new `Plan`.

    The plan has as many trees as the one before, and the ``psn`` of each stream is where all ranks begin again.
    """

    job: Name
    rank: Int32
    epoch: Int32
    missing: Annotated[dict[Int32, Int32], msgspec.Meta(max_length=MAX_STREAMS)]
    """Place of each stream in this rank's plan, as in `AskMissing` -> the PSN of the lowest packet without a result."""
    timeout: Seconds = 10.0
    """Seconds to wait for the other ranks, and for switches to come back."""
    secret: Secret = Secret()
    begun: int = 0
    """Number of the last operation on the trees that this rank has begun; 0: none."""
    stand_in: str = ""
    """ADDRESS:PORT at which this rank would stand in for the switches over TCP; empty: it goes on over switches
    alone."""


class OwnPairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The values that an RC rank's NIC has chosen for one stream."""

    out_qp: QueuePair
    """Number of the queue pair whose packets are contributions."""
    in_qp: QueuePair
    """Number of the queue pair that takes results."""
    address: Address
    """Where offset 0 of the stream's region lies, into which results are written; 0 where all are sent."""
    rkey: RemoteKey


class Connect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The second step of an RC rank, after each plan that has trees: the queue pairs that it has made for the plan.

    The answer comes when all RC ranks of the job have connected and the switches are ready to fold.  ABORTED says that
    the trees have changed meanwhile: a `Halt` comes, or has come, and the rank calls `Resume`.
    """

    job: Name
    rank: Int32
    epoch: Int32
    round: Int32
    """The plan's round."""
    pairs: Annotated[list[OwnPairs], msgspec.Meta(max_length=MAX_STREAMS)]
    """One for each stream: data of the first tree, agreement of the first tree, data of the second tree, ..."""
    timeout: Seconds = 30.0
    """Seconds to wait for the other ranks and for the switches."""
    secret: Secret = Secret()


class NeighbourPairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """To which queue pairs those of an RC rank are connected for one stream."""

    peer_qp: int
    """Destination queue pair of *out*: the ``in_qp`` of the next RC rank."""
    predecessor_qp: int
    """Destination queue pair of *in*: the ``out_qp`` of the RC rank before."""
    peer_address: int
    """The next RC rank's ``address``."""
    peer_rkey: int
    """The next RC rank's ``rkey``."""


class Connected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `Connect`: the switches are ready, and the rank may send."""

    pairs: list[NeighbourPairs]
    """In the order of ``Connect.pairs``; empty: nothing folds after all, and ``reason`` says why.  The rank goes on as
    by a plan without trees."""
    ticket: Secret = Secret()
    """Takes the place of the plan's ticket, which does not know the queue pairs."""
    reason: str = ""


class Watching(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The first event of the stream: from now on this rank's death is noticed."""


class RankLost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A rank is gone without having left."""

    rank: int
    address: str
    host: str
    """Name of the rank's host in the fabric."""
    why: str


class RankLeft(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A rank has left in order: no operation of all ranks can end from now on."""

    rank: int
    address: str
    host: str
    """Name of the rank's host in the fabric."""
    last: str
    """After which operation, and why, as the rank has said."""


class EvictedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="Evicted"):
    """The job goes on without this rank, or is about to: it was taken for dead."""

    why: str


class JobEndedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="JobEnded"):
    """The job has been removed from the switches although this rank has not left."""

    why: str


class Halt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A switch or link that the job's trees need has failed: the rank must stop and call `Resume`."""

    round: int
    """Number of the recovery round; a plan with this number or a higher one ends it."""
    why: str


class Settle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Another rank wants to leave: this rank must say `Settled` once it needs nothing of that rank."""

    folded: Count = 0
    """Number of the last operation that has folded on that rank.  This rank has begun it too, and needs nothing once it
    has finished it."""


class Tell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Somebody looks at the job: this rank is to report (`RankReport`) how far it is.  Not sent while nobody
    looks."""


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `Settle`: this rank lacks no result."""

    job: Name
    rank: Int32
    epoch: Int32
    secret: Secret = Secret()


Event = Watching | RankLost | RankLeft | EvictedEvent | JobEndedEvent | Halt | Settle | Tell


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty answer."""
