# SPDX-License-Identifier: Apache-2.0
"""The way of one contribution over the links of its tree, out of captured frames: up to the root, and the results down.

A frame belongs to a stream by its destination queue pair on its link, and to a contribution by its PSN, which is the
same on all links.  Nothing of a frame is trusted: what is cut off, fragmented, of other queue pairs, on its way in the
wrong direction or has a wrong ICRC is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from netfold.wire import roce
from netfold.wire.faults import Contributor, PacketStep, RecordedPacket, TapLink
from netfold.wire.operator import QueuePairUse

_HEADERS: Final = roce.ETHERNET_BYTES + roce.IPV4_BYTES + roce.UDP_BYTES
_UDP: Final = 17


class CapturedFrame(NamedTuple):
    """An Ethernet frame as a wire would have shown it."""

    link: str
    """The link, by the switch end at which it was captured."""
    nanoseconds: int
    """Time in nanoseconds since 1970."""
    leaves: bool
    """True if it left that switch; False if it arrived there."""
    data: bytes


class FoldPacket(NamedTuple):
    """The fields of a frame that identify its place in a fold."""

    queue_pair: int
    windowed: bool
    """True if the queue pair is one of NetFold's, with the operation in its lowest bits; False: a NIC's."""
    psn: int
    lanes: bool


@dataclass(frozen=True)
class TreeLink:
    """A link of a stream's tree.  ``child`` and ``parent`` are nodes, ``who`` a rank or the child."""

    tap: TapLink
    child: str
    parent: str
    who: str
    is_rank: bool
    up: QueuePairUse
    down: QueuePairUse


@dataclass
class StreamLinks:
    """The links of one stream of a job on one of its trees."""

    links: list[TreeLink] = field(default_factory=list)

    def towards_root(self, first: TreeLink) -> list[TreeLink]:
        """The links from a rank's up to the root."""
        way = [first]
        while len(way) <= len(self.links):
            after = next((link for link in self.links if not link.is_rank and link.child == way[-1].parent), None)
            if after is None:
                break
            way.append(after)
        return way

    def downwards(self, root: str, own: Sequence[TreeLink]) -> Iterator[TreeLink]:
        """The links that results take from a switch, level by level, each time those of ``own`` first."""
        below, left = [root], list(self.links)
        while below:
            level = [link for link in left if link.parent in below]
            left = [link for link in left if link not in level]
            yield from sorted(level, key=lambda link: link not in own)
            below = [link.child for link in level if not link.is_rank]


@dataclass
class Passage:
    """When packets of one PSN passed a link in one direction."""

    nanoseconds: int
    lanes: bool
    queue_pair: int
    packets: int = 1


def streams(taps: Sequence[TapLink], uses: Sequence[QueuePairUse]) -> list[StreamLinks]:
    """The streams that queue pairs belong to.  Uses come stream by stream, as the controller lists them: where a link's
    comes again, the next stream of the same tree begins, such as that of a job that moves to it."""
    by_name = {tap.name: tap for tap in taps}
    found: list[StreamLinks] = []
    last = None
    halves: dict[tuple[str, str, bool], QueuePairUse] = {}
    for use in uses:
        tap, of = by_name.get(use.link), (use.job, use.tree, use.stream)
        if of != last or (use.link, use.who, use.up) in halves:
            found.append(StreamLinks())
            last, halves = of, {}
        halves[use.link, use.who, use.up] = use
        other = halves.get((use.link, use.who, not use.up))
        if tap is not None and other is not None:
            up, down = (use, other) if use.up else (other, use)
            found[-1].links.append(_link(tap, up, down))
    return [stream for stream in found if stream.links]


def _link(tap: TapLink, up: QueuePairUse, down: QueuePairUse) -> TreeLink:
    near, far = (end.rpartition(":")[0] for end in (tap.name, tap.far))
    if up.who == near:
        return TreeLink(tap, near, far, up.who, False, up, down)
    return TreeLink(tap, far, near, up.who, up.who != far, up, down)


def of_host(found: Sequence[StreamLinks], host: str, job: str = "", tree: str = "") -> list[StreamLinks]:
    """The streams to which a host contributes, of that job and tree where they are named; those of data first."""
    mine = [stream for stream in found if any(
        link.is_rank and link.child == host and job in ("", link.up.job) and tree in ("", link.up.tree)
        for link in stream.links)]
    return sorted(mine, key=lambda stream: stream.links[0].up.stream != "data")


def fold_packet(frame: bytes) -> FoldPacket | None:
    """The identifying fields of a frame; None: it is no complete RoCEv2 packet of a fold.  Its ICRC is not checked."""
    if (len(frame) < _HEADERS + roce.BTH_BYTES + roce.ICRC_BYTES or frame[12:14] != b"\x08\x00" or frame[14] != 0x45
            or frame[23] != _UDP or int.from_bytes(frame[20:22], "big") & 0x3FFF
            or not roce.is_udp_port(int.from_bytes(frame[36:38], "big"))):
        return None
    length, datagram = int.from_bytes(frame[16:18], "big"), int.from_bytes(frame[38:40], "big")
    if (length != roce.IPV4_BYTES + datagram or roce.ETHERNET_BYTES + length > len(frame)
            or datagram < roce.UDP_BYTES + roce.BTH_BYTES + roce.ICRC_BYTES):
        return None
    opcode, _, key, queue_pair, psn = roce.BTH.unpack_from(frame, _HEADERS)
    if opcode > roce.Opcode.WRITE_ONLY_IMMEDIATE:
        return None
    return FoldPacket(queue_pair & 0xFFFFFF, key == roce.PKEY_WINDOWED, psn & roce.PSN_MASK,
                      datagram - roce.UDP_BYTES > roce.PRESENCE_BYTES)


def is_intact(frame: bytes) -> bool:
    """True if the ICRC of a packet that `fold_packet` accepts is right."""
    end = roce.ETHERNET_BYTES + int.from_bytes(frame[16:18], "big") - roce.ICRC_BYTES
    return roce.icrc(frame[roce.ETHERNET_BYTES : end]) == frame[end : end + roce.ICRC_BYTES]


class PacketWays:
    """Collects what passes, and finds a way in it.

    streams  those to which the host contributes (`of_host`)
    host     the host's name
    most     packets of folds that it takes; further ones are left out, so that its memory is bounded
    """

    def __init__(self, streams: Sequence[StreamLinks], host: str, most: int) -> None:
        self._streams, self._host, self._most = list(streams), host, most
        self.packets = self.corrupt = 0
        self._passed: dict[tuple[int, int, bool], dict[int, Passage]] = {}
        self._places: dict[tuple[str, bool, int, bool], tuple[int, int, bool]] = {}
        for number, stream in enumerate(self._streams):
            for at, link in enumerate(stream.links):
                near = link.tap.name.rpartition(":")[0]
                for use, source in ((link.up, link.child), (link.down, link.parent)):
                    pair = use.queue_pair if use.operation else use.queue_pair & -roce.QUEUE_PAIRS
                    self._places[link.tap.name, source == near, pair, not use.operation] = (number, at, use.up)

    @property
    def full(self) -> bool:
        """True if no further packet is accepted."""
        return self.packets + self.corrupt >= self._most

    def take(self, frame: CapturedFrame) -> None:
        """Take a frame, or leave it out."""
        found = None if self.full else fold_packet(frame.data)
        if found is None:
            return
        pair = found.queue_pair & -roce.QUEUE_PAIRS if found.windowed else found.queue_pair
        place = self._places.get((frame.link, frame.leaves, pair, found.windowed))
        if place is None:
            return
        if not is_intact(frame.data):
            self.corrupt += 1
            return
        self.packets += 1
        passed = self._passed.setdefault(place, {})
        before = passed.get(found.psn)
        if before is None:
            passed[found.psn] = Passage(frame.nanoseconds, found.lanes, found.queue_pair)
        else:
            before.packets += 1

    def best(self, dropped: int = 0) -> tuple[RecordedPacket, bool] | None:
        """The way of a contribution, and whether all of it was seen, in the order of cause and effect; None: nothing of
        the host was.  Of several it is the first such one, else the one of which most was seen: a way that began before
        the recording, and of which a repeat is seen, has its results first.  Data goes before what ranks agree on.

        dropped  packets that came too fast to be taken
        """
        for number, stream in enumerate(self._streams):
            for at, first in enumerate(stream.links):
                passed = self._passed.get((number, at, True), {})
                if not first.is_rank or first.child != self._host or not passed:
                    continue
                own = stream.towards_root(first)
                meeting = [stream.links.index(link) for step in own for link in stream.links
                           if link.parent == step.parent]
                sought = [(number, place, True) for place in meeting] + [
                    (number, place, False) for place in range(len(stream.links))]
                seen = {psn: sum(psn in self._passed.get(key, {}) for key in sought) for psn in passed}
                whole = {psn: seen[psn] == len(sought) and self._in_order(number, own, psn) for psn in passed}
                psn = max(passed, key=lambda psn: (whole[psn], seen[psn], -passed[psn].nanoseconds))
                return self._way(number, first, own, psn, dropped), whole[psn]
        return None

    def _in_order(self, number: int, own: Sequence[TreeLink], psn: int) -> bool:
        """True if a packet whose whole way was recorded passed each link, to the root and back, after the preceding
        one."""
        places = [self._streams[number].links.index(link) for link in own]
        keys = [(number, place, True) for place in places] + [(number, place, False) for place in reversed(places)]
        times = [self._passed[key][psn].nanoseconds for key in keys]
        return times == sorted(times)

    def _way(self, number: int, first: TreeLink, own: list[TreeLink], psn: int, dropped: int) -> RecordedPacket:
        stream = self._streams[number]
        start = self._passed[number, stream.links.index(first), True][psn]

        def passage(link: TreeLink, up: bool) -> Passage | None:
            return self._passed.get((number, stream.links.index(link), up), {}).get(psn)

        def since(passed: Passage | None) -> float | None:
            return None if passed is None else (passed.nanoseconds - start.nanoseconds) / 1000

        def step(link: TreeLink, up: bool, met: list[Contributor]) -> PacketStep:
            passed = passage(link, up)
            source, target = (link.child, link.parent) if up else (link.parent, link.child)
            return PacketStep(
                "result" if not up else "contribution" if link.is_rank else "sum", link.tap.name, source, target,
                link in own, since(passed), passed is not None and passed.lanes,
                0 if passed is None else passed.packets, met)

        steps = [step(link, True, [Contributor(other.who, since(passage(other, True))) for other in stream.links
                                   if other.parent == link.parent and other is not link]) for link in own]
        steps += [step(link, False, []) for link in stream.downwards(own[-1].parent, own)]
        operation = first.up.operation or _operation(start.queue_pair)
        return RecordedPacket(self._host, first.who, first.up.job, first.up.tree, first.up.stream, operation, psn,
                              psn % first.up.slots, steps, self.packets, dropped, self.corrupt)


def _operation(queue_pair: int) -> str:
    """The name of the lane operation in a queue pair's lowest bits."""
    number = queue_pair % roce.QUEUE_PAIRS
    return next((each.name for each in roce.LaneOperation if each == number), f"operation {number}")
