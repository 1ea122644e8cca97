# SPDX-License-Identifier: Apache-2.0
"""A fabric as a topology file of containerlab (https://containerlab.dev) or netlab (https://netlab.tools).

Every switch, every host and the controller is a container of one image that has NetFold.  All containers of a lab share
one folder of the machine, in which their unix sockets are: nothing listens at a port, and the folder's permissions say
who may speak to switches and controller.  netlab is told of the same containers and cables, without addresses on the
links, which are the fabric's own; it starts them by containerlab.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from netfold.fabric.graph import CPU_PORT, Fabric, FabricError
from netfold.wire.roce import LINK_MTUS

RUN: Final = "/run/netfold"
"""The shared folder, as containers see it."""
FILE: Final = "/etc/netfold/fabric.toml"
"""The fabric file, as the controller's container sees it."""
GATEWAY: Final = "169.254.1.1"
"""The address that hosts use as their gateway; its MAC address is their leaf's."""
CONTROLLER: Final = "controller"
_MACHINE: Final = {CONTROLLER: "the controller's container has it", "host": "it means the machine itself",
                   "mgmt-net": "it means the management network", "macvlan": "it means an interface of the machine"}
RESERVED: Final[dict[str, dict[str, str]]] = {
    "containerlab": _MACHINE,
    "netlab": _MACHINE | dict.fromkeys(("all", "ungrouped", "localhost"), "Ansible has it for hosts of its own"),
}
"""For each form of export: the names that no node may have, and why."""
IMAGE: Final = "netfold:latest"
"""The image of all containers.  Users build it: it needs NetFold, iproute2 and Mininet."""


def with_shared_sockets(fabric: Fabric) -> Fabric:
    """The fabric as its containers know it: with unix sockets in their shared folder."""
    switches = tuple(msgspec.structs.replace(s, grpc=f"unix:{RUN}/{s.name}.sock") for s in fabric.switches)
    return msgspec.structs.replace(fabric, switches=switches, jobs=f"unix:{RUN}/controller.sock")


def containerlab(fabric: Fabric) -> str:
    """The fabric as a topology file of containerlab, in YAML.  Raises FabricError."""
    _check(fabric, "containerlab")
    nodes = {name: _without_none({"kind": "linux", "image": IMAGE, "cmd": commands.get("cmd"),
                                  "exec": commands.get("exec"), "binds": commands["binds"], "env": commands.get("env"),
                                  "sysctls": {"net.ipv6.conf.all.disable_ipv6": 1}})
             for name, commands in _containers(fabric).items()}
    links = []
    for link in fabric.links:
        ends = [{"node": end.node, "interface": _interface(fabric, end.node, end.port)} for end in link.ends]
        links.append({"type": "veth", "mtu": LINK_MTUS[fabric.path_mtu], "endpoints": ends})
    return yaml({"name": fabric.name, "topology": {"nodes": nodes, "links": links}})


def netlab(fabric: Fabric) -> str:
    """The fabric as a topology file of netlab, with containerlab as its provider, in YAML.  Raises FabricError."""
    _check(fabric, "netlab")
    nodes: dict[str, Any] = {}
    for name, commands in _containers(fabric).items():
        binds = dict(bind.split(":")[:2] for bind in commands["binds"])
        settings = {"kind": "linux", "cmd": commands.get("cmd"), "exec": commands.get("exec"), "binds": binds,
                    "env": commands.get("env")}
        nodes[name] = {"device": "linux", "image": IMAGE, "clab": _without_none(settings)}
    links = [{"prefix": False, "mtu": LINK_MTUS[fabric.path_mtu], "interfaces": [
        {"node": end.node, "ifname": _interface(fabric, end.node, end.port)} for end in link.ends
    ]} for link in fabric.links]
    return yaml({"name": fabric.name.replace("-", "")[:12], "provider": "clab", "nodes": nodes, "links": links})


def write(fabric: Fabric, form: str, folder: Path) -> list[Path]:
    """Write what `texts` has into a folder, and return the files' paths.  Raises FabricError, OSError."""
    from netfold.disk import files

    written = {folder / name: text for name, text in texts(fabric, form).items()}
    folder.mkdir(parents=True, exist_ok=True)
    # containers share it; nobody else may reach the sockets in it
    (folder / "run").mkdir(mode=0o700, exist_ok=True)
    for path, text in written.items():
        files.replace(path, text)
    return list(written)


def texts(fabric: Fabric, form: str) -> dict[str, str]:
    """The topology file and the fabric file beside it, by their names.

    form  "containerlab" or "netlab"
    Raises FabricError.
    """
    from netfold.fabric import file as fabric_file

    forms = {"containerlab": (f"{fabric.name}.clab.yml", containerlab), "netlab": ("topology.yml", netlab)}
    if form not in forms:
        raise FabricError(f"--export {form}: expected {' or '.join(forms)}")
    name, make = forms[form]
    return {name: make(fabric), "fabric.toml": fabric_file.dumps(with_shared_sockets(fabric))}


def _check(fabric: Fabric, form: str) -> None:
    if fabric.engine != "softswitch":
        raise FabricError(f"exports have switches of the engine softswitch, got {fabric.engine}")
    if any(link.rate for link in fabric.links):
        raise FabricError("exports have links without a rate: expected none in the fabric; `containerlab tools netem "
                          "set` limits them in a lab that runs")
    for node in fabric.nodes:
        if what := RESERVED[form].get(node.name):
            raise FabricError(f"{node.name}: a node of {form} cannot have this name, {what}: expected another one")


def _containers(fabric: Fabric) -> dict[str, dict[str, Any]]:
    """The processes of each container: its command, commands to run once its cables exist, folders and variables."""
    shared = f"run:{RUN}"
    leaf_macs, gateways = {s.name: s.mac for s in fabric.switches}, fabric.leaf_of()
    ports: dict[str, list[int]] = {node.name: [] for node in fabric.nodes}
    for link in fabric.links:
        for end in link.ends:
            ports[end.node].append(end.port)
    found: dict[str, dict[str, Any]] = {}
    for switch in fabric.switches:
        names = [(port, _interface(fabric, switch.name, port)) for port in sorted(ports[switch.name])]
        # containerlab plugs cables in once the container runs; netlab puts single quotes around the whole
        wait = " && ".join(f"until ip link set {name} up 2>/dev/null; do sleep 0.2; done" for _, name in names)
        run = (f"exec softswitch --no-p4 {' '.join(f'-i {port}@{name}' for port, name in names)} --grpc-server-addr "
               f"unix:{RUN}/{switch.name}.sock --cpu-port {CPU_PORT} --device-id {switch.device_id}")
        found[switch.name] = {"cmd": f'sh -c "{wait} && {run}"', "binds": [shared]}
    for host in fabric.hosts:
        (port,) = ports[host.name]
        name = _interface(fabric, host.name, port)
        found[host.name] = {
            "cmd": "sleep infinity", "binds": [shared],
            "env": {"NETFOLD_ADDRESS": host.address, "NETFOLD_CONTROLLER": f"unix:{RUN}/controller.sock",
                    "GLOO_SOCKET_IFNAME": name},
            "exec": [
                f"ip link set dev {name} address {host.mac} up",
                f"ip address add {host.address}/32 dev {name}",
                f"ip route add 10.0.0.0/8 via {GATEWAY} dev {name} onlink src {host.address}",
                f"ip neigh replace {GATEWAY} lladdr {leaf_macs[gateways[host.name]]} dev {name} nud permanent",
            ],
        }
    found[CONTROLLER] = {"cmd": f"netfold up {FILE}", "binds": [shared, f"fabric.toml:{FILE}:ro"]}
    return found


def _interface(fabric: Fabric, node: str, port: int) -> str:
    """The name of an interface: eth0 is the management network's; a host's ports count from 0, a switch's from 1."""
    return f"eth{port + 1}" if any(host.name == node for host in fabric.hosts) else f"eth{port}"


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def yaml(value: object, depth: int = 0) -> str:
    """Mappings, sequences and scalars as YAML text; scalars are written as JSON, which YAML reads."""
    space = "  " * depth
    if isinstance(value, Mapping) and value:
        return "".join(f"{space}{json.dumps(key) if ':' in key else key}:{_inner(inner, depth)}"
                       for key, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        # "- " stands in the place of the first line's indentation
        items = [yaml(inner, depth + 1) for inner in value]
        return "".join(f"{space}- {item[len(space) + 2 :]}" for item in items)
    return f"{space}{json.dumps(value)}\n"


def _inner(value: object, depth: int) -> str:
    nested = isinstance(value, (Mapping, list, tuple)) and value
    return f"\n{yaml(value, depth + 1)}" if nested else f" {json.dumps(value)}\n"
