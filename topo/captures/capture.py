# SPDX-License-Identifier: Apache-2.0
"""Captures what goes over a fabric's links into pcapng, from packet sockets that its launcher has opened.

One interface for each link, named by its switch end; its description has what queue pairs mean there, for the
dissector (netfold.lua).
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from netfold.disk import files
from netfold.topo.captures import packet_sockets, segments
from netfold.topo.captures.pcapng import MAX_OPTION, PcapngWriter
from netfold.wire.faults import TapLink
from netfold.wire.operator import QueuePairUse

RING_FILES: Final = 10
"""Files of a ring; the oldest goes when a new one begins."""


def description(link: TapLink, uses: Sequence[QueuePairUse]) -> str:
    """An interface's description, which names the link's ends and has a line for each meaning of a queue pair, with
    tabs between the fields.  Lines without room are left out, and the last line counts them."""
    lines = [f"netfold 1\t{link.name}\t{link.far}"]
    mine = [use for use in uses if use.link == link.name]
    room = MAX_OPTION - 200 - len(lines[0].encode())
    for number, use in enumerate(mine):
        line = "\t".join([f"{use.queue_pair}", use.operation or "-", _word(use.job), use.tree, use.stream,
                          f"{use.slots}", "up" if use.up else "down", use.who])
        room -= len(line.encode()) + 1
        if room < 0:
            lines.append(f"# {len(mine) - number} more")
            break
        lines.append(line)
    return "\n".join(lines)


def _word(name: str) -> str:
    """A job's name, which its users choose, without what separates fields and lines."""
    return "".join(c if c.isprintable() else "?" for c in name)


@dataclass
class LinkCounts:
    """Counts of one link in a capture."""

    packets: int = 0
    """Frames as on a wire."""
    received: int = 0
    """Packets that the socket received, a super-packet as one."""
    dropped: int = 0
    """Packets that the kernel dropped because the socket was not read in time."""


class FileRing:
    """Files PATH-0001.SUFFIX and so on that together hold at most ``limit`` bytes or so: the oldest is removed."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._each = path, limit // RING_FILES
        self._number = 0
        self.files: list[Path] = []

    def full(self, written: int) -> bool:
        """True if the file has reached its size."""
        return written >= self._each

    def open(self) -> BinaryIO:
        """Begin the next file.  Raises OSError."""
        self._number += 1
        path = self._path.with_name(f"{self._path.stem}-{self._number:04}{self._path.suffix or '.pcapng'}")
        file = files.create(path)
        self.files.append(path)
        while len(self.files) > RING_FILES:
            self.files.pop(0).unlink(missing_ok=True)
        return file


class Capture:
    """Writes what comes from packet sockets, one for each link.

    links    the links, in the order of ``files``
    files    open packet sockets, which it closes
    uses     what queue pairs mean now
    begin    opens the next file, or the only one
    full     whether a file with so many bytes is to be followed by the next
    whole    whether super-packets stay whole
    snap     bytes kept of each packet
    """

    def __init__(
        self, fabric: str, links: Sequence[TapLink], files: Sequence[int], uses: Sequence[QueuePairUse],
        begin: Callable[[], BinaryIO], *, full: Callable[[int], bool] = lambda written: False, whole: bool = False,
        snap: int = 1 << 18,
    ) -> None:
        self._fabric, self.links = fabric, list(links)
        self._sockets = [socket.socket(fileno=file) for file in files]
        for each in self._sockets:
            each.setblocking(False)
        self._begin, self._full, self._whole, self._snap = begin, full, whole, snap
        self._described = [description(link, uses) for link in links]
        self.counts = [LinkCounts() for _ in links]
        self._file = begin()
        self._writer = self._section()

    def _section(self) -> PcapngWriter:
        writer = PcapngWriter(self._file, f"netfold pcap of {self._fabric}")
        self._numbers = [self._interface(writer, number) for number in range(len(self.links))]
        return writer

    def _interface(self, writer: PcapngWriter, number: int) -> int:
        link = self.links[number]
        return writer.interface(link.name, self._described[number], link.rate, self._snap)

    def renamed(self, uses: Sequence[QueuePairUse]) -> None:
        """Describe interfaces anew whose queue pairs mean something else now."""
        for number, link in enumerate(self.links):
            described = description(link, uses)
            if described != self._described[number]:
                self._described[number] = described
                self._numbers[number] = self._interface(self._writer, number)

    def run(self, until: Callable[[], bool], look: Callable[[], None], every: float) -> None:
        """Capture until told; ``look`` is called every so many seconds.  Raises OSError where it cannot write, and what
        ``look`` raises.  The fabric's end ends it as well."""
        due = time.monotonic() + every
        with selectors.DefaultSelector() as selector:
            for number, each in enumerate(self._sockets):
                selector.register(each, selectors.EVENT_READ, number)
            while not until():
                ready = selector.select(0.1)
                for key, _ in ready:
                    self._read(key.data)
                self._file.flush()
                if self._full(self._writer.bytes):
                    self._finish()
                    self._file = self._begin()
                    self._writer = self._section()
                if time.monotonic() >= due:
                    look()
                    due = time.monotonic() + every

    def close(self) -> None:
        """Take what is there already, write the counts, and close files and sockets.  Raises OSError."""
        try:
            if not self._file.closed:  # it is where the file after it could not be begun
                with self._file:
                    for number in range(len(self.links)):
                        self._read(number)
                    self._finish()
        finally:
            for each in self._sockets:
                each.close()

    def _read(self, number: int) -> None:
        count, interface = self.counts[number], self._numbers[number]
        for data, stamp, outbound in packet_sockets.received(self._sockets[number]):
            frames = (data[segments.HEADER.size :],) if self._whole else segments.frames(data)
            for frame in frames:
                self._writer.packet(interface, stamp, frame[: self._snap], len(frame), outbound=outbound)
                count.packets += 1

    def _finish(self) -> None:
        for number, packets in enumerate(self._sockets):
            received, dropped = packet_sockets.counts(packets)
            self.counts[number].received += received
            self.counts[number].dropped += dropped
            count = self.counts[number]
            self._writer.statistics(self._numbers[number], time.time_ns(), count.received + count.dropped,
                                    count.dropped)
        self._file.close()
