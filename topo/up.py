# SPDX-License-Identifier: Apache-2.0
"""`netfold up --topo ...`: a fabric and its controller, and Mininet's prompt in front of them."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from netfold.controller.plan.fabric import Fabric
from netfold.topo import sandbox
from netfold.topo.mininet_path import MininetMissing


def up(fabric: Fabric) -> int:
    """Bring the fabric up in a sandbox, hand the terminal to Mininet's prompt, take it all down.  Exit status."""
    try:
        import mininet  # noqa: F401
    except MininetMissing as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    sandbox.enter()
    from mininet.cli import CLI
    from mininet.log import lg, setLogLevel

    from netfold.topo.net import ControllerFailed, Network, with_sockets_in
    from netfold.topo.run import FABRIC_VARIABLE
    from netfold.topo.switches import SwitchFailed
    from netfold.topo.wiring import WiringError

    setLogLevel("info")
    lg.propagate = False  # it prints on its own
    fabric = with_sockets_in(fabric, sandbox.rundir())
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    os.environ["NETFOLD_CONTROLLER"] = fabric.jobs
    os.environ["PATH"] = f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    try:
        with Network(fabric, logs=logs) as network:
            os.environ[FABRIC_VARIABLE] = str(network.file)
            first, last = fabric.hosts[0].name, fabric.hosts[-1].name
            print(
                f"\n{fabric.name} is up: {len(fabric.switches)} switches ({fabric.engine}), {len(fabric.hosts)} hosts, "
                f"controller at {fabric.jobs}, logs in {logs}\n"
                f"Try:  {first} ping -c 3 {last}     sh netfold status     {first} ip route     exit\n"
            )
            CLI(network.mininet)
    except (ControllerFailed, SwitchFailed, WiringError) as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
