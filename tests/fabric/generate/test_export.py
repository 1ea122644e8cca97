# SPDX-License-Identifier: Apache-2.0
"""Topology files for other tools: complete, accepted by those tools where they are here, and refused where they cannot
say what the fabric is."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.fabric import file
from netfold.fabric.generate import export, parse
from netfold.fabric.graph import FabricError

FABRIC = parse("threetier,2,2,2,2,8", path_mtu=1024)


def test_every_node_is_a_container_and_every_link_a_cable(tmp_path: Path) -> None:
    """Ports of a switch are its interfaces, and its command has the same; no interface has two cables."""
    text = export.containerlab(FABRIC)
    for node in [*FABRIC.nodes, FABRIC.hosts[0]]:
        assert f"\n    {node.name}:\n" in text
    assert text.count('type: "veth"') == len(FABRIC.links)
    ends = re.findall(r'node: "(\w+)"\n +interface: "(\w+)"', text)
    assert len(ends) == len(set(ends)) == 2 * len(FABRIC.links)
    leaf = next(json.loads(line.split(": ", 1)[1]) for line in text.splitlines() if "leaf1.sock" in line)
    shell, flag, script = shlex.split(leaf)
    assert (shell, flag) == ("sh", "-c")
    assert "-i 1@eth1 -i 2@eth2 -i 3@eth3 -i 4@eth4 " in script
    subprocess.run(["sh", "-n", "-c", script], check=True, timeout=10)


def test_the_fabric_file_beside_it_has_the_shared_sockets(tmp_path: Path) -> None:
    """Written by the command; the folder of sockets is this user's alone."""
    for form, name in (("containerlab", "leafspine-2-2-4.clab.yml"), ("netlab", "topology.yml")):
        out = tmp_path / form
        done = CliRunner().invoke(app, ["fabric", "leafspine,2,2,4", "--export", form, "-o", str(out)])
        assert done.exit_code == 0, done.output
        assert (out / name).exists()
        assert (out / "run").stat().st_mode & 0o077 == 0
        fabric = file.load(out / "fabric.toml")
        assert fabric.switch("leaf1").grpc == "unix:/run/netfold/leaf1.sock"


@pytest.mark.parametrize(("options", "says"), [({"engine": "bmv2"}, "engine softswitch"), ({"rate": "1gbit"}, "rate")])
def test_what_an_export_cannot_say_is_refused(options: dict[str, str], says: str) -> None:
    """By name, instead of being left out."""
    for make in (export.containerlab, export.netlab):
        with pytest.raises(FabricError, match=says):
            make(parse("leafspine,1,0,2", **options))  # type: ignore[arg-type]
    with pytest.raises(FabricError, match="expected containerlab or netlab"):
        export.write(FABRIC, "gns3", Path("nowhere"))


@pytest.mark.needs("containerlab-schema")
def test_containerlab_s_schema_takes_it() -> None:
    """The schema that containerlab publishes for its topology files."""
    import jsonschema
    import yaml

    schema = json.loads(Path(os.environ["CONTAINERLAB_SCHEMA"]).read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    document = yaml.safe_load(export.containerlab(FABRIC))
    assert [error.message for error in validator.iter_errors(document)] == []
    document["topology"]["nodes"]["leaf1"]["cmd"] = 7
    assert list(validator.iter_errors(document))


@pytest.mark.needs("netlab")
def test_netlab_makes_a_lab_of_it(tmp_path: Path) -> None:
    """`netlab create` takes the file, and what it makes of it for containerlab has the same cables."""
    export.write(FABRIC, "netlab", tmp_path)
    done = subprocess.run(["netlab", "create", "topology.yml"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = (tmp_path / "clab.yml").read_text()
    for link in FABRIC.links:
        a, b = (f"{end.node}:eth{end.port + (end.node[0] == 'h')}" for end in link.ends)
        assert re.search(f'"{a}"\\s+- "{b}"|"{b}"\\s+- "{a}"', made), (a, b, made)
    for host in FABRIC.hosts:
        assert f"ip link set dev eth1 address {host.mac} up" in made
    script = next(line for line in made.splitlines() if "leaf1.sock" in line).split("cmd: ", 1)[1]
    subprocess.run(["sh", "-n", "-c", shlex.split(script.strip("'"))[2]], check=True, timeout=10)


@pytest.mark.parametrize(("name", "forms"), [
    ("host", ("containerlab", "netlab")), ("mgmt-net", ("containerlab", "netlab")), ("all", ("netlab",)),
])
def test_a_node_with_a_reserved_name_is_refused(tmp_path: Path, name: str, forms: tuple[str, ...]) -> None:
    """Such a name means another thing to the tool; the other tool takes it."""
    text = (tmp_path / "g.edges")
    text.write_text(f"{name} other\n")
    fabric = parse(f"file:{text}")
    for form, make in (("containerlab", export.containerlab), ("netlab", export.netlab)):
        if form in forms:
            with pytest.raises(FabricError, match=f"^{name}: a node of {form} cannot have this name"):
                make(fabric)
        else:
            assert f"\n    {name}:" in make(fabric) or f"\n  {name}:" in make(fabric)
