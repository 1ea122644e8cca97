# SPDX-License-Identifier: Apache-2.0
"""The services that the controller refuses at addresses that other machines reach, and those that it offers there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
import stat
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller import exposure, serving
from netfold.controller.controller import Controller
from netfold.controller.jobs.callers import Callers
from netfold.controller.standby import Standby
from netfold.controller.web.answers import Sources
from netfold.controller.web.serve import Web
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric, FabricError
from netfold.rpc import channel
from netfold.rpc.certificates import Certificates, is_local
from netfold.wire.operator import SERVICE, AskStatus
from softswitch.runtime import connections
from support.control.controller import BOUND, MemorySwitch, run
from support.control.jobs import rig
from switch_support.addresses import free_port
from switch_support.certificates import Authority

EVERYWHERE = "0.0.0.0"


def lab(folder: Path, **settings: Any) -> Fabric:
    """A small fabric on unix sockets with other settings."""
    return msgspec.structs.replace(leafspine(1, 0, 2, rundir=folder), **settings)


def moved(fabric: Fabric, grpc: str, **settings: Any) -> Fabric:
    """The fabric with its switch at this address."""
    (switch,) = fabric.switches
    return msgspec.structs.replace(fabric, switches=(msgspec.structs.replace(switch, grpc=grpc, **settings),))


def controller(fabric: Fabric, *, insecure: bool = False) -> Controller:
    """A controller whose switches are in memory."""
    return Controller(fabric, connect=lambda switch: MemorySwitch(switch.name).connect(), start_timeout=BOUND,
                      insecure=insecure)


@pytest.mark.parametrize(("address", "local"), [
    ("unix:/run/s", True), ("127.0.0.1:1", True), ("127.1.2.3:1", True), ("[::1]:1", True), ("localhost:1", True),
    ("0.0.0.0:1", False), (":1", False), ("[::]:1", False), ("10.0.0.9:1", False), ("lab.example:1", False),
    ("localhost.example:1", False), ("ipv4:127.0.0.1:1", False), ("dns:///localhost:1", False),
])
def test_only_loopback_and_unix_sockets_are_local(address: str, local: bool) -> None:
    """An address that is not clearly local counts as reachable."""
    assert is_local(address) is local


SETTINGS: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "sockets": ({}, False, []),
    "loopback": ({"jobs": "127.0.0.1:1", "metrics": "127.0.0.1:2"}, False, []),
    "nothing": ({"jobs": "10.0.0.9:1"}, False, ["fabric.jobs: .*10.0.0.9:1, which lacks a token .+ and TLS"]),
    "only a token": ({"jobs": "10.0.0.9:1"}, True, ["fabric.jobs: .* lacks TLS"]),
    "only TLS": ({"jobs": "10.0.0.9:1", "certificate": "c", "key": "k"}, False,
                 ["fabric.jobs: .* lacks a token .operator_token_file.$"]),
    "both": ({"jobs": "10.0.0.9:1", "certificate": "c", "key": "k"}, True, []),
    "page": ({"metrics": ":9464"}, False, ["fabric.metrics: .*:9464, which lacks a token .+ and TLS"]),
    "page with a password": ({"metrics": ":9464"}, True, ["fabric.metrics: .*passwords .* over plain HTTP"]),
    "page over TLS": ({"metrics": ":9464", "certificate": "c", "key": "k"}, True, []),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    """For each address that other machines reach: whether a token or TLS is missing."""
    settings, token, expected = SETTINGS[name]
    found = exposure.unprotected(lab(tmp_path, **settings), token=token)
    assert len(found) == len(expected)
    for sentence, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, sentence), sentence


def test_p4runtime_in_the_clear_is_named(tmp_path: Path) -> None:
    """A switch elsewhere needs TLS, of the fabric or its own; a unix socket never has it."""
    away = moved(lab(tmp_path), "10.0.0.8:9559")
    (said,) = exposure.unprotected(away, token=True)
    assert "leaf1 at 10.0.0.8:9559" in said
    assert exposure.unprotected(msgspec.structs.replace(away, p4runtime_ca="ca"), token=True) == []
    own = moved(lab(tmp_path), "10.0.0.8:9559", p4runtime_ca="own", p4runtime_certificate="c", p4runtime_key="k")
    assert own.p4runtime_files("leaf1") == ("own", "c", "k")
    assert exposure.unprotected(own, token=True) == []
    assert lab(tmp_path, p4runtime_ca="ca").p4runtime_files("leaf1") == (None, None, None)


async def test_an_exposed_controller_does_not_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before any switch is touched; --insecure starts it, and its log says what that means."""
    fabric = lab(tmp_path, jobs=f"{EVERYWHERE}:{free_port()}")
    refused = controller(fabric)
    with pytest.raises(FabricError, match=r"fabric\.jobs: other machines may reach(.|\n)*netfold up --insecure"):
        await refused.start()
    await refused.stop()
    with caplog.at_level(logging.WARNING):
        async with controller(fabric, insecure=True):
            assert "insecure: fabric.jobs: other machines may reach" in caplog.text


def test_an_exposed_standby_does_not_wait_for_its_day(tmp_path: Path) -> None:
    """Obstacles to its taking over are reported when it starts."""
    fabric = lab(tmp_path, standby="10.0.0.9:50050")
    with pytest.raises(FabricError, match=r"fabric\.jobs: other machines may reach 10\.0\.0\.9:50050"):
        Standby(fabric)
    (said,) = exposure.unprotected(fabric, token=False)
    assert said.startswith("fabric.standby: other machines may reach 10.0.0.9:50050")
    Standby(fabric, insecure=True)


def test_a_standby_that_is_no_client_of_the_first_controller_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the variables without which it cannot ask whether the controller hangs."""
    for name in (channel.CA_VARIABLE, channel.CERTIFICATE_VARIABLE, channel.KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    authority = Authority(tmp_path)
    certificate, key = map(str, authority.issue("controller"))
    fabric = lab(tmp_path, jobs="127.0.0.1:50050", standby="127.0.0.1:50051", certificate=certificate, key=key)
    asking = msgspec.structs.replace(fabric, client_ca=str(authority.certificate))
    with pytest.raises(FabricError, match=r"127\.0\.0\.1:50050 speaks TLS.*set NETFOLD_CA \(certificates that sign"):
        Standby(fabric)
    monkeypatch.setenv(channel.CA_VARIABLE, str(authority.certificate))
    Standby(fabric)
    with pytest.raises(FabricError, match=r"set NETFOLD_CERT \(.*\) and NETFOLD_KEY"):
        Standby(asking)
    monkeypatch.setenv(channel.CERTIFICATE_VARIABLE, certificate)
    monkeypatch.setenv(channel.KEY_VARIABLE, str(tmp_path / "none.key"))
    with pytest.raises(FabricError, match=r"NETFOLD_KEY=.*: cannot read .*none\.key"):
        Standby(asking)
    monkeypatch.setenv(channel.KEY_VARIABLE, key)
    Standby(asking)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_the_socket_of_a_fabric_without_token_is_not_for_others(mask: int, tmp_path: Path) -> None:
    """Its owner, and the group that the umask leaves, may open it; and the umask is as before."""
    before = os.umask(mask)
    try:
        async def story() -> None:
            async with controller(lab(tmp_path)):
                mode = stat.S_IMODE((tmp_path / "controller.sock").stat().st_mode)
                assert mode == 0o777 & ~(mask | 0o007)

        run(story())
        assert os.umask(mask) == mask
    finally:
        os.umask(before)


async def test_the_page_speaks_https_where_others_reach_it(tmp_path: Path) -> None:
    """With the job service's certificate; a client that stops within the handshake holds up nobody."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("page")
    tls = Certificates("fabric.certificate", None, str(certificate), str(key))
    web = Web(Sources(lab(tmp_path), lambda: None), Callers(lab(tmp_path)), tls=tls)  # type: ignore[arg-type, return-value]
    url = web.start("127.0.0.1:0")
    try:
        assert url.startswith("https://127.0.0.1:")
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):  # says nothing
            context = ssl.create_default_context(cafile=str(authority.certificate))
            def fetch() -> bytes:
                with urllib.request.urlopen(url, timeout=BOUND, context=context) as answer:
                    return bytes(answer.read())

            assert b"<html" in (await asyncio.to_thread(fetch))[:200].lower()
    finally:
        await web.stop()


def test_files_of_p4runtime_that_are_not_there_are_named_at_the_start(tmp_path: Path) -> None:
    """Relative to the fabric file, before any switch is touched."""
    file = tmp_path / "lab.toml"
    fabric_file.save(moved(lab(tmp_path, p4runtime_ca="none.pem"), "127.0.0.1:1"), file)
    with pytest.raises(FabricError, match=f"leaf1: p4runtime_ca.*: cannot read {tmp_path}/none.pem: No such file"):
        run(controller(fabric_file.load(file)).start())


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n"])
async def test_a_connection_that_does_not_begin_is_ended(
    said: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that says nothing to the job service, or half of its first words, does not keep its descriptor."""
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.2)

    def wait_for_end(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as silent, contextlib.suppress(ConnectionResetError):
            silent.settimeout(BOUND)
            silent.connect(path)
            silent.sendall(said)
            while silent.recv(4096):
                pass

    async with rig(tmp_path) as r:
        await asyncio.to_thread(wait_for_end, r.fabric.jobs.removeprefix("unix:"))


async def test_many_connections_of_one_user_keep_no_other_from_the_job_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent ones take all that the controller accepts: it ends some of them for others, and says whose they are; the
    connection of an admitted call is told to it."""
    admitted: list[str] = []
    monkeypatch.setattr(connections.ConnectionWatch, "admit", lambda watch, peer: admitted.append(peer))
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 16)
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(connections, "local_users", lambda: strangers)
    strangers: dict[object, int] = {}
    port = free_port()
    async with rig(tmp_path, jobs=f"127.0.0.1:{port}") as r:
        with contextlib.ExitStack() as stack:
            for _ in range(40):
                held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=BOUND))
                strangers[held.getsockname(), ("127.0.0.1", port)] = 65534
            status = r.channel.unary_unary(f"/{SERVICE}/Status", bytes, bytes)
            await status(msgspec.json.encode(AskStatus()), timeout=BOUND, wait_for_ready=True)
    assert admitted[0].startswith("ipv4:127.0.0.1:")
    assert "user 65534 had" in caplog.text
    assert f"connections at port {port}: expected at most 8 together" in caplog.text
