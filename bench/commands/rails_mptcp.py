# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails --mptcp`: Multipath TCP, with which Nezha's paper compares, over the same planes.

The kernel spreads one connection over subflows, one for each plane.  A ring of plain sockets sums
(bench/ranks/mptcp.py).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from netfold.bench.commands.rails_report import MptcpRow
from netfold.bench.ranks.mptcp import MptcpCommand, MptcpResult, mptcp_socket
from netfold.topo.processes.failures import FabricFailed

if TYPE_CHECKING:  # Mininet may be absent
    from netfold.bench.harness.workers import Workers
    from netfold.topo.network.planes import Planes


def require() -> None:
    """Raises ValueError where the kernel has no Multipath TCP."""
    try:
        mptcp_socket().close()
    except OSError as error:
        raise ValueError(f"--mptcp: the kernel gives no socket of Multipath TCP ({error.strerror}); expected one with "
                         "CONFIG_MPTCP, and `sysctl net.mptcp.enabled` to be 1") from error


@contextmanager
def started(planes: Planes, logs: Path, timeout: float) -> Iterator[Workers]:
    """Ranks, each with a connection to the next one that has a subflow on every plane; ended on leaving.

    Raises WorkerFailed, FabricFailed.
    """
    from netfold.bench.harness.workers import Workers
    from netfold.topo.processes.ranks import in_namespaces

    first = planes.networks[0]
    hosts = first.fabric.hosts
    pids = [first.mininet.get(host.name).pid for host in hosts]
    others = len(planes.networks) - 1
    for pid, host in zip(pids, hosts, strict=True):
        # where the word of an address was lost, the kernel would repeat it after two minutes
        _in(pid, "sysctl", "-qw", "net.mptcp.add_addr_timeout=1")
        _ip(pid, "limits", "set", "subflows", str(others), "add_addr_accepted", str(others))
        for network in planes.networks[1:]:
            _ip(pid, "endpoint", "add", network.fabric.host(host.name).address, "signal")
    command = [sys.executable, "-m", "netfold.bench.ranks.mptcp", str(timeout), str(others),
               *(host.address for host in hosts)]
    envs = [{"RANK": str(rank)} for rank in range(len(hosts))]
    with Workers("mptcp", command, [in_namespaces(pid) for pid in pids], envs, logs) as workers:
        workers.receive(timeout)
        workers.send({})
        yield workers


def turn(workers: Workers, nbytes: int, count: int, timeout: float) -> list[MptcpResult]:
    """Sum ``count`` times, after one other.  Raises WorkerFailed."""
    workers.send(MptcpCommand(nbytes, count))
    return workers.results(MptcpResult, (count + 2) * timeout)


def row(rails: Sequence[float], turns: Sequence[Sequence[MptcpResult]]) -> MptcpRow:
    """The figures of one size.

    rails  seconds of a sum by all rails in each round
    turns  each rank's result in the same rounds
    """
    times = [max(rank.seconds for rank in ranks) for ranks in turns]
    ratios = [mine / its for mine, its in zip(rails, times, strict=True)]
    low, _, high = statistics.quantiles(ratios, method="inclusive") if len(ratios) > 1 else ratios * 3
    planes = [sum(plane) for plane in zip(*(rank.sent for ranks in turns for rank in ranks), strict=True)]
    return MptcpRow(
        statistics.median(times), statistics.median(ratios), [low, high], [sent / sum(planes) for sent in planes],
        statistics.median(statistics.fmean(rank.processor for rank in ranks) for ranks in turns),
        min(rank.subflows for rank in turns[-1]), sum(rank.wrong for ranks in turns for rank in ranks))


def _ip(pid: int, *words: str) -> None:
    _in(pid, "ip", "mptcp", *words)


def _in(pid: int, *command: str) -> None:
    """Run a command in the namespaces of this process."""
    done = subprocess.run(["mnexec", "-a", str(pid), *command], capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        raise FabricFailed(f"{' '.join(command)}: {done.stderr.strip()}; expected iproute2 with mptcp, and procps")
