# SPDX-License-Identifier: Apache-2.0
"""Data that torch.distributed moves between ranks moves over NetFold as over gloo: broadcast, reduce, gather, scatter,
all_to_all, barrier, and messages in any order."""

from __future__ import annotations

from typing import Any

import pytest

from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

from support.hosts.torch import results_of

pytestmark = pytest.mark.slow
RANKS = 4
KINDS = [
    "broadcasts", "reductions_to_one", "gathered_and_scattered", "exchanges", "lists", "messages", "order",
    "checkpointed",
]
"""Names of functions of rank_torch_moves.py."""
OURS = ("broadcast", "reduce, sum of float32", "gather", "scatter", "alltoall", "barrier", "send", "recv")
"""Beginnings of the lines that name what goes through NetFold."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of every rank of rank_torch_moves.py."""
    return results_of("rank_torch_moves.py", tmp_path_factory.mktemp("torch"), RANKS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_gets_what_gloo_gives_it(found: list[dict[str, Any]], kind: str) -> None:
    """Values, shapes and dtypes, sources of messages and objects are gloo's, over TCP and where switches fold."""
    assert found[0][kind]["gloo"]
    for results in found:
        assert set(results) == {*KINDS, "said"}
        ways = dict(results[kind])
        gloo = ways.pop("gloo")
        assert ways == {"tcp": gloo, "innet": gloo}


def test_only_what_torch_alone_defines_is_left_to_gloo(found: list[dict[str, Any]]) -> None:
    """The log names gloo for the bitwise reduction alone, and a path of ours for all else."""
    for results in found:
        left = [line for line in results["said"] if "gloo does it" in line]
        assert len(left) == 2  # once for each of our groups
        assert all(" reduce, bor of int32 has no path" in line for line in left), left
        for kind in OURS:
            assert any(f": {kind}" in line and " goes over " in line for line in results["said"]), kind
