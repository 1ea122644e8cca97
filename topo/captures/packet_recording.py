# SPDX-License-Identifier: Apache-2.0
"""Records one packet's way over a local fabric: packet sockets on the links of a host's trees, for a moment.

While nobody records there is no socket, and nothing is slower.
"""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Final

from netfold.topo.captures import packet_sockets, segments
from netfold.topo.captures.packet_sockets import Received
from netfold.topo.captures.packet_way import CapturedFrame, PacketWays, StreamLinks, of_host, streams
from netfold.topo.faults.board import FaultRefused
from netfold.wire import roce
from netfold.wire.faults import RecordedPacket, RecordPacket, TapLink
from netfold.wire.operator import QueuePairUse

SECONDS: Final = 1.0
"""Time after which a recording ends, whatever has passed by then."""
LOOK: Final = 0.05
"""Seconds between checks for a completely recorded way."""
MOST_PACKETS: Final = 1 << 16
"""Packets of folds that a recording keeps in memory, some 200 bytes of each."""
MOST_BYTES: Final = 32 << 20
"""Bytes of frames after which a recording ends: sooner than SECONDS where links are fast."""
MOST_FRAMES: Final = 1 << 15
"""Frames, a super-packet as one, after which it ends."""
AT_ONCE: Final = 1 << 20
"""Bytes of frames that are analysed during the recording.  The rest is left until it has ended, since sockets overflow
while they are not read."""
MOST_LINKS: Final = 250
"""Links that are captured at once."""
BUFFERS: Final = 64 << 20
"""Bytes of all sockets' buffers together; SMALLEST and LARGEST bound each."""
SMALLEST: Final = 1 << 18
LARGEST: Final = 1 << 22
SEGMENTS: Final = 128
"""Most segments of one super-packet that are recorded, as many as the kernel puts into one of UDP
(UDP_MAX_SEGMENTS)."""
_TYPE, _PROTOCOL, _PORT = (segments.HEADER.size + at for at in (12, 23, 36))

Opener = Callable[[TapLink, int], int]
"""Opens a packet socket at a link's switch end, with a buffer of the given size in bytes.  Raises OSError."""


def record(
    request: RecordPacket, taps: Sequence[TapLink], uses: Sequence[QueuePairUse], opener: Opener
) -> RecordedPacket:
    """The way of one contribution that passes within SECONDS.  Raises FaultRefused where none does, and where the host
    takes part in no such tree.

    taps    all links
    uses    what queue pairs mean on them
    """
    found = of_host(streams(taps, uses), request.host, request.job, request.tree)
    what = (f"{request.host}" + (f" in job {request.job}" if request.job else "")
            + (f" on the tree over {request.tree}" if request.tree else ""))
    if not found:
        raise FaultRefused(f"{what}: no job folds what this host sends there now: expected a host of a job that "
                           "runs and has connected its queue pairs", conflict=True)
    found, links = _within(found)
    if not links:
        raise FaultRefused(f"{what}: the tree has more than {MOST_LINKS} links, which cannot all be recorded at once: "
                           "`netfold pcap` captures single ones")
    ways = PacketWays(found, request.host, MOST_PACKETS)
    with contextlib.ExitStack() as stack:
        sockets = []
        buffer = min(LARGEST, max(SMALLEST, BUFFERS // len(links)))
        try:
            for link in links:
                sockets.append(stack.enter_context(socket.socket(fileno=opener(link, buffer))))
        except OSError as error:
            raise FaultRefused(f"{link.name}: the kernel gives no packet socket: {error}", conflict=True) from error
        way, dropped = _capture(ways, links, sockets)
    if way is None:
        raise FaultRefused(
            f"{what}: no contribution passed within {SECONDS:g} s: the job reduces nothing now, stands still, or goes "
            f"over another tree or rail: try again while it reduces (on its links were {ways.packets} packets of "
            f"others and {ways.corrupt} corrupt ones; {dropped} came too fast)", conflict=True)
    return way


def _within(found: Sequence[StreamLinks]) -> tuple[list[StreamLinks], list[TapLink]]:
    """The first streams whose links are MOST_LINKS together at most, and these links."""
    taken: list[StreamLinks] = []
    links: dict[str, TapLink] = {}
    for stream in found:
        more = links | {link.tap.name: link.tap for link in stream.links}
        if len(more) > MOST_LINKS:
            break
        taken.append(stream)
        links = more
    return taken, list(links.values())


def _capture(ways: PacketWays, links: Sequence[TapLink], sockets: Sequence[socket.socket]
             ) -> tuple[RecordedPacket | None, int]:
    """Capture until a whole way has been seen, there is enough, or the time is over.  Returns the way, and how many
    packets came too fast."""
    fresh: list[tuple[str, Received]] = []
    frames = held = at_once = dropped = 0
    with selectors.DefaultSelector() as selector:
        for link, packets in zip(links, sockets, strict=True):
            packets.setblocking(False)
            selector.register(packets, selectors.EVENT_READ, link.name)
        end = time.monotonic() + SECONDS
        look = time.monotonic() + LOOK
        while True:
            for key, _ in selector.select(LOOK):
                assert isinstance(key.fileobj, socket.socket)
                for each in packet_sockets.received(key.fileobj):
                    if is_roce(each.data):
                        fresh.append((key.data, each))
                        frames, held, at_once = frames + 1, held + len(each.data), at_once + len(each.data)
            now = time.monotonic()
            over = now >= end or held >= MOST_BYTES or frames >= MOST_FRAMES
            if not over and (now < look or at_once > AT_ONCE):
                continue
            dropped += sum(packet_sockets.counts(packets)[1] for packets in sockets)
            take(ways, fresh)
            fresh, at_once, look = [], 0, time.monotonic() + LOOK
            best = ways.best(dropped)
            if over or (best is not None and best[1]):
                return None if best is None else best[0], dropped


def is_roce(data: bytes) -> bool:
    """True if a frame behind its virtio-net header is for a UDP port of RoCEv2; IP options are checked later."""
    return (len(data) > _PORT + 2 and data[_TYPE : _TYPE + 2] == b"\x08\x00" and data[_PROTOCOL] == socket.IPPROTO_UDP
            and roce.is_udp_port(int.from_bytes(data[_PORT : _PORT + 2], "big")))


def take(ways: PacketWays, fresh: list[tuple[str, Received]]) -> None:
    """Take frames in the order of their times, within SECONDS; what no kernel makes is left out."""
    end = time.monotonic() + SECONDS
    for link, (data, nanoseconds, outbound) in sorted(fresh, key=lambda each: each[1].nanoseconds):
        if ways.full or time.monotonic() >= end:
            return
        with contextlib.suppress(struct.error, IndexError):
            for frame in itertools.islice(segments.frames(data), SEGMENTS):
                ways.take(CapturedFrame(link, nanoseconds, outbound, frame))
