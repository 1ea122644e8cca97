# SPDX-License-Identifier: Apache-2.0
"""How a job's packets choose paths: what is asked for, and what is refused by name."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from netfold.host.api.join_settings import JoinSettings
from netfold.host.client.jobs import JobClient
from netfold.host.client.path_client import PlannedPaths
from netfold.host.opening import open_mesh
from netfold.host.opening.open_mesh import PATHS_VARIABLE, path_choice
from netfold.wire.plan import Plan


def test_the_argument_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either, paths are those that the controller plans."""
    monkeypatch.delenv(PATHS_VARIABLE, raising=False)
    assert path_choice(None, "tcp") == "planned"
    monkeypatch.setenv(PATHS_VARIABLE, "spray")
    assert path_choice(None, "tcp") == "spray"
    assert path_choice("hashed", "tcp") == "hashed"


@pytest.mark.parametrize("rail", ["tcp", "auto", "innet"])
def test_tcp_cannot_recycle_ports(rail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """REPS is refused where connections carry what goes between the hosts, and taken where queue pairs do."""
    monkeypatch.setenv(PATHS_VARIABLE, "reps")
    with pytest.raises(ValueError, match=f"'reps'.*rail='{rail}'.*give rail='roce'"):
        path_choice(None, rail)
    with pytest.raises(ValueError, match="a TCP connection cannot"):
        JoinSettings("10.0.0.1", rail, paths="reps")  # type: ignore[arg-type]
    assert path_choice(None, "roce") == "reps"
    JoinSettings("10.0.0.1", "roce", paths="reps")


def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists those that there are."""
    monkeypatch.setenv(PATHS_VARIABLE, "shortest")
    with pytest.raises(ValueError, match=r"paths='shortest'.*expected one of planned, hashed, spray, reps"):
        path_choice(None, "tcp")


@pytest.mark.parametrize(("ports", "taken"), [([61441, 61442], [61441, 61442]), ([61441], [])])
def test_recycled_ports_are_those_that_name_paths_and_the_plans_stream_ends(
    ports: list[int], taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are several; the controller's later plans are of no use to packets that choose by themselves."""
    planned = Mock(spec=PlannedPaths, ports=ports)
    monkeypatch.setattr(open_mesh, "PlannedPaths", lambda client, plan: planned)
    found = open_mesh.roce_paths(Mock(spec=Plan), Mock(spec=JobClient), "reps", 64)
    assert found == {"ports": taken, "recycle": True, "reorder": 32}
    planned.close.assert_called_once_with()
