# SPDX-License-Identifier: Apache-2.0
"""Strangers beside a running job (`stranger`), what they are told about it, and a disk that fills up."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from netfold.bench.harness.overhearing import Overhearing
from netfold.bench.harness.stranger import Attack, SeenStream, StrangerResult, StrangerTask
from netfold.fabric.graph import Engine
from netfold.wire import roce

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.fabric.graph import Host
    from netfold.topo.network.net import Network
    from netfold.topo.processes.ranks import Ranks

RATES: Final[Mapping[Engine, Mapping[Attack, int]]] = {
    "softswitch": {"spoof": 4000, "flood": 20_000, "mesh": 200, "service": 300},
    "bmv2": {"spoof": 300, "flood": 1000, "mesh": 200, "service": 300},
}
"""Tries a second at most."""
WITHIN: Final = 60.0
"""Seconds for a stranger's program to end after the seconds of its attack."""
LISTEN_SECONDS: Final = 0.3
STREAMS: Final = 64
"""Streams that a stranger is told of at most."""
DISK_MB: Final = 16
_ETH_P_ALL: Final = 0x0003
_TCP_LISTEN: Final = "0A"


class StrangerFailed(RuntimeError):
    """An outsider could do something forbidden.

    Remedy: an attack had an effect, or could not be carried out: the message says which. Report the first.
    """


class Strangers:
    """Strangers on one host of a network, who attack the job of these ranks."""

    def __init__(
        self, network: Network, ranks: Ranks, host: Host, token_files: list[str], overheard: Overhearing
    ) -> None:
        self._network, self._ranks, self._host, self._token_files = network, ranks, host, token_files
        self._overheard = overheard
        self._running: dict[str, Ranks] = {}
        self.tried: dict[str, int] = {}
        """Packets, connections or requests of each attack that has ended."""

    def begin(self, attack: Attack, seed: int, seconds: float) -> None:
        """Start an attack of so many seconds."""
        engine = self._network.fabric.engine
        task = StrangerTask(
            attack, seed, seconds, RATES[engine][attack], self._host.address, self._ranks.job,
            streams=self._streams() if attack == "spoof" else [],
            listeners=self._listeners() if attack == "mesh" else [],
            overheard=self._overheard.found if attack in ("mesh", "service") else [],
            controller=self._network.jobs, token_files=self._token_files,
        )
        command = [sys.executable, "-m", "netfold.bench.harness.stranger", msgspec.json.encode(task).decode()]
        self._running[attack] = self._network.launch(command, job=f"stranger-{attack}", hosts=[self._host])

    def end(self, attack: Attack) -> None:
        """Wait for its end.  Raises RankFailed, and StrangerFailed where something was possible that must not be."""
        ((line,),) = self._running.pop(attack).wait(WITHIN)
        result = msgspec.json.decode(line, type=StrangerResult)
        self.tried[attack] = self.tried.get(attack, 0) + result.tried
        for what in ("challenged", "refused", "replayed") if attack == "mesh" else ():
            self.tried[what] = self.tried.get(what, 0) + result.met.get(what, 0)
        if result.broken:
            raise StrangerFailed(f"{attack}: {len(result.broken)} of {result.tried}: {result.broken[0]}")

    def _streams(self) -> list[SeenStream]:
        """Streams of the job as its packets show them now; its ranks' addresses alone where nothing is on the wire."""
        found = streams_on_the_wire(LISTEN_SECONDS)
        addresses = [self._network.fabric.host(name).address for name in self._ranks.hosts]
        return found or [SeenStream(one, other, 0xC000, 8, 0) for one in addresses for other in addresses
                         if one != other]

    def _listeners(self) -> list[tuple[str, int]]:
        """Where the hosts of ranks accept TCP connections."""
        found = set()
        for name, process in zip(self._ranks.hosts, self._ranks.processes, strict=True):
            with contextlib.suppress(OSError):  # the rank has ended
                for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]:
                    local, state = line.split()[1], line.split()[3]
                    if state == _TCP_LISTEN:
                        found.add((self._network.fabric.host(name).address, int(local.partition(":")[2], 16)))
        if not found:
            raise StrangerFailed("mesh: no rank accepts TCP connections: expected a port on each host")
        return sorted(found)


def streams_on_the_wire(seconds: float) -> list[SeenStream]:
    """The streams whose packets pass interfaces of this network namespace for so long, each with its last PSN."""
    found: dict[tuple[str, str, int, int], SeenStream] = {}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as sock:
        until = time.monotonic() + seconds
        while len(found) < STREAMS and (left := until - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                frame = sock.recv(256)
            except TimeoutError:
                break
            # Ethernet 14, IPv4 20, UDP 8, BTH 12; no multicast, which link probes are
            if len(frame) < 54 or frame[12:15] != b"\x08\x00\x45":
                continue
            if frame[23] != socket.IPPROTO_UDP or frame[30] >= 224:
                continue
            port, to = struct.unpack_from("!HH", frame, 34)
            if not roce.is_udp_port(to):
                continue
            qp, psn = struct.unpack_from("!II", frame, 46)
            stream = SeenStream(socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]), port, qp & 0xFFFFFF,
                                psn & roce.PSN_MASK, to)
            found[stream.source, stream.destination, port, stream.qp] = stream
    return list(found.values())


class SmallDisk:
    """A file system of DISK_MB in memory, mounted in the mount namespace of a sandbox for as long as the block runs."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._filler = place / "filler"

    def __enter__(self) -> SmallDisk:
        self.place.mkdir()
        _execute("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700", "tmpfs", str(self.place))
        return self

    def __exit__(self, *_: object) -> None:
        _execute("umount", "--lazy", str(self.place))

    def fill(self) -> None:
        """Leave no room."""
        with self._filler.open("ab", buffering=0) as filler:
            for size in (65536, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def clear(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)


def _execute(*words: str) -> None:
    subprocess.run(words, check=True, timeout=10)
