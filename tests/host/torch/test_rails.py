# SPDX-License-Identifier: Apache-2.0
"""torch over several rails, as $NETFOLD_RAILS and $NETFOLD_PLANES name them: backend and hook."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support import RANKS as PROGRAMS
from support import needs
from support.hosts.loopback_rails import loopback_planes

pytest.importorskip("torch", reason=needs.reason("torch"))

from support.hosts.torch import torchrun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
RANKS = 2


def test_backend_and_hook_train_over_two_rails_as_gloo_does(tmp_path: Path) -> None:
    """Losses are those of gloo, in narrow lanes with error feedback near them; what the backend moves arrives, and both
    rails have carried a part.  Rank 0 says that reduce-scatters join nothing over several rails."""
    with loopback_planes(["tcp", "tcp"], RANKS) as fabric:
        planes = [
            " ".join(f"{n}={spec.plane.address}@{spec.plane.controller}" for n, spec in zip("ab", specs, strict=True))
            for specs in fabric.specs
        ]
        torchrun(
            PROGRAMS / "rank_torch_rails.py", str(tmp_path), "tcp@a+tcp@b", *planes, ranks=RANKS, environment={},
            forks=True,
        )
    for rank in range(RANKS):
        said = json.loads((tmp_path / f"{rank}.json").read_text())
        for way in ("backend", "hook", "narrow"):
            np.testing.assert_allclose(said[way], said["gloo"], rtol=1e-5)
        assert said["moved"] == [2 * 49_999.0, 30_000.0, 3.0, 3.0]
        warned = [line for line in said["warned"] if "Options(together=True)" in line and "several rails" in line]
        assert bool(warned) == (rank == 0)
        assert min(said["shares"].values()) > 0
        assert set(said["shares"]) == {"tcp@a", "tcp@b"}
