# SPDX-License-Identifier: Apache-2.0
"""The options of fabrics over machines, for the commands that describe one or bring one up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netfold.cli.common import CANNOT, checked, fail
from netfold.fabric import machine_list
from netfold.fabric.graph import Fabric

if TYPE_CHECKING:
    from netfold.topo.machines.description import Description
    from netfold.topo.machines.up import Launch


@dataclass(frozen=True)
class OverMachines:
    """The options that go with --machines."""

    machines: Annotated[Path | None, typer.Option("--machines", metavar="HOSTS.txt", help="Spread the fabric over the "
                                                  "machines in this file, one a line: NAME [address=IPV4] "
                                                  "[share=N].")] = None
    launcher: Annotated[str, typer.Option("--launcher", help="With --machines: ssh, srun, or a command in which "
                                          "{host} stands for a machine's name.")] = "ssh"
    python: Annotated[str | None, typer.Option("--python", help="With --machines: the Python on them that has NetFold; "
                                               "default: this one's path.")] = None
    first_vni: Annotated[int, typer.Option("--first-vni", help="With --machines: VXLAN identifier of the first "
                                           "cable.")] = 4000
    underlay_mtu: Annotated[int | None, typer.Option("--underlay-mtu", help="With --machines: MTU between them; "
                                                     "default: 1500, or 4250 for path MTU 4096.")] = None

    def descriptions(self, fabric: Fabric) -> list[Description]:
        """What each machine runs of a fabric."""
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
