# SPDX-License-Identifier: Apache-2.0
"""Features of DistributedDataParallel and FSDP work over NetFold as over gloo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

from support.hosts.torch import results_of

pytestmark = pytest.mark.slow
RANKS = 4
FEATURES = [
    "gradients_added_up", "parameters_unused", "a_static_graph", "uneven_inputs", "a_checkpoint", "a_compiled_model",
    "sharded_moments", "sharded_parameters", "the_hook",
]
"""Names of functions of rank_torch_features.py."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of every rank of rank_torch_features.py."""
    return results_of("rank_torch_features.py", tmp_path_factory.mktemp("torch"), RANKS)


@pytest.mark.parametrize("feature", FEATURES)
def test_losses_are_those_of_gloo(found: list[dict[str, Any]], feature: str) -> None:
    """With no_sync, find_unused_parameters, static_graph, Join, checkpoints, torch.compile, ZeRO, FSDP and the hook,
    losses over TCP and in the network are gloo's within rounding."""
    for rank, results in enumerate(found):
        assert set(results) == {*FEATURES, "resumed"}
        ways = dict(results[feature])
        gloo = ways.pop("gloo")
        assert len(gloo) == (4 + rank if feature == "uneven_inputs" else 4)
        assert ways
        for way, losses in ways.items():
            np.testing.assert_allclose(losses, gloo, rtol=1e-4, err_msg=f"rank {rank}, {way}")


def test_a_resumed_run_is_the_one_without_a_break(found: list[dict[str, Any]]) -> None:
    """With the hook in 8 bits, a checkpoint holds the residuals, and the losses after it are the same to the last bit;
    without them they differ."""
    for results in found:
        runs = results["resumed"]
        assert runs["resumed"] == runs["whole"]
        assert runs["forgotten"] != runs["whole"]
