# SPDX-License-Identifier: Apache-2.0
"""When a rank leaves a controller that hangs."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from netfold.host.client import hang_watch
from netfold.host.client.hang_watch import HangWatch, greets_connections, takes_connections


@pytest.mark.parametrize(("takes", "greets", "leaves"), [
    ({"second"}, set(), True),
    ({"second"}, {"first"}, False),  # a standby starts, or a stranger has its address: ours is at work
    (set(), set(), False),  # nobody else is there: it may wake up
])
def test_only_a_controller_that_hangs_is_left_and_only_for_another(
    takes: set[str], greets: set[str], leaves: bool
) -> None:
    """Both must hold at the same look."""
    left: list[bool] = []
    HangWatch(lambda: ("first", ["second"]), lambda: left.append(True), takes=takes.__contains__,
              greets=greets.__contains__).look()
    assert left == [True] * leaves


def test_a_controller_that_greets_is_told_from_one_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address where nobody listens is no hang."""
    monkeypatch.setattr(hang_watch, "GREETING", 0.3)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{tmp_path}/s.sock")
    server.start()
    with socket.socket(socket.AF_UNIX) as still:
        still.bind(f"{tmp_path}/still.sock")
        still.listen()
        assert takes_connections(f"unix:{tmp_path}/still.sock")
        assert not greets_connections(f"unix:{tmp_path}/still.sock")
    assert not takes_connections(f"unix:{tmp_path}/still.sock")
    assert greets_connections(f"unix:{tmp_path}/still.sock")
    assert greets_connections(f"unix:{tmp_path}/s.sock")
    server.stop(None)
