# SPDX-License-Identifier: Apache-2.0
"""Two machines with rdma_rxe on a plain wire, and a shell command in each, at the same time:

    python -m netfold.topo.rxe 'ib_write_bw -d rxe0 -D 3' 'ib_write_bw -d rxe0 -D 3 10.99.0.1'

Machine 1 is 10.99.0.1 and 198.18.0.1, machine 2 is 10.99.0.2 and 198.18.0.2, on eth0, MTU 4200.  The folder in SHARE
(printed first) is read and written by both.  Each line of output is preceded by the machine's number.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from netfold.topo.network import sandbox
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.processes.lifecycle import shell_status
from netfold.topo.rxe import packages
from netfold.topo.rxe.machine import Machine, Nic, System


def main(commands: list[str]) -> int:
    """Run the commands and return the highest of their statuses."""
    if len(commands) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not sandbox.inside():
        try:
            packages.fetch()
        except packages.PackagesMissing as error:
            print(f"virtual machines cannot be run here: {error}", file=sys.stderr)
            return 1
    sandbox.enter()
    try:
        return _run(commands, sandbox.rundir())
    except FabricFailed as error:
        print(error, file=sys.stderr)
        return 1


def _run(commands: list[str], folder: Path) -> int:
    """Start the machines, run the commands, end the machines.  Raises FabricFailed."""
    share = Path(tempfile.mkdtemp(prefix="share-", dir=folder))
    system = System.prepare(folder, share=share)
    ends = socket.socketpair()
    machines = [
        Machine(f"m{number}", system, folder, [Nic(f"02:00:00:00:00:0{number}", end.fileno(), tap=False)])
        for number, end in enumerate(ends, 1)
    ]
    try:
        for machine in machines:
            machine.start()
        seconds = [machine.wait_ready() for machine in machines]
        for number, machine in enumerate(machines, 1):
            machine.execute(
                "ip link set dev lo up; ip link set dev eth0 mtu 4200 up\n"
                f"ip address add 10.99.0.{number}/24 dev eth0\n"
                f"ip address add 198.18.0.{number}/15 dev eth0; rdma link add rxe0 type rxe netdev eth0",
                "configuring the network",
            )
        print(f"SHARE={share}; ready after {', '.join(f'{s:.1f}' for s in seconds)} s", flush=True)
        running = [
            subprocess.Popen(machine.attach(["sh", "-c", command]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
            for machine, command in zip(machines, commands, strict=True)
        ]
        copiers = [threading.Thread(target=_copy, args=(number, process.stdout))
                   for number, process in enumerate(running, 1)]
        for copier in copiers:
            copier.start()
        for copier in copiers:
            copier.join()
        return max(shell_status(process.wait()) for process in running)
    finally:
        for machine in machines:
            machine.stop()


def _copy(number: int, lines: IO[bytes] | None) -> None:
    for line in lines or ():
        sys.stdout.buffer.write(b"%d| " % number + line)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
