# SPDX-License-Identifier: Apache-2.0
"""A rank that joins while no controller answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import grpc
import pytest

from netfold.host.client import jobs
from netfold.host.client.jobs import JobClient
from netfold.host.errors import JoinRefused
from netfold.wire.jobs import Join


@pytest.mark.parametrize(("timeout", "waited"), [(1.0, 1.0), (60.0, jobs.TAKE_OVER_SECONDS)])
def test_a_rank_that_joins_gives_up_when_nobody_comes_within_its_time_or_that_of_a_take_over(
    timeout: float, waited: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whichever is shorter, from the first attempt on."""
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Away(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "nobody is there"

    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    client = JobClient(f"unix:{tmp_path}/a,unix:{tmp_path}/b")
    monkeypatch.setattr(client, "_join", Mock(side_effect=Away()))
    with pytest.raises(JoinRefused, match="nobody answers"):
        client.join(Join("j", 1, 0, "10.0.0.1", "10.0.0.1:1", 1024, timeout=timeout))
    client.close()
    assert now - 100 == pytest.approx(waited, abs=2 * jobs.RETRY_SECONDS)
