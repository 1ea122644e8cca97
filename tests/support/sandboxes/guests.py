# SPDX-License-Identifier: Apache-2.0
"""Ranks in virtual machines, one job after the other, and what a test sees of them from outside."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from netfold.fabric.graph import Fabric, Host
from netfold.topo.rxe.counts import RDMA_DEVICE, NicCounts
from netfold.topo.rxe.machine import Machine
from netfold.wire import roce
from netfold.wire.operator import Status
from support.sandboxes.capture import ETH_P_ALL
from support.sandboxes.steady import LOOK
from support.sandboxes.topo import program

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.topo.network.net import Network
    from netfold.topo.rxe.hosts import Guests

BOUND: Final = 900.0
"""Seconds after which what hangs is ended."""
TOOL_SECONDS: Final = 120.0
TOOL_PORT: Final = 18515
"""TCP port of the tools of verbs, on which they exchange their queue pairs."""
SEED: Final = 11
READINGS: Final = 4
"""Looks at counters, LOOK apart, after which they rest."""
_IP, _BTH, _AETH = 14, 42, 54
"""Offsets in a frame."""
_NAKS: Final = 0x20
"""Syndromes below are of positive acknowledgements."""
MOST_OUTSTANDING: Final = 129
"""PSNs that rdma_rxe has outstanding at once at the most."""
_INVALID_REQUEST: Final = 0x61
"""Syndrome of a NAK that says so (InfiniBand architecture, table 46)."""


class Jobs:
    """Ranks in all guests of a network, one process each, that run one job after the other (rank_verbs.py).

    jobs      as rank_verbs.py has them
    windowed  host of the windowed rank of mixed jobs; None: there are none
    """

    def __init__(self, network: Network, guests: Guests, jobs: list[str], windowed: Host | None = None) -> None:
        self._network, self._guests = network, guests
        command = [*program("rank_verbs.py"), str(SEED), str(network.share), str(len(guests.names))]
        hosts = [host for host in network.fabric.hosts if host.name in guests.names]
        self.lines = network.launch([*command, "verbs", *jobs], job="sums", hosts=hosts).lines(within=BOUND)
        beside = () if windowed is None else [windowed]
        self._beside = network.launch([*command, "innet", *jobs], job="windowed", hosts=beside).lines(within=BOUND)
        self._next = 0

    def reports(self, *, mixed: bool = False) -> list[dict[str, Any]]:
        """The next line of each rank, in the order of the machines; the windowed rank's is the last one.  Raises
        RankFailed, WrongData."""
        said: dict[int, dict[str, Any]] = {}
        while len(said) < len(self._guests.names):
            rank, line = next(self.lines)
            said[rank] = json.loads(line)
        return [said[rank] for rank in sorted(said)] + ([json.loads(next(self._beside)[1])] if mixed else [])

    def ended(self) -> bool:
        """True if all ranks have ended, with nothing more to say."""
        return next(self.lines, None) is None and next(self._beside, None) is None

    def begin(self) -> None:
        """Let the next job begin."""
        (self._network.share / f"job-{self._next}").touch()
        self._next += 1

    def run(self, *, mixed: bool = False) -> tuple[list[dict[str, Any]], list[NicCounts], dict[str, int]]:
        """What the ranks say of the next job, which is of sums; meanwhile packets of each NIC, and packets folded by
        each switch."""
        nics, folded = self._guests.nic_counts(), self.folded()
        self.begin()
        results = self.reports(mixed=mixed)
        assert [result["rail"] for result in results] == ["verbs"] * len(self._guests.names) + ["innet"] * mixed
        assert len({result["digest"] for result in results}) == 1
        return (results, [now.since(nics[name]) for name, now in self._guests.nic_counts().items()],
                {name: now - folded[name] for name, now in self.at_rest().items()})

    def folded(self) -> dict[str, int]:
        """Contributions and results that each switch has taken for the first time."""
        return {switch.name: switch.folded.first for switch in self._network.status().switches}

    def at_rest(self) -> dict[str, int]:
        """The same, once READINGS in turn are equal: a switch that is short of time counts packets after it has sent
        them."""
        found: list[dict[str, int]] = []

        def equal(status: Status) -> bool:
            found.append({switch.name: switch.folded.first for switch in status.switches})
            return found[-READINGS:] == [found[-1]] * READINGS

        self.until("counters at rest", equal)
        return found[-1]

    def run_everywhere(self, script: str) -> str:
        """The output of a shell script in all guests."""
        return "".join(machine.execute(script, script) for machine in self._guests.machines.values())

    def until(self, what: str, seen: Callable[[Status], bool]) -> None:
        """Wait until the controller's status fulfils a condition.  ``what``: the condition in words, for the error."""
        until = time.monotonic() + BOUND
        while not seen(status := self._network.status()):
            self._network.check()
            assert time.monotonic() < until, f"not seen in {BOUND:g} s: {what}; it is {status}"
            time.sleep(LOOK)

    def goes_on(self, switch: str) -> None:
        """Wait until this switch has folded a hundred packets more."""
        before = self.folded()[switch]
        self.until(f"{switch} folds", lambda status: any(s.name == switch and s.folded.first >= before + 100
                                                         for s in status.switches))

    def rounds(self) -> int:
        """How often the ranks of the job that runs have been told to halt."""
        return _rounds(self._network.status())[0]

    def planned_anew(self, after: int) -> None:
        """Wait until they have been, more often than ``after`` times, and have gone on."""
        def over(status: Status) -> bool:
            number, gone_on = _rounds(status)
            return number > after and gone_on

        self.until(f"the trees are planned anew for time {after + 1}", over)


def _rounds(status: Status) -> tuple[int, bool]:
    """Number of the last recovery round, and whether it is over."""
    last = status.jobs[0].round if status.jobs else None
    return (0, True) if last is None else (last.number, last.took is not None)


def pair(guests: Guests, server_at: Host, client_at: Host, server: str, client: str) -> tuple[str, str]:
    """Run a tool of verbs between two guests, and return what server and client print.

    server, client  shell commands; the client's gets the server's address
    """
    machines = guests.machines[server_at.name], guests.machines[client_at.name]
    waiting = start(machines[0], server)
    try:
        # the tool listens on a TCP port once it is ready: state 0A
        listens = f"grep -Eqs ':{TOOL_PORT:04X} 0+:0000 0A' /proc/net/tcp /proc/net/tcp6"
        machines[0].execute(f"until {listens}; do sleep 0.1; done", "waiting for the tool's server")
        asking = start(machines[1], f"{client} {server_at.address}")
        try:
            asked = finish(asking)
        finally:
            asking.kill()
        return finish(waiting), asked
    finally:
        waiting.kill()


def start(machine: Machine, script: str) -> subprocess.Popen[str]:
    """Start a shell command in a guest."""
    return subprocess.Popen(machine.attach(["sh", "-c", script]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """The output of a program, once it has ended with status 0."""
    output, _ = process.communicate(timeout=TOOL_SECONDS)
    assert process.returncode == 0, output
    return output


def gid_index(machine: Machine, address: str) -> int:
    """The index of the GID that the NIC has for an IPv4 address."""
    script = f"grep -n . /sys/class/infiniband/{RDMA_DEVICE}/ports/1/gids/*"
    words = [int(byte) for byte in address.split(".")]
    wanted = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*words)
    found = re.search(rf"gids/(\d+):\d+:{wanted}", machine.execute(script, "reading GIDs"))
    assert found, f"{machine.name} has no GID for {address}"
    return int(found[1])


def fatal_nak(acknowledgement: bytes) -> bytes:
    """The frame by which its receiver's NIC learns that the next request was invalid, upon which it takes the queue
    pair into error, whatever it is: made of the frame of an acknowledgement to it."""
    frame = bytearray(acknowledgement[:-4])
    frame[_BTH + 9:_BTH + 12] = ((_psn(acknowledgement) + 1) % 2**24).to_bytes(3, "big")
    frame[_AETH] = _INVALID_REQUEST
    return bytes(frame) + roce.icrc(bytes(frame[_IP:]))


def _psn(frame: bytes) -> int:
    return int.from_bytes(frame[_BTH + 9:_BTH + 12], "big")


def _follows(contribution: bytes, acknowledgement: bytes) -> bool:
    return 0 < (_psn(contribution) - _psn(acknowledgement)) % 2**24 <= MOST_OUTSTANDING


class Forger:
    """Sends a guest's NIC what its successor never said, on the link to its leaf."""

    def __init__(self, fabric: Fabric, host: Host) -> None:
        end = next(there for link in fabric.links for here, there in (link.ends, link.ends[::-1])
                   if here.node == host.name)
        self._address = socket.inet_aton(host.address)
        # what the leaf sends is shown to sockets of all protocols alone
        self._link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self._link.bind((f"{end.node}-eth{end.port}", 0))

    def break_queue_pair(self) -> None:
        """Wait for an acknowledgement of contributions to the guest, and then for a contribution after them, which is
        outstanding: break the queue pair of both."""
        self._forget()
        acknowledgement = b""
        until = time.monotonic() + TOOL_SECONDS
        while time.monotonic() < until:
            frame = self._link.recv(65536)
            if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_UDP:
                continue
            source, target = frame[26:30], frame[30:34]
            if frame[_BTH] == roce.Opcode.ACKNOWLEDGE:
                if target == self._address and frame[_AETH] < _NAKS:
                    acknowledgement = frame
            elif source == self._address and acknowledgement and _follows(frame, acknowledgement):
                self._link.send(fatal_nak(acknowledgement))
                return
        raise AssertionError(f"no acknowledgement within {TOOL_SECONDS:g} s")

    def _forget(self) -> None:
        """Take no more notice of what came until now: a NAK for what has been acknowledged since breaks nothing."""
        self._link.settimeout(0)
        with suppress(BlockingIOError):
            while self._link.recv(1):
                pass
        self._link.settimeout(TOOL_SECONDS)

    def close(self) -> None:
        """Close the socket on the link."""
        self._link.close()
