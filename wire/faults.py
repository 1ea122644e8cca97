# SPDX-License-Identifier: Apache-2.0
"""Messages of the fault service: between a local fabric's launcher and `netfold fault`, `netfold pcap`, and the page.

The page asks for faults, and for one packet's way over the links (RecordPacket).

They travel over the unix socket SOCKET in the fabric's folder, one request and one answer a connection (rpc/local.py).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from netfold.wire.bounds import Count, Name, Seconds, Text
from netfold.wire.operator import QueuePairUse

SOCKET: Final = "faults.sock"
"""Name of the service's socket in a fabric's folder."""
MACHINE_SOCKET: Final = "machine-faults.sock"
"""Name of the same socket of one machine's part of a fabric over several machines; only the launcher uses it."""
FAULTS_VARIABLE: Final = "NETFOLD_FAULTS"
"""Environment variable with the socket's path, inside a fabric: for its controller, and commands at its prompt."""
KEY_VARIABLE: Final = "NETFOLD_FAULT_KEY"
"""Environment variable with the key in the address of the fabric's page, for its controller: whoever knows it may
inject faults there."""

Kind = Literal["loss", "duplicate", "reorder", "corrupt", "delay", "cut", "flap", "silence", "kill", "restart", "stop"]
SHARES: Final = ("loss", "duplicate", "reorder", "corrupt")
"""Kinds that hit a share of a link's packets, drawn by the switches' program from a seed."""
DEFAULT_SHARE: Final = 0.01
DEFAULT_DELAY: Final = 0.01
"""Default delay in seconds of ``delay``."""
DEFAULT_FLAP: Final = 0.5
"""Default duration in seconds for which a flapping link stays down, and then up."""


class Inject(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A request for a fault."""

    kind: Kind
    target: Name
    """A switch ("spine1"), a link by either end or by both nodes ("leaf1:3", "leaf1-spine1"), a host's link ("h3"), a
    rank ("rank3", "JOB/3"), or "controller"."""
    seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Seconds until it is undone; None: it lasts until it is ended, or the fabric ends."""
    amount: Annotated[float, Meta(gt=0, le=3_600)] | None = None
    """Share of packets (SHARES), seconds of ``delay``, seconds that ``flap`` stays down and up; None: the default."""
    seed: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """Seed of the draw of SHARES: the same seed hits the same packets.  None: the fabric's seed."""
    one_way: bool = False
    """``silence``, ``delay``: only what leaves by the named port, "leaf1:3"."""


class Undo(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A request to end one fault, or all."""

    number: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """The fault's number; None: all."""


class Active(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A request for the faults that are there."""


class Tap(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A request for packet sockets on links, which come with the answer as open files, in the order of its links."""

    target: Name
    """A link, a switch (all its links), a host (its links), or "all"."""
    buffer: Annotated[int, Meta(ge=1 << 16, le=1 << 30)] = 1 << 24
    """Bytes of each socket's buffer, or as near to it as the kernel grants."""


class ActiveFault(Struct, frozen=True):
    """A fault that is there."""

    number: int
    kind: Kind
    target: str
    """The target as it was named."""
    text: str
    """Description of its effect."""
    since: float
    """Seconds since its beginning."""
    left: Seconds | None
    """Seconds until it is undone; None: not by itself."""
    problem: Text = ""
    """Why it could not be undone; empty if nothing has failed."""


class Injected(Struct, frozen=True, tag=True):
    """The answer to Inject."""

    number: Count
    """Its number, for Undo; 0 for a fault that is over at once (``restart``) or cannot be undone (a rank that was
    killed)."""
    text: Text


class Undone(Struct, frozen=True, tag=True):
    """The answer to Undo: what was ended, in words."""

    texts: list[str]


class PlaneOf(Struct, frozen=True):
    """A plane of a fabric that runs."""

    file: Text
    """Path of its fabric file."""
    controller: Text
    """Address at which its controller answers on this machine."""


class ActiveFaults(Struct, frozen=True, tag=True):
    """The answer to Active."""

    fabric: str
    faults: list[ActiveFault]
    compiled_in: bool
    """True if the switches' program can hit shares of packets (SHARES)."""
    planes: list[PlaneOf] = []
    """The planes, with the data by which commands find their controllers."""


class TapLink(Struct, frozen=True):
    """A link that is captured at one of its switch ends."""

    name: str
    """The switch end: "leaf1:3"."""
    far: str
    """The other end: "spine1:1", "h3:0"."""
    rate: Count | None
    """bit/s of the link; None: not shaped."""


class Tapped(Struct, frozen=True, tag=True):
    """The answer to Tap."""

    fabric: str
    links: list[TapLink]
    connections: list[QueuePairUse]
    """The meaning of queue pairs on them, according to the controllers; the ``link`` of each is the ``name`` of one
    here."""


class MachineTap(Struct, frozen=True):
    """How links of another machine are captured: a command on this one whose standard output is the capture."""

    machine: str
    command: list[str]
    """The command line, to which options of `netfold pcap` may be added."""
    links: int


class TappedElsewhere(Struct, frozen=True, tag=True):
    """The answer to Tap of a fabric over several machines, whose packet sockets cannot be handed over."""

    fabric: str
    machines: list[MachineTap]


class AskNames(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A request for what queue pairs mean now: jobs begin and are planned anew while links are captured."""


class Names(Struct, frozen=True, tag=True):
    """The answer to AskNames."""

    connections: list[QueuePairUse]


class RecordPacket(Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A request to record the way of one contribution of a host, over all links of its tree."""

    host: Name
    job: Name = ""
    """The job to which it contributes; empty: any."""
    tree: Name = ""
    """Name of the tree's root switch; empty: any."""


class Contributor(Struct, frozen=True):
    """Whose contribution, or sum, a switch combines with the packet that is followed."""

    who: str
    """"rank 3 (h4)", or a switch."""
    microseconds: float | None
    """When it passed, as in PacketStep; None: it was not seen."""


class PacketStep(Struct, frozen=True):
    """One link of a packet's way."""

    kind: Literal["contribution", "sum", "result"]
    """The kind of packet that passed it: a rank's contribution or a switch's sum on their way up, or a result on its
    way down."""
    link: str
    """The link, by the switch end at which it was captured: "leaf1:3"."""
    source: str
    target: str
    """The nodes that sent and received it."""
    own: bool
    """True if it is on the way between the host and the root; a copy for other hosts is not."""
    microseconds: float | None
    """When it passed that end, since the host's contribution did; None: it was not seen."""
    lanes: bool
    """True if it carried elements; False: an empty contribution, or not seen."""
    packets: int
    """Number of passes: more than one if it was repeated."""
    met: list[Contributor]
    """The contributions with which its target combines it in the slot, on the way up."""


class RecordedPacket(Struct, frozen=True, tag=True):
    """The answer to RecordPacket: where one contribution went, and what became of it."""

    host: str
    who: str
    """The rank: "rank 3 (h4)"."""
    job: str
    tree: str
    stream: str
    """"data", or "agreement"."""
    operation: str
    """Lane operation: SUM32."""
    psn: int
    slot: int
    """The slot among those of its stream, on each switch."""
    steps: list[PacketStep]
    """Up to the root, then down, level by level."""
    packets: Count
    """Packets of folds that were recorded on the tree's links."""
    dropped: Count
    """Packets that came too fast to be recorded."""
    corrupt: Count
    """Packets with a wrong ICRC, which no switch folds."""


class Refused(Struct, frozen=True, tag=True):
    """The answer to a request that is refused: what was wrong, what was expected, what to do."""

    why: Text
    conflict: bool = False
    """True if it would be possible without the present faults, or once the fabric is ready."""


Request = Inject | Undo | Active | Tap | AskNames | RecordPacket
Answer = Injected | Undone | ActiveFaults | Tapped | TappedElsewhere | Names | RecordedPacket | Refused
