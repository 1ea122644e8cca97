# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails --mptcp`: Multipath TCP, with which Nezha's paper compares, over the same planes.

The kernel spreads one connection over subflows, one for each plane.  A ring of plain sockets sums
(bench/ranks/mptcp.py).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from netfold.bench.commands.rails_report import MptcpRow
from netfold.bench.ranks.mptcp import MptcpCommand, MptcpResult, mptcp_socket
from netfold.topo.processes.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.topo.network.planes import Planes


def require() -> None:
    """Raises ValueError where the kernel has no Multipath TCP."""
    try:
        mptcp_socket().close()
    except OSError as error:
        raise ValueError(f"--mptcp: the kernel gives no socket of Multipath TCP ({error.strerror}); expected one with "
                         "CONFIG_MPTCP, and `sysctl net.mptcp.enabled` to be 1") from error


def measure(planes: Planes, logs: Path, sizes: Sequence[int], *, rounds: int, timeout: float,
            echo: Callable[[str], None]) -> list[MptcpRow]:
    """Seconds of one sum of each size, medians of rounds.  Raises WorkerFailed, FabricFailed."""
    from netfold.bench.harness.workers import Workers
    from netfold.topo.processes.ranks import in_namespaces

    first = planes.networks[0]
    hosts = first.fabric.hosts
    pids = [first.mininet.get(host.name).pid for host in hosts]
    others = len(planes.networks) - 1
    for pid, host in zip(pids, hosts, strict=True):
        _ip(pid, "limits", "set", "subflows", str(others), "add_addr_accepted", str(others))
        for network in planes.networks[1:]:
            _ip(pid, "endpoint", "add", network.fabric.host(host.name).address, "signal")
    command = [sys.executable, "-m", "netfold.bench.ranks.mptcp", str(timeout), *(host.address for host in hosts)]
    rows = []
    envs = [{"RANK": str(rank)} for rank in range(len(hosts))]
    with Workers("mptcp", command, [in_namespaces(pid) for pid in pids], envs, logs) as workers:
        workers.receive(timeout)
        workers.send(b"{}")
        for nbytes in sizes:
            turns = []
            for _ in range(rounds):
                workers.send(msgspec.json.encode(MptcpCommand(nbytes, 2)))
                turns.append([msgspec.json.decode(line, type=MptcpResult) for line in workers.receive(4 * timeout)])
            rows.append(MptcpRow(nbytes, statistics.median(max(rank.seconds for rank in turn) for turn in turns),
                                 sum(rank.wrong for turn in turns for rank in turn),
                                 min(rank.subflows for rank in turns[-1])))
            echo(f"# MPTCP, a ring: {nbytes} bytes in {rows[-1].seconds * 1e3:.3f} ms, "
                 f"{1 + rows[-1].subflows} subflows, {rows[-1].wrong} wrong")
    return rows


def _ip(pid: int, *words: str) -> None:
    done = subprocess.run(["mnexec", "-a", str(pid), "ip", "mptcp", *words], capture_output=True, text=True,
                          timeout=10, check=False)
    if done.returncode:
        raise FabricFailed(f"ip mptcp {' '.join(words)}: {done.stderr.strip()}; expected iproute2 with mptcp")
