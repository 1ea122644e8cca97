# SPDX-License-Identifier: Apache-2.0
"""Requests between processes of one user over a unix socket, with open files."""

from __future__ import annotations

import os
import resource
import select
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from netfold.rpc import local
from netfold.rpc.rpc import CallRefused, Unreachable
from switch_support.ports import wait_for


class Ask(msgspec.Struct, forbid_unknown_fields=True):
    """A request of these tests."""

    number: int


class Told(msgspec.Struct):
    """Its answer."""

    text: str


def _double(request: Ask) -> tuple[Told, Sequence[int]]:
    if request.number < 0:
        raise RuntimeError("negative")
    reading, writing = os.pipe()
    os.write(writing, b"x" * request.number)
    os.close(writing)
    return Told("y" * 200_000), [reading]


def test_an_answer_arrives_whole_with_its_open_files_at_a_socket_for_this_user_alone(tmp_path: Path) -> None:
    """An answer of many pieces, a file that the caller reads, and a socket that others cannot open."""
    server: local.Server[Ask] = local.Server(tmp_path / "s", Ask, _double, Told)
    try:
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
        answer, (file,) = local.call(tmp_path / "s", Ask(3), Told, 10.0)
        assert len(answer.text) == 200_000
        with os.fdopen(file, "rb") as reading:
            assert reading.read() == b"xxx"
    finally:
        server.close()
    assert not (tmp_path / "s").exists()
    with pytest.raises(Unreachable, match="does not answer"):
        local.call(tmp_path / "s", Ask(3), Told, 1.0)


@pytest.mark.parametrize("said", [b'{"number": "many"}\n', b'{"number": 1, "more": 2}\n', b"\xff\n",
                                  b"[" * 50_000 + b"\n", b" " * (local.MAX_MESSAGE + 1)],
                         ids=["type", "field", "bytes", "depth", "size"])
def test_what_is_no_request_is_refused_and_the_next_is_answered(tmp_path: Path, said: bytes) -> None:
    """Hostile bytes get an answer that says what was expected."""
    server: local.Server[Ask] = local.Server(tmp_path / "s", Ask, _double, Told)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10.0)
            connection.connect(str(tmp_path / "s"))
            connection.sendall(said)
            assert b"same version" in connection.recv(65536)
        assert "failed: RuntimeError" in local.call(tmp_path / "s", Ask(-1), Told, 10.0)[0].text
        assert len(local.call(tmp_path / "s", Ask(0), Told, 10.0)[1]) == 1
    finally:
        server.close()


def test_a_process_without_descriptors_serves_again_once_it_has_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A caller that cannot be taken waits, and the log says why; it does not end the service."""
    server: local.Server[Ask] = local.Server(tmp_path / "s", Ask, lambda ask: (Told(str(ask.number)), []), Told)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.settimeout(30.0)
            second.settimeout(30.0)
            # only standard input's number is left: no thread that closes a file meanwhile makes room
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
            first.connect(str(tmp_path / "s"))  # the kernel has a descriptor for it since accept() was called
            second.connect(str(tmp_path / "s"))
            second.sendall(msgspec.json.encode(Ask(2)) + b"\n")
            wait_for(lambda: "takes nobody: [Errno 24]" in caplog.text)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert second.recv(100) == b'{"text":"2"}\n'
            first.sendall(msgspec.json.encode(Ask(1)) + b"\n")
            assert first.recv(100) == b'{"text":"1"}\n'
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        server.close()


def test_files_of_an_answer_that_is_none_are_closed(tmp_path: Path) -> None:
    """A server of another version may send files with what its caller does not understand."""
    reading, writing = os.pipe()
    server: local.Server[Ask] = local.Server(tmp_path / "s", Ask, lambda ask: (Told(""), [reading]), Told)
    try:
        with pytest.raises(Unreachable, match="speaks another version"):
            local.call(tmp_path / "s", Ask(3), Ask, 10.0)
        readers = select.poll()
        readers.register(writing, 0)
        wait_for(lambda: readers.poll(0) == [(writing, select.POLLERR)])  # none: the server has closed its own, too
    finally:
        server.close()
        os.close(writing)


def test_another_users_process_is_turned_away_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says whose process is at the other end; neither side goes on with another user's."""
    server: local.Server[Ask] = local.Server(tmp_path / "s", Ask, _double, Told)
    try:
        another = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: another)
        with pytest.raises(CallRefused, match="another user's"):
            local.call(tmp_path / "s", Ask(1), Told, 10.0)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10.0)
            connection.connect(str(tmp_path / "s"))
            assert connection.recv(100) == b""
    finally:
        server.close()
