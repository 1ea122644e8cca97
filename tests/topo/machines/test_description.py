# SPDX-License-Identifier: Apache-2.0
"""What each machine of a fabric is told to run, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.fabric.generate import parse
from netfold.fabric.graph import FabricError
from netfold.fabric.placement.machine_list import ListedMachine
from netfold.topo.agents.frames import Kind, Splitter, pack
from netfold.topo.machines.agent import check, far_sockets, sockets_of
from netfold.topo.machines.description import Description, describe, link_mtu, needed_mtu
from netfold.topo.machines.fleet import SEATS, Seat, launcher_of, seats_beside
from netfold.topo.processes.failures import FabricFailed
from netfold.wire.roce import LINK_MTUS

MACHINES = [ListedMachine(f"node{n}", f"10.1.0.{n}") for n in (1, 2, 3)]


def test_every_node_and_link_is_somewhere_once() -> None:
    """Links are inside one machine, or cables with the same VNI at both ends, each VNI twice."""
    fabric = parse("threetier,2,2,2,4,8", path_mtu=1024)
    machines = describe(fabric, MACHINES)
    assert sorted(name for machine in machines for name in machine.nodes) == sorted(n.name for n in fabric.nodes)
    inside = [link for machine in machines for link in machine.part().links]
    ends = {(cable.vni, f"{cable.switch}:{cable.port}", cable.there) for m in machines for cable in m.cables}
    assert len(inside) + len(ends) / 2 == len(fabric.links)
    assert {(vni, there, here) for vni, here, there in ends} == ends
    for machine in machines:
        for cable in machine.cables:
            assert cable.remote == next(m.address for m in machines if cable.there.split(":")[0] in m.nodes)
    assert [machine.controller for machine in machines] == [True, False, False]


def test_sockets_are_here_or_far() -> None:
    """Each machine reaches every switch and the controller by exactly one of its own sockets and those of others, and
    that of the controller alone the launcher's faults."""
    fabric = parse("leafspine,2,2,4")
    for machine in describe(fabric, MACHINES):
        together = sockets_of(machine) + far_sockets(machine)
        launcher = ["faults.sock"] if machine.controller else []
        assert sorted(together) == sorted([*(f"{s.name}.sock" for s in fabric.switches), "controller.sock", *launcher])


def test_the_mtu_counts_what_vxlan_takes() -> None:
    """1500 carries packets of 1024; of 4096 only jumbo frames, and the error says how large."""
    assert link_mtu(1024) == link_mtu(1024, 1500) == 1450
    assert link_mtu(4096) == link_mtu(4096, 9000) == LINK_MTUS[4096]
    assert link_mtu(4096, needed_mtu(4096) + 50) == needed_mtu(4096)
    with pytest.raises(FabricError, match=r"MTU 1500 leaves 1450 bytes.*MTU of 4210 at least.*--path-mtu 1024"):
        link_mtu(4096, 1500)
    with pytest.raises(FabricError, match="MTU of 1138 at least"):
        link_mtu(1024, 1000)


def test_another_version_is_refused_by_both_names() -> None:
    """Before anything is changed on the machine."""
    machine = msgspec.structs.replace(describe(parse("leafspine,1,0,2"), MACHINES[:1])[0], version="9.9")
    with pytest.raises(FabricFailed, match=r"machine node1 has NetFold .*, the launcher 9\.9"):
        check(machine)


@pytest.mark.parametrize(("sent", "says"), [
    (pack(0, Kind.DESCRIBE, b"{}"), "the description of this machine's part: Object missing required field"),
    (pack(7, Kind.RUN, b"{}"), "expected a description"),
])
def test_an_agent_says_what_is_wrong_with_its_description(sent: bytes, says: str) -> None:
    """By a frame for the launcher, and in words on standard error."""
    done = subprocess.run([sys.executable, "-m", "netfold.topo.machines.agent"], input=sent, capture_output=True,
                          timeout=60, check=False)
    assert done.returncode == 1
    assert says in done.stderr.decode()
    ((_, kind, content),) = Splitter().feed(done.stdout)
    assert kind is Kind.FAILED
    assert says in content.decode()


def test_a_launcher_names_the_machine() -> None:
    """Short names, templates, and what is neither."""
    assert launcher_of("ssh")[-1] == "{host}"
    assert launcher_of("ip netns exec {host}") == ["ip", "netns", "exec", "{host}"]
    for wrong in ("rsh", "ssh '{host}"):
        with pytest.raises(FabricFailed, match="--launcher"):
            launcher_of(wrong)


def test_the_command_writes_what_each_machine_runs(tmp_path: Path) -> None:
    """fabric.toml, and a file for each machine, which is the description that its agent reads."""
    listed = tmp_path / "hosts.txt"
    listed.write_text("a address=10.1.0.1\nb address=10.1.0.2\n")
    command = ["fabric", "leafspine,2,2,4", "--path-mtu", "1024", "--machines", str(listed)]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "6 of 8 cables inside machines" in result.output
    found = [msgspec.json.decode((tmp_path / "out" / f"{name}.json").read_bytes(), type=Description) for name in "ab"]
    assert found == describe(parse("leafspine,2,2,4", path_mtu=1024), [ListedMachine("a", "10.1.0.1"),
                                                                      ListedMachine("b", "10.1.0.2")])
    result = CliRunner().invoke(app, ["fabric", "leafspine,2,2,4", "--machines", str(listed), "--underlay-mtu", "1500"])
    assert (result.exit_code, "--path-mtu 1024" in result.output) == (2, True)


def test_seats_are_believed_in_a_folder_of_this_user_alone(tmp_path: Path) -> None:
    """Whoever can put a file beside the fabric's would get the ranks' commands and environment."""
    seats = {"h1": Seat("/tmp/line", 1, "/tmp")}
    (tmp_path / SEATS).write_bytes(msgspec.json.encode(seats))
    assert seats_beside(tmp_path / "fabric.toml") == seats
    tmp_path.chmod(0o1777)
    assert seats_beside(tmp_path / "fabric.toml") is None
