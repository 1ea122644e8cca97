# SPDX-License-Identifier: Apache-2.0
"""Fabrics in Mininet: what is built, and the errors where it cannot be."""

from __future__ import annotations

import os
import socket
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, FabricError
from netfold.topo.network import mininet_path, rundir, sandbox
from netfold.topo.network.mininet_path import MininetFinder, MininetMissing
from netfold.topo.processes.failures import SwitchFailed
from support import needs
from support.sandboxes.topo import in_sandbox

mininet = pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network import startup, switches, topology, wiring  # noqa: E402

mininet.Mininet.inited = True  # or it would set limits of the whole machine


class Impostor(switches.P4Switch):
    """A switch whose command line the test chooses."""

    engine: ClassVar[Engine] = "softswitch"
    offload = True
    binaries = ("sh",)
    missing = "every system has one"
    words: tuple[str, ...] = ("sh", "-c", "exec sleep 600")

    def command(self) -> list[str]:
        return list(self.words)


def impostor(tmp_path: Path, words: tuple[str, ...], grpc: str) -> Impostor:
    switch = Impostor("leaf1", grpc=grpc, device_id=1, log=tmp_path / "leaf1.log")
    switch.words = words
    return switch


# ---- finding Mininet -------------------------------------------------------------------------------------------------


def test_missing_mininet_names_the_package_to_install() -> None:
    """The error of a missing Mininet names the package to install."""
    with pytest.raises(MininetMissing, match="apt install mininet"):
        MininetFinder(["/nowhere"]).find_spec("mininet")


def test_the_finder_finds_mininet_and_nothing_else() -> None:
    """The distribution's other packages stay out of sight, and installing twice changes nothing."""
    spec = MininetFinder().find_spec("mininet")
    assert isinstance(spec, ModuleSpec)
    assert MininetFinder().find_spec("apt_pkg") is None
    mininet_path.install()
    assert sum(isinstance(finder, MininetFinder) for finder in sys.meta_path) == 1
    assert not any("dist-packages" in folder for folder in sys.path)


# ---- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "bits", "burst"), [("100mbit", 10**8, 131072), ("5gbit", 5 * 10**9, 1_250_000)])
def test_shapers_let_super_packets_pass(rate: str, bits: int, burst: int) -> None:
    """The burst holds two super-packets at least, and 2 ms of the rate; the queue 4 MB at least."""
    text = " ".join(wiring.shaper("x", rate))
    assert f"rate {bits}bit" in text
    assert f" burst {burst} " in text
    assert int(text.rpartition("limit ")[2]) >= 4_000_000


@pytest.mark.parametrize("rate", ["fast", "0gbit", "1gb"])
def test_rates_that_tc_does_not_know_are_refused(rate: str) -> None:
    """A rate is a number and one of tc's units."""
    with pytest.raises(FabricError, match="expected a rate"):
        wiring.shaper("x", rate)


@in_sandbox()
def test_delay_and_loss_of_tclink_are_refused() -> None:
    """They would silently do nothing on a kernel without netem."""
    network = mininet.Mininet(controller=None, build=False)
    a, b = network.addHost("a"), network.addHost("b")
    with pytest.raises(ValueError, match=r"delay, loss: a fabric's link knows .*--loss"):
        wiring.FabricLink(a, b, port1=0, port2=0, delay="5ms", loss=3)


@in_sandbox()
def test_interface_names_that_linux_cannot_have_are_refused() -> None:
    """15 characters, and the error says which name is too long."""
    network = mininet.Mininet(controller=None, build=False)
    a, b = network.addHost("a-very-long-name"), network.addHost("b")
    with pytest.raises(wiring.WiringError, match=r"a-very-long-name-eth1: Linux takes 15 characters, got 21"):
        wiring.FabricLink(a, b, port1=1, port2=1)


@in_sandbox()
def test_a_failing_command_is_shown(tmp_path: Path) -> None:
    """The error of a failed command has its description, status and output."""
    node = mininet.Mininet(controller=None, build=False).addHost("h1")
    with pytest.raises(wiring.WiringError, match=r"testing failed with status \d+:\n(.|\n)*no-such-interface"):
        wiring.execute(node, "ip link show no-such-interface", "testing")


# ---- the whole fabric ------------------------------------------------------------------------------------------------


@in_sandbox()
def test_a_fabric_is_built_as_described() -> None:
    """Names, addresses, MACs, gateways, rates, offloads and ports are the fabric's; IPv6 is off."""
    fabric = leafspine(2, 2, 3, rate="100mbit")
    built = mininet.Mininet(topo=topology.FabricTopo(fabric, offload=False), switch=Impostor, controller=None)
    try:
        for host in fabric.hosts:
            node = built.get(host.name)
            assert host.mac in node.cmd("ip link show dev", f"{host.name}-eth0")
            addresses = node.cmd("ip address show dev", f"{host.name}-eth0")
            assert f"inet {host.address}/32" in addresses
            assert "inet6" not in addresses
            assert f"default via {wiring.GATEWAY}" in node.cmd("ip route")
            leaf = fabric.switch("leaf1" if host.name in ("h1", "h2") else "leaf2")
            assert f"lladdr {leaf.mac} PERMANENT" in node.cmd("ip neigh")
            assert "rate 100Mbit" in node.cmd(f"tc class show dev {host.name}-eth0")
            assert "tcp-segmentation-offload: off" in node.cmd(f"ethtool -k {host.name}-eth0")
        for switch in fabric.switches:
            ports = {end.port for link in fabric.links for end in link.ends if end.node == switch.name}
            assert built.get(switch.name).interfaces() == [(p, f"{switch.name}-eth{p}") for p in sorted(ports)]
    finally:
        built.stop()
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


@pytest.mark.netns
@pytest.mark.needs("namespaces", "mininet", "mn")
def test_mininets_own_command_brings_the_fabric_up(tmp_path: Path) -> None:
    """`mn --custom topo/leafspine.py` starts it under the system's Python, and saves it for `netfold up`."""
    saved = tmp_path / "lab.toml"
    arguments = ["--topo", f"leafspine,2,1,4,rate=100mbit,save={saved},rundir={tmp_path}", "--switch", "softswitch"]
    custom = str(Path(topology.__file__).parents[1] / "leafspine.py")
    done = sandbox.run(
        ["mn", "--custom", custom, *arguments, "--controller", "none", "--test", "none"], timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leaf1 leaf2 spine1" in done.stderr
    assert "completed in" in done.stderr
    assert fabric_file.load(saved) == leafspine(2, 1, 4, rate="100mbit", rundir=tmp_path)


def test_sockets_of_mininets_own_command_are_in_a_folder_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made for this user alone; one that others may enter, or a link, is refused."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = rundir.socket_folder()
    assert (folder, folder.stat().st_mode & 0o777) == (tmp_path / "netfold", 0o700)
    assert {switch.grpc for switch in topology.LeafSpine(1, 0, 1).fabric.switches} == {f"unix:{folder}/leaf1.sock"}
    assert topology.LeafSpine(1, 0, 1, base_port=50050).fabric.jobs == "127.0.0.1:50050"
    folder.chmod(0o755)
    with pytest.raises(SwitchFailed, match="expected a folder of mode 0700"):
        topology.LeafSpine(1, 0, 1)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SwitchFailed, match="expected a folder of mode 0700"):
        topology.LeafSpine(1, 0, 1)


# ---- switches that do not come up ------------------------------------------------------------------------------------


def test_a_missing_switch_binary_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing switch program is named, with what to do, before anything is built."""
    monkeypatch.setattr(sys, "prefix", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SwitchFailed, match=r"softswitch is neither in .* nor on PATH: .*make setup"):
        switches.SoftSwitch.setup()
    with pytest.raises(SwitchFailed, match=r"simple_switch_grpc .*--switch softswitch"):
        switches.Bmv2Switch.setup()


@in_sandbox()
def test_a_switch_that_ends_shows_its_status_command_and_log(tmp_path: Path) -> None:
    """The error of a switch that has ended has its status, its command line, and the end of its log."""
    switch = impostor(tmp_path, ("sh", "-c", "echo no such program >&2; exit 3"), "127.0.0.1:50051")
    switch.start([])
    with pytest.raises(SwitchFailed) as caught:
        switch.wait_ready(20)
    text = str(caught.value)
    assert "switch leaf1 (softswitch) ended with status 3" in text
    assert "sh -c 'echo no such program >&2; exit 3'" in text
    assert text.endswith("    no such program")
    assert "127.0.0.1:50051" in text


@in_sandbox()
def test_a_switch_that_never_answers_is_given_up_in_time(tmp_path: Path) -> None:
    """Waiting for a switch has a limit, after which its process can still be stopped."""
    switch = impostor(tmp_path, Impostor.words, "127.0.0.1:50051")
    switch.start([])
    with pytest.raises(SwitchFailed, match=r"did not answer within 0\.5 s"):
        switch.wait_ready(0.5)
    switch.stop()
    assert switch.child is not None
    assert switch.child.poll() is not None


def test_all_switches_are_asked_to_end_before_one_is_waited_for() -> None:
    """All running switches get a signal first; those that have ended, or never started, get none."""
    asked: list[str] = []

    def switch(name: str, status: int | None) -> Any:
        child = SimpleNamespace(poll=lambda: status, send_signal=lambda number: asked.append(f"{name} {number.name}"))
        return SimpleNamespace(name=name, child=child)

    idle = SimpleNamespace(name="leaf9", child=None)
    assert Impostor.batchShutdown([switch("leaf1", None), switch("leaf2", 1), idle, switch("leaf3", None)]) == ()
    assert asked == ["leaf1 SIGTERM", "leaf3 SIGTERM"]


@in_sandbox()
def test_a_port_in_use_names_its_holder(tmp_path: Path) -> None:
    """The error of an address in use names the process that listens there."""
    with socket.create_server(("127.0.0.1", 50051)):
        switch = impostor(tmp_path, ("sh", "-c", "echo address already in use >&2; exit 2"), "127.0.0.1:50051")
        switch.start([])
        with pytest.raises(SwitchFailed, match=rf"which process {os.getpid()} \(\S+\) holds"):
            switch.wait_ready(20)


# ---- sockets --------------------------------------------------------------------------------------------------------


def test_sockets_move_into_a_folder_and_nothing_else_changes() -> None:
    """`with_sockets_in` gives every server a unix socket of its own."""
    fabric = leafspine(2, 1, 2)
    moved = startup.with_sockets_in(fabric, Path("/run/x"))
    assert moved.jobs == "unix:/run/x/controller.sock"
    assert [switch.grpc for switch in moved.switches] == [f"unix:/run/x/{s.name}.sock" for s in fabric.switches]
    assert (moved.hosts, moved.links) == (fabric.hosts, fabric.links)

