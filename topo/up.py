# SPDX-License-Identifier: Apache-2.0
"""`netfold up --topo ...`: a fabric, or several as planes, their controllers, and Mininet's prompt in front of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from netfold.fabric.graph import Fabric
from netfold.topo.network import listeners, sandbox
from netfold.topo.network.mininet_path import MininetMissing
from netfold.topo.processes.failures import FabricFailed


def up(fabrics: Sequence[Fabric]) -> int:
    """Start fabrics with the same hosts in a sandbox, run Mininet's prompt, and end everything when the user leaves it.

    Returns an exit status.  Raises FabricError where a page's address cannot be had.
    """
    try:
        import mininet  # noqa: F401
    except MininetMissing as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    listeners.enter(fabrics)
    from mininet.cli import CLI
    from mininet.log import lg, setLogLevel

    from netfold.topo.fault_service import FaultService
    from netfold.topo.network.planes import Planes, side_by_side
    from netfold.topo.run import FABRIC_VARIABLE

    setLogLevel("info")
    lg.propagate = False  # Mininet's logger prints by itself
    fabrics = side_by_side(fabrics, sandbox.rundir())
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    os.environ["NETFOLD_CONTROLLER"] = fabrics[0].controllers
    os.environ["PATH"] = f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    try:
        planes = Planes(fabrics, logs=logs)
        with FaultService(planes.networks, sandbox.rundir()) as service, planes, service.while_up():
            os.environ[FABRIC_VARIABLE] = os.pathsep.join(str(network.file) for network in planes.networks)
            first, last = fabrics[0].hosts[0].name, fabrics[0].hosts[-1].name
            print()
            for fabric in fabrics:
                print(f"{fabric.name} is up: {len(fabric.switches)} switches ({fabric.engine}), {len(fabric.hosts)} "
                      f"hosts, controller at {fabric.jobs}")
                if page := listeners.url(fabric):
                    print(f"{fabric.name}: page and metrics at {page}")
            print(f"logs in {logs}\n"
                  f"Try:  {first} ping -c 3 {last}     sh netfold status     {first} ip route     exit\n"
                  f"      sh netfold fault cut {first} --for 5s     sh netfold pcap {first} --for 10s     "
                  "(also from another terminal)")
            if len(fabrics) > 1:
                print(f"      sh netfold run --rails innet@a+tcp@b -- python train.py     "
                      f"sh netfold status --controller {fabrics[1].jobs}")
            print()
            CLI(planes.mininet)
    except FabricFailed as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
