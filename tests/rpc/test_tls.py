# SPDX-License-Identifier: Apache-2.0
"""The job service over TLS, with a certificate that signs itself; and the secrets in the fabric file."""

from __future__ import annotations

import random
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.controller.controller import Controller
from netfold.controller.serving import StartError
from netfold.controller.switch import reach
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric, FabricError, Switch
from netfold.host.client.controller_channel import ControllerChannel
from netfold.host.client.jobs import JobClient
from netfold.host.errors import JoinRefused
from netfold.rpc import channel as tls
from netfold.rpc.rpc import Unreachable
from netfold.wire.jobs import SERVICE, Join
from netfold.wire.plan import Plan
from support.control.controller import BOUND, MemorySession, MemorySwitch, run
from switch_support.addresses import free_port
from switch_support.certificates import Authority


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A fresh certificate for 127.0.0.1 that an authority of its own signs, and its key."""
    return Authority(folder, f"{name}-authority").issue(name)


def tls_fabric(folder: Path) -> Fabric:
    """A fabric file with TLS on a port of loopback, read from disk; its files are named relative to it."""
    certificate(folder, "controller")
    settings = {"jobs": f"127.0.0.1:{free_port()}", "certificate": "controller.pem", "key": "controller.key"}
    file = folder / "lab.toml"
    fabric_file.save(msgspec.structs.replace(leafspine(1, 0, 2, rundir=folder), **settings), file)
    return fabric_file.load(file)


def controller(fabric: Fabric) -> Controller:
    """A controller whose switches are in memory."""
    return Controller(fabric, connect=lambda switch: MemorySwitch(switch.name).connect(), rng=random.Random(5),
                      start_timeout=BOUND)


async def test_who_trusts_the_certificate_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NETFOLD_CA makes ranks and operators speak TLS; without it, or with another one, nobody is served and the error
    says what to set."""
    fabric = tls_fabric(tmp_path)
    other, _ = certificate(tmp_path, "other")
    async with controller(fabric):
        monkeypatch.setenv(tls.CA_VARIABLE, str(tmp_path / "controller-authority.pem"))
        assert (await client.status(fabric.jobs)).fabric == fabric.name
        async with tls.aio_channel(fabric.jobs) as channel:
            join = channel.unary_unary(f"/{SERVICE}/Join", msgspec.json.encode, msgspec.json.Decoder(Plan).decode)
            assert (await join(Join("j", 1, 0, fabric.hosts[0].address, "10.0.0.1:1", 0), timeout=BOUND)).epoch
        monkeypatch.setenv(tls.CA_VARIABLE, str(other))
        with pytest.raises(Unreachable, match=r"NETFOLD_CA is .*other\.pem"):
            await client.status(fabric.jobs, timeout=2)
        monkeypatch.setenv(tls.CA_VARIABLE, str(tmp_path / "nowhere.pem"))
        with pytest.raises(Unreachable, match=r"NETFOLD_CA=.*nowhere\.pem: No such file"):
            await client.status(fabric.jobs)
        monkeypatch.delenv(tls.CA_VARIABLE)
        with pytest.raises(Unreachable, match="set NETFOLD_CA"):
            await client.status(fabric.jobs, timeout=2)


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_second_controller_claims_no_switch(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds that the first one listens, whether it could speak TLS with it or not."""
    monkeypatch.setattr(reach, "PATIENCE", BOUND)
    monkeypatch.delenv(tls.CA_VARIABLE, raising=False)
    fabric = tls_fabric(tmp_path)
    if trusted:
        monkeypatch.setenv(tls.CA_VARIABLE, str(tmp_path / "controller-authority.pem"))
    claimed: list[str] = []

    async def claim(switch: Switch) -> MemorySession:
        claimed.append(switch.name)
        return await MemorySwitch(switch.name).connect()

    async with controller(fabric):
        with pytest.raises(StartError, match=rf"is running at {fabric.jobs} already: stop it"):
            async with Controller(fabric, connect=claim, start_timeout=BOUND):
                pass
    assert not claimed


async def test_a_key_of_another_certificate_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller says so instead of serving nobody."""
    fabric = tls_fabric(tmp_path)
    _, key = certificate(tmp_path, "other")
    monkeypatch.delenv(tls.CA_VARIABLE, raising=False)
    broken = controller(msgspec.structs.replace(fabric, key=str(key)))
    with pytest.raises(FabricError, match=r"fabric\.key.*expected a certificate and its own private key"):
        await broken.start()
    await broken.stop()


async def test_certificates_of_clients_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With client_ca only who shows a certificate that it signs is served; the others are told what to set."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    fabric = msgspec.structs.replace(tls_fabric(tmp_path), client_ca=str(authority.certificate))
    ours, strange = authority.issue("rank"), other.issue("stranger")

    def show(pair: tuple[Path, Path] | None) -> None:
        for name, file in zip((tls.CERTIFICATE_VARIABLE, tls.KEY_VARIABLE), pair or ("", ""), strict=True):
            monkeypatch.setenv(name, str(file))

    monkeypatch.setenv(tls.CA_VARIABLE, str(tmp_path / "controller-authority.pem"))
    async with controller(fabric):
        show(ours)
        assert (await client.status(fabric.jobs)).fabric == fabric.name
        show(strange)
        with pytest.raises(Unreachable, match=r"does it trust .*stranger\.pem"):
            await client.status(fabric.jobs, timeout=2)
        show(None)
        with pytest.raises(Unreachable, match=r"does it want a certificate of ours \(NETFOLD_CERT\)"):
            await client.status(fabric.jobs, timeout=2)
        monkeypatch.setenv(tls.CERTIFICATE_VARIABLE, str(ours[0]))
        with pytest.raises(Unreachable, match="expected NETFOLD_CERT and NETFOLD_KEY together"):
            await client.status(fabric.jobs)
        show(ours)
        ours[1].chmod(0o644)
        with pytest.raises(Unreachable, match="everybody may read the private key"):
            await client.status(fabric.jobs)


async def test_a_renewed_certificate_is_shown_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next connection sees the new files; broken ones leave those before."""
    fabric = tls_fabric(tmp_path)
    renewed = Authority(tmp_path, "renewed")
    async with controller(fabric):
        monkeypatch.setenv(tls.CA_VARIABLE, str(tmp_path / "controller-authority.pem"))
        (tmp_path / "controller.pem").write_text("damaged")
        assert (await client.status(fabric.jobs)).fabric == fabric.name
        renewed.issue("controller")
        with pytest.raises(Unreachable):
            await client.status(fabric.jobs, timeout=2)
        monkeypatch.setenv(tls.CA_VARIABLE, str(renewed.certificate))
        assert (await client.status(fabric.jobs)).fabric == fabric.name


@pytest.mark.parametrize("address", ["10.0.0.9:50050", "lab.example:50050", "[2001:db8::1]:50050"])
def test_no_token_goes_to_another_machine_in_the_clear(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an operator's nor a rank's; without a token, with TLS, or where it is asked for, it is tried."""
    for name in (tls.CA_VARIABLE, tls.INSECURE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Unreachable, match="in the clear: set NETFOLD_CA"):
        run(client.status(address, token="secret"))
    with pytest.raises(JoinRefused, match="in the clear: set NETFOLD_CA"):
        JobClient(address, token="secret")
    one = ControllerChannel(["127.0.0.1:1"], (("authorization", "Bearer secret"),))
    one.learn([address, "unix:/run/other"])
    assert one.addresses == ["127.0.0.1:1", "unix:/run/other"]
    one.close()
    tls.check(address, token=False)
    monkeypatch.setenv(tls.INSECURE_VARIABLE, "1")
    tls.check(address, token=True)
    monkeypatch.delenv(tls.INSECURE_VARIABLE)
    monkeypatch.setenv(tls.CA_VARIABLE, "ca.pem")
    tls.check(address, token=True)


async def test_unix_sockets_go_without_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where NETFOLD_CA is set for other controllers: not even its file is read."""
    monkeypatch.setenv(tls.CA_VARIABLE, "/nonexistent")
    fabric = leafspine(1, 0, 2, rundir=tmp_path)
    async with controller(fabric):
        assert (await client.status(fabric.jobs)).fabric == fabric.name


async def test_who_asked_too_early_does_not_hold_up_who_asks_now(tmp_path: Path) -> None:
    """A channel that found nobody leaves no back-off for the next one in its process."""
    fabric = leafspine(1, 0, 2, rundir=tmp_path)
    async with tls.aio_channel(fabric.jobs) as early:
        with pytest.raises(grpc.aio.AioRpcError):
            await early.unary_unary("/nobody/here", bytes, bytes)(b"")
        async with controller(fabric):
            assert (await client.status(fabric.jobs)).fabric == fabric.name


@pytest.mark.parametrize(("line", "says"), [
    ('certificate = "c.pem"', "fabric.key: TLS needs both"),
    ('key = "c.key"', "fabric.certificate: TLS needs both"),
    ('certificate = "c.pem"\nkey = "c.key"', "TLS goes with fabric.jobs = \"host:port\""),
    ('client_ca = "ca.pem"', "fabric.client_ca: certificates of clients go with TLS"),
    ('p4runtime_ca = "ca.pem"\np4runtime_key = "k"', "fabric.p4runtime_certificate: expected it together"),
    ('p4runtime_certificate = "c"\np4runtime_key = "k"', "expected fabric.p4runtime_ca with it"),
])
def test_contradicting_secrets_are_refused(line: str, says: str, tmp_path: Path) -> None:
    """The error names the field and what to do."""
    text = fabric_file.dumps(leafspine(1, 0, 2, rundir=tmp_path)).replace("[fabric]\n", f"[fabric]\n{line}\n")
    with pytest.raises(FabricError) as caught:
        fabric_file.loads(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(("settings", "says"), [
    ({"operator_token_file": "none"}, "fabric.operator_token_file: cannot read .*none: No such file"),
    ({"operator_token_file": "empty"}, "fabric.operator_token_file: .*empty is empty"),
    ({"certificate": "none", "key": "none", "jobs": "127.0.0.1:1"}, "fabric.key.*: cannot read .*none: No such file"),
])
def test_files_that_are_not_there_are_named_at_the_start(
    tmp_path: Path, settings: dict[str, str], says: str
) -> None:
    """The error names the field and the file, before any switch is touched."""
    (tmp_path / "empty").touch(0o600)
    file = tmp_path / "lab.toml"
    fabric_file.save(msgspec.structs.replace(leafspine(1, 0, 2, rundir=tmp_path), **settings), file)
    broken = controller(fabric_file.load(file))
    with pytest.raises(FabricError, match=says):
        run(broken.start())
