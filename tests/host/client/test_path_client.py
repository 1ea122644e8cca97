# SPDX-License-Identifier: Apache-2.0
"""A rank that can go without planned paths does not wait for a controller that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from netfold.host.client import path_client
from netfold.host.client.path_client import PATIENCE_SECONDS, PathClient, PlannedPaths
from netfold.host.mesh.planned import Collective
from netfold.wire import roce
from netfold.wire.paths import PathPiece, Paths, Reach
from netfold.wire.plan import Plan

PATHS = Paths(1, [], [PathPiece(1, 0, 1, roce.PATH_PORT + 1)], [Reach(1, "leaf1", [roce.PATH_PORT + 1])])


def test_a_silent_controller_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first collective waits a second, others not at all until the answer comes, which then counts."""
    made: list[Any] = []
    patience: list[float] = []

    def client(*_: object, **settings: Any) -> Any:
        made.append(Mock(paths=None))
        patience.append(settings["patience"])
        return made[-1]

    monkeypatch.setattr(path_client, "PathClient", client)
    planned = PlannedPaths(Mock(), Plan("j", 1, 0, 2, [], []), needed=False)
    try:
        for name in ("ring", "mesh2d", "ring"):
            assert planned.changed(Collective(name)) is None
        assert patience == [PATIENCE_SECONDS, 0.0]
        for one in made:
            one.paths = PATHS
        assert planned.changed(Collective("mesh2d")) is PATHS
        planned.changed(Collective("all_to_all"))
        assert patience == [PATIENCE_SECONDS, 0.0, PATIENCE_SECONDS]
    finally:
        planned.close()


def test_rank_0_warns_for_all_that_no_newer_paths_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All ranks lose the same controller; the others log it at level INFO."""
    caplog.set_level("INFO", "netfold")

    def listener(
        call: object, name: str, on_paths: Callable[[Paths], None], on_end: Callable[[str, grpc.StatusCode], Any]
    ) -> Any:
        on_paths(PATHS)
        on_end("it has gone", grpc.StatusCode.UNAVAILABLE)
        return Mock()

    monkeypatch.setattr(path_client, "StreamListener", listener)
    for rank in range(3):
        PathClient(Mock(), Plan("j", 1, rank, 3, [], []), Collective("ring")).close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
    assert "rank 0 of 3: no newer paths (it has gone)" in caplog.messages[0]
