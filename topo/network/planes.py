# SPDX-License-Identifier: Apache-2.0
"""Several fabrics side by side that share their hosts: each a plane with its own switches, links and controller.

    with Planes([on_plane(fabric, n) for n in range(2)], logs=Path("logs")) as planes:
        planes.launch([sys.executable, "train.py"], job="digits", env={"NETFOLD_RAILS": "innet@a+tcp@b"}).wait(60)

Planes are called a, b, ... in order.  A host has an interface on each, by which packets to addresses of that plane
leave.  A single fabric is one plane and keeps its names.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from mininet.net import Mininet

from netfold.fabric.generate import PLANE_NAMES as NAMES
from netfold.fabric.graph import Fabric, Host
from netfold.host.opening.planes import PLANES_VARIABLE
from netfold.topo.network import host_names
from netfold.topo.network.net import Network
from netfold.topo.network.startup import with_sockets_in
from netfold.topo.network.switches import CLASSES
from netfold.topo.network.topology import FabricTopo
from netfold.topo.processes.lifecycle import Lifecycle
from netfold.topo.processes.ranks import Ranks

SPAN: Final = 16
"""Plane n's addresses have this times n added to their second byte: 10.0.1.1 is 10.16.1.1 on plane b."""


def on_plane(fabric: Fabric, number: int) -> Fabric:
    """The same fabric as plane ``number`` (0: a): other names, addresses and ports, the same hosts.

    Raises ValueError where its addresses have no room for planes.
    """
    if not 0 <= number < len(NAMES):
        raise ValueError(f"plane {number}: expected 0 .. {len(NAMES) - 1}")
    letter = NAMES[number]

    def address(text: str) -> str:
        first, second, rest = text.split(".", 2)
        if int(second) != 255 and int(second) >= SPAN:
            raise ValueError(f"{text}: expected addresses below 10.{SPAN}.0.0 on a fabric that becomes a plane")
        return f"{first}.{int(second) - number if second == '255' else int(second) + SPAN * number}.{rest}"

    def mac(text: str) -> str:
        return f"{text[:3]}{number:02x}{text[5:]}"

    def end(text: str) -> str:
        node, port = text.split(":")
        return f"{node}:{number}" if node in hosts else f"{letter}{node}:{port}"

    def socket(text: str) -> str:
        folder, _, name = text.rpartition("/")
        return f"{folder}/{letter}{name}"

    hosts = {host.name for host in fabric.hosts}
    replace = msgspec.structs.replace
    return replace(
        fabric,
        name=f"{fabric.name}-{letter}",
        switches=tuple(
            replace(s, name=letter + s.name, device_id=s.device_id + 100 * number, grpc=socket(s.grpc),
                    address=address(s.address), mac=mac(s.mac))
            for s in fabric.switches
        ),
        hosts=tuple(replace(h, address=address(h.address), mac=mac(h.mac)) for h in fabric.hosts),
        links=tuple(replace(link, a=end(link.a), b=end(link.b)) for link in fabric.links),
        jobs=socket(fabric.jobs),
        standby=fabric.standby and socket(fabric.standby),
    )


def side_by_side(fabrics: Sequence[Fabric], folder: Path) -> list[Fabric]:
    """Make planes of fabrics that have the same hosts; every gRPC address becomes a unix socket in ``folder``."""
    placed = [with_sockets_in(fabric, folder) for fabric in fabrics]
    return [on_plane(fabric, number) for number, fabric in enumerate(placed)] if len(placed) > 1 else placed


def planes_of(fabrics: Sequence[Fabric], host: str) -> dict[str, str]:
    """The environment variables that tell a rank on this host about the planes."""
    words = [f"{NAMES[n]}={fabric.host(host).address}@{fabric.controllers}" for n, fabric in enumerate(fabrics)]
    return {PLANES_VARIABLE: " ".join(words)}


class PlanesTopo(FabricTopo):
    """A Mininet topology of all planes."""

    def build(self, planes: Sequence[Fabric], **options: Any) -> None:  # type: ignore[override]
        """Mininet calls this with the constructor's arguments."""
        for number, fabric in enumerate(planes):
            super().build(fabric, network=f"10.{SPAN * number}.0.0/12" if number else "default", **options)


class Planes(Lifecycle):
    """Several planes that run.

    planes  made by ``on_plane``, in order; their gRPC addresses must be sockets that the hosts reach
    logs    folder for every process's output
    say     told of each stage of the start, in words
    """

    def __init__(
        self, planes: Sequence[Fabric], *, logs: Path, offload: bool | None = None,
        say: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.fabrics = list(planes)
        folders = [logs / NAMES[n] for n in range(len(planes))] if len(planes) > 1 else [logs]
        self.networks = [Network(fabric, logs=folder) for fabric, folder in zip(planes, folders, strict=True)]
        self._offload = offload
        self._say = say
        self.mininet: Any = None

    def start(self) -> None:
        """Start all planes and their controllers.  Raises SwitchFailed, WiringError, ControllerFailed."""
        kind = CLASSES[self.fabrics[0].engine]
        kind.setup()
        host_names.tell(self.fabrics)
        for network in self.networks:
            network.logs.mkdir(parents=True, exist_ok=True)
        Mininet.inited = True  # as in Network
        self.mininet = Mininet(switch=kind, controller=None, build=False)
        self.mininet.topo = PlanesTopo(
            self.fabrics, logs=self.networks[0].logs.absolute(), offload=self._offload
        )
        self.mininet.build()
        self.mininet.start()
        self._say("hosts, links and switches are there; the controller gives each switch its program and entries")
        for network in self.networks:
            network.mininet = self.mininet
            network.start_controller()

    def stop(self) -> None:
        """End everything, in reverse order."""
        for network in self.networks:
            network.mininet = None  # all planes share it, and it is stopped below
            network.stop()
        if self.mininet is not None:
            self.mininet.stop()
            self.mininet = None

    def check(self) -> None:
        """Raise SwitchFailed or ControllerFailed where one has ended."""
        for network in self.networks:
            network.check()

    def launch(
        self, command: Sequence[str], *, job: str, hosts: Sequence[Host] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Ranks:
        """Run ``command`` on hosts (default: all) as `Network.launch` does, with NETFOLD_PLANES set."""
        hosts = self.fabrics[0].hosts if hosts is None else hosts
        each = [self.environment(host) for host in hosts]
        return self.networks[0].launch(command, job=job, hosts=hosts, env=env, each=each)

    def environment(self, host: Host) -> dict[str, str]:
        """The environment variables that tell a rank on this host about the planes."""
        return planes_of(self.fabrics, host.name)

    def cut(self, number: int, *, up: bool = False) -> None:
        """Take all host links of a plane down, or up again, at the switches' ends."""
        leaves = {}
        for link in self.fabrics[number].links:
            for here, there in (link.ends, link.ends[::-1]):
                if there.node in {host.name for host in self.fabrics[number].hosts}:
                    leaves[f"{here.node}-eth{here.port}"] = "up" if up else "down"
        lines = "\n".join(f"link set dev {name} {state}" for name, state in leaves.items())
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True, timeout=10)
