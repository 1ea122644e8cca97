# SPDX-License-Identifier: Apache-2.0
"""The congestion control of a mesh's connections: what is asked for, and else what paces no short message."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from netfold.host.mesh import congestion_control
from netfold.host.mesh.sockets import connect, listen


def test_connections_have_the_congestion_control_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends use the algorithm of NETFOLD_TCP_CONGESTION; one that the kernel does not have is refused by name
    before listening."""
    monkeypatch.setenv(congestion_control.VARIABLE, "reno")
    with listen("127.0.0.1") as listener, connect("{}:{}".format(*listener.getsockname())) as ours:
        listener.settimeout(60)
        theirs, _ = listener.accept()
        with theirs:
            for end in (ours, theirs):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0] == b"reno"
    monkeypatch.setenv(congestion_control.VARIABLE, "nosuch")
    with pytest.raises(ValueError, match=f"{congestion_control.VARIABLE}='nosuch'.*tcp_allowed_congestion_control"):
        listen("127.0.0.1")


def test_short_messages_are_not_paced_by_bbr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the machine's congestion control is BBR, short messages have one that does not spread them over time, and
    long ones have BBR; what the environment names, all have."""
    had = {b"now": b"bbr"}

    class Socket:
        def getsockopt(self, *_: object) -> bytes:
            return had[b"now"] + b"\0\0"

        def setsockopt(self, _level: int, _option: int, name: bytes) -> None:
            if name == b"cubic":
                raise OSError(1, "not permitted")
            had[b"now"] = name

    monkeypatch.delenv(congestion_control.VARIABLE, raising=False)
    sock: Any = Socket()
    control = congestion_control.CongestionControl(sock)
    seen = []
    for nbytes in (4, 1 << 20, 1 << 21, congestion_control.SHORT_BYTES):
        control.of(nbytes)
        seen.append(had[b"now"])
    assert seen == [b"reno", b"bbr", b"bbr", b"reno"]
    had[b"now"] = b"bbr"
    monkeypatch.setenv(congestion_control.VARIABLE, "bbr")
    congestion_control.CongestionControl(sock).of(4)
    assert had[b"now"] == b"bbr"
