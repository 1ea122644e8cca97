# SPDX-License-Identifier: Apache-2.0
"""The options of fabrics over machines, for the commands that describe one or bring one up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netfold.cli.common import CANNOT, checked, fail
from netfold.fabric.graph import Fabric
from netfold.fabric.placement import machine_list

if TYPE_CHECKING:
    from netfold.topo.machines.description import Description
    from netfold.topo.machines.up import Launch


@dataclass(frozen=True)
class OverMachines:
    """The options that go with --machines."""

    machines: Annotated[Path | None, typer.Option("--machines", metavar="HOSTS.txt",
        help="Spread the fabric over the machines in this file, one per line: NAME [address=IPV4] [share=N]. "
             "docs/machines.md has further options.")] = None
    launcher: Annotated[str, typer.Option("--launcher", hidden=True)] = "ssh"
    """ssh, srun, or a command in which {host} stands for a machine's name."""
    python: Annotated[str | None, typer.Option("--python", hidden=True)] = None
    """The Python on the machines that has NetFold; default: this one's path."""
    first_vni: Annotated[int, typer.Option("--first-vni", hidden=True)] = 4000
    """VXLAN identifier of the first cable."""
    underlay_mtu: Annotated[int | None, typer.Option("--underlay-mtu", hidden=True)] = None
    """MTU between the machines; default: 1500, or 4250 for path MTU 4096."""

    def descriptions(self, fabric: Fabric) -> list[Description]:
        """Each machine's part of a fabric."""
        from netfold.topo.machines.description import describe

        assert self.machines is not None
        listed = checked(lambda: machine_list.load(self.machines))  # type: ignore[arg-type]
        return checked(lambda: describe(fabric, listed, self.first_vni, self.underlay_mtu))

    def launch(self, fabric: Fabric, metrics: str | None = None) -> Launch:
        """How the fabric is started on its machines."""
        from netfold.topo.machines.up import Launch

        return Launch(self.descriptions(fabric), self.launcher, self.python or sys.executable, metrics=metrics)

    def single(self, fabrics: list[Fabric]) -> Fabric:
        """The only one of these fabrics: planes stay on one machine."""
        if len(fabrics) > 1:
            fail(CANNOT, "--machines: expected one fabric, got planes (dual, triple), which share their hosts on one "
                         "machine")
        return fabrics[0]


HERE: Final = OverMachines()
