# SPDX-License-Identifier: Apache-2.0
"""What programs that were written for torch's own backends expect of one holds for ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from netfold.testing import subnet
from support import RANKS as PROGRAMS
from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

from support.torch import loopback_jobs, torchrun

RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of every rank of rank_torch_drop_in.py."""
    folder, net = tmp_path_factory.mktemp("torch"), subnet()
    where = f"unix:{folder}/jobs"
    with loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(RANKS)], where):
        script = PROGRAMS / "rank_torch_drop_in.py"
        torchrun(script, net, where, str(folder), ranks=RANKS, environment={}, timeout=200, forks=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def test_a_group_may_be_named_with_its_device(found: list[dict[str, Any]]) -> None:
    """"cpu:netfold" is a group as "netfold" is: it folds, and groups beside it are planned through the store."""
    for rank in found:
        assert rank["names"]["rail"] == "innet"
        assert rank["names"]["sums"] == [2.0, 4.0]


def test_a_group_of_which_a_part_would_be_dropped_is_refused(found: list[dict[str, Any]]) -> None:
    """Another device than the CPU is refused with the names, in any order, by new_group and by a mesh."""
    for rank in found:
        assert rank["names"]["refused"]
        for asked, error in rank["names"]["refused"].items():
            assert error.startswith("ValueError: backend="), (asked, error)
            assert "'netfold' is for tensors on the CPU alone: expected 'netfold' or 'cpu:netfold'" in error


def test_a_destroyed_group_is_gone_and_a_forked_child_frees_nothing(found: list[dict[str, Any]]) -> None:
    """Nothing of ours keeps a destroyed group, whose calls are refused; a child that collects garbage does not crash.
    """
    for rank in found:
        assert rank["forked"]["gone"], "a destroyed group is still there"
        assert rank["forked"]["child's status"] == 0
        assert "its process group was destroyed" in rank["forked"]["refused"]
        assert rank["forked"]["refused"].startswith("Closed: ")


def test_a_receive_that_cannot_be_filled_is_refused(found: list[dict[str, Any]]) -> None:
    """``recv`` into an expanded tensor is a ValueError with its shape and strides; the message stays for the next."""
    assert found[0]["unwritable"]["refused"].startswith("ValueError: recv into a tensor of (4,) with strides (0,)")
    assert found[0]["unwritable"]["next"] == [7.0] * 4


def test_every_call_does_the_same_in_every_mode(found: list[dict[str, Any]]) -> None:
    """In inference mode, of inference tensors outside of it, without gradients, of parameters, and in autocast."""
    for rank in found:
        assert len(rank["modes"]) == 20
        for call, by_mode in rank["modes"].items():
            assert by_mode == dict.fromkeys(by_mode, by_mode["none"]), call
            assert isinstance(by_mode["none"], list), (call, by_mode["none"])
    assert found[0]["modes"]["all_gather"]["inference"] == [[1.0] * 6, [2.0] * 6]
