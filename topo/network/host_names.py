# SPDX-License-Identifier: Apache-2.0
"""The names of a fabric's hosts, for programs in its sandbox: hosts(5).

torch.distributed asks for the name of each of its peers, and a fabric's hosts reach no DNS.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from netfold.fabric.graph import Fabric
from netfold.topo.network import sandbox

FILE: Final = Path("/etc/hosts")
PLACES: Final = ("", "::ffff:")
"""Prefixes of an address: none, and the one that maps it to IPv6, which torch asks for."""


def tell(fabrics: Sequence[Fabric]) -> None:
    """Have all that is started in this sandbox from now on find the hosts of these fabrics by name, beside those that
    the machine knows; outside of a sandbox do nothing.  Raises SandboxError, OSError."""
    if not sandbox.inside() or not FILE.exists():  # a machine without this file asks nobody by it
        return
    known = FILE.read_text()
    lines = [f"{place}{host.address} {host.name}\n" for fabric in fabrics for host in fabric.hosts for place in PLACES]
    shown = sandbox.rundir() / "hosts.names"
    there = shown.exists() and shown.samefile(FILE)
    shown.write_text(known + "".join(line for line in lines if line not in known))
    if not there:  # a file with something in its place, as by a second time, could not be removed
        sandbox.show(shown, FILE)
