# SPDX-License-Identifier: Apache-2.0
"""Who may speak to the P4Runtime server: TLS, mutual or not, on softswitch and BMv2 by the same options; addresses that
other machines reach; and the permissions of unix sockets."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from softswitch.p4runtime import listening
from softswitch.p4runtime.listening import ListenError, Tls
from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.server import Server
from softswitch.runtime import connections
from switch_support.addresses import free_port
from switch_support.certificates import Authority
from switch_support.client import Client
from switch_support.switch import probe_builder

BOUND = 60.0


def answers(address: str, credentials: grpc.ChannelCredentials | None, seconds: float = BOUND) -> bool:
    """True if a server answers this client; a handshake that is refused is UNAVAILABLE."""
    with Client(address, credentials=credentials) as client:
        try:
            client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=seconds)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
    return True


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A server that does not listen yet."""
    made = Server(device_id=1, settings=Settings(), builder=probe_builder)
    try:
        yield made
    finally:
        made.close()


def command(engine: str, address: str, options: list[str], folder: Path) -> list[str]:
    """The command line of a switch of either engine, with options of the P4Runtime server."""
    if engine == "softswitch":
        return [sys.executable, "-m", "softswitch", "--no-p4", "--grpc-server-addr", address, *options]
    return ["simple_switch_grpc", "--no-p4", "--device-id", "1", "--log-level", "off", "--thrift-port", "0",
            "--", "--grpc-server-addr", address, *options]


@pytest.mark.parametrize("engine", ["softswitch", pytest.param("bmv2", marks=pytest.mark.needs("bmv2"))])
def test_both_engines_take_the_same_options_for_mutual_tls(engine: str, tmp_path: Path) -> None:
    """Who has a certificate of the authority is served; who has none, one of another authority, or no TLS is not."""
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.issue("switch")
    address = f"127.0.0.1:{free_port()}"
    options = ["--grpc-server-ssl", "--grpc-server-cert", str(certificate), "--grpc-server-key", str(key),
               "--grpc-server-cacert", str(authority.certificate), "--grpc-server-with-client-auth"]
    process = subprocess.Popen(command(engine, address, options, tmp_path), stdout=subprocess.DEVNULL)
    try:
        ours = authority.trusted(authority.issue("controller"))
        until = time.monotonic() + BOUND
        while not answers(address, ours):
            assert process.poll() is None
            assert time.monotonic() < until
        assert not answers(address, authority.trusted())
        assert not answers(address, authority.trusted(other.issue("stranger")))
        assert not answers(address, other.trusted(authority.issue("controller2")))
        assert not answers(address, None)
    finally:
        process.kill()
        process.wait(BOUND)


def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    """New connections see the files as they are now; a file that is broken meanwhile leaves the last good ones."""
    first, second = Authority(tmp_path), Authority(tmp_path, "second")
    certificate, key = first.issue("switch")
    with server() as made:
        (port,) = made.listen("127.0.0.1:0", tls=Tls(certificate, key))
        assert answers(f"127.0.0.1:{port}", first.trusted())
        certificate.write_text("damaged")
        assert answers(f"127.0.0.1:{port}", first.trusted())
        second.issue("switch")
        assert answers(f"127.0.0.1:{port}", second.trusted())
        assert not answers(f"127.0.0.1:{port}", first.trusted())


@pytest.mark.parametrize("address", ["127.0.0.1:9559", "127.8.9.1:1", "[::1]:9559", "localhost:9559", "unix:/run/s"])
def test_what_only_this_machine_reaches_needs_no_tls(address: str) -> None:
    """Loopback and unix sockets."""
    listening.check(address, None, insecure=False)


@pytest.mark.parametrize("address", ["0.0.0.0:9559", "[::]:9559", "10.0.0.1:9559", "switch.example:9559",
                                     "ipv4:0.0.0.0:9559", "dns:///localhost:9559", "localhost.example:1", ":9559"])
def test_what_other_machines_reach_needs_mutual_tls(address: str, tmp_path: Path) -> None:
    """Neither plain nor with certificates on one side only; --insecure says so, and then it is done."""
    one_sided = Tls(tmp_path / "c", tmp_path / "k")
    for tls in (None, one_sided):
        with pytest.raises(ListenError, match="--insecure"):
            listening.check(address, tls, insecure=False)
        listening.check(address, tls, insecure=True)
    listening.check(address, Tls(tmp_path / "c", tmp_path / "k", tmp_path / "ca"), insecure=False)


def test_a_server_that_must_not_listen_at_one_address_listens_at_none(tmp_path: Path) -> None:
    """All addresses are checked before the first is bound."""
    with server() as made:
        with pytest.raises(ListenError, match=r"0\.0\.0\.0"):
            made.listen(f"unix:{tmp_path}/s", "0.0.0.0:0")
        assert not (tmp_path / "s").exists()


def test_a_unix_socket_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask of the shell that started the switch."""
    before = os.umask(0)
    try:
        with server() as made:
            made.listen(f"unix:{tmp_path}/s")
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        assert os.umask(0) == 0
    finally:
        os.umask(before)


CONTRADICTIONS = {
    "no --grpc-server-ssl": (["--grpc-server-cert", "c"], "expected --grpc-server-ssl"),
    "authority without ssl": (["--grpc-server-with-client-auth"], "expected --grpc-server-ssl"),
    "no key": (["--grpc-server-ssl", "--grpc-server-cert", "c"], "--grpc-server-key"),
    "no authority": (["--grpc-server-ssl", "--grpc-server-cert", "c", "--grpc-server-key", "k",
                      "--grpc-server-with-client-auth"], "--grpc-server-cacert and --grpc-server-with-client-auth"),
    "no such file": (["--grpc-server-ssl", "--grpc-server-cert", "c", "--grpc-server-key", "k"], "cannot use c, k"),
    "only unix sockets": (["--grpc-server-ssl", "--grpc-server-cert", "c", "--grpc-server-key", "k",
                           "--grpc-server-addr", "unix:/run/s"], "expected a HOST:PORT"),
    "reached by others": (["--grpc-server-addr", "0.0.0.0:0"], "other machines may reach this address"),
}


@pytest.mark.parametrize("address", ["127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:", "127.0.0.1", "[::1]",
                                     "localhost:²", "localhost:http", "127.0.0.1:" + "1" * 5000])
def test_an_address_needs_a_port_that_there_is(address: str) -> None:
    """gRPC would listen at another port for some, and say nothing."""
    server = grpc.server(ThreadPoolExecutor(1))
    with pytest.raises(ListenError, match=r"expected HOST:PORT with a port within 0\.\.65535"):
        listening.bind(server, address, None)


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01"])
def test_a_connection_that_does_not_begin_is_ended(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that says nothing, or half of its first words, holds a descriptor for the time of a handshake."""
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 0.2)
    with server() as made:
        port, = made.listen("127.0.0.1:0")
        with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as silent, \
                contextlib.suppress(ConnectionResetError):
            silent.sendall(said)
            while silent.recv(4096):
                pass


def test_many_connections_of_one_user_keep_no_other_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent ones take all that the server accepts: it ends some of them for others, and says whose they are."""
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", 16)
    monkeypatch.setattr(connections, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(connections, "local_users", lambda: strangers)
    strangers: dict[object, int] = {}
    with server() as made, contextlib.ExitStack() as stack:
        port, = made.listen("127.0.0.1:0")
        for _ in range(40):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=BOUND))
            strangers[held.getsockname(), ("127.0.0.1", port)] = 65534
        with Client(f"127.0.0.1:{port}") as other:
            other.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=BOUND, wait_for_ready=True)
    assert "user 65534 had" in caplog.text
    assert f"connections at port {port}: expected at most 8 together" in caplog.text


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_options_that_contradict_each_other_are_named(name: str) -> None:
    """The command ends with status 2, and says what was expected."""
    options, said = CONTRADICTIONS[name]
    done = subprocess.run([sys.executable, "-m", "softswitch", "run", "--no-p4", *options], capture_output=True,
                          text=True, timeout=BOUND)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """A private key is its owner's."""
    certificate, key = Authority(tmp_path).issue("switch")
    key.chmod(0o644)
    with server() as made, pytest.raises(ListenError, match="chmod"):
        made.listen("127.0.0.1:0", tls=Tls(certificate, key))


def test_insecure_is_said_in_the_ready_line() -> None:
    """A switch that listens for everybody says so where its log begins."""
    process = subprocess.Popen([*command("softswitch", "0.0.0.0:0", ["--insecure"], Path())], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        ready, _, _ = select.select([process.stderr], [], [], BOUND)
        assert ready
        assert "push a program" in process.stderr.readline()
    finally:
        process.terminate()
        process.communicate(timeout=BOUND)
