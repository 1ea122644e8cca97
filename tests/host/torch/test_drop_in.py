# SPDX-License-Identifier: Apache-2.0
"""The expectations of programs that were written for torch's own backends hold for ours."""

from __future__ import annotations

from typing import Any

import pytest

from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

from support.hosts.torch import results_of

pytestmark = pytest.mark.slow
RANKS = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of every rank of rank_torch_drop_in.py."""
    return results_of("rank_torch_drop_in.py", tmp_path_factory.mktemp("torch"), RANKS)


def test_a_group_may_be_named_with_its_device(found: list[dict[str, Any]]) -> None:
    """"cpu:netfold" and "cpu:netfold,cuda:netfold" are as "netfold" is: it folds, and groups beside it are planned
    through the store."""
    for rank in found:
        assert rank["names"]["rail"] == "innet"
        assert rank["names"]["sums"] == [2.0, 4.0, 2.0]


def test_a_group_of_which_a_part_would_be_dropped_is_refused(found: list[dict[str, Any]]) -> None:
    """Another backend beside ours is refused with the names, in any order, by new_group and by a mesh."""
    for rank in found:
        assert rank["names"]["refused"]
        for asked, error in rank["names"]["refused"].items():
            assert error.startswith("ValueError: backend="), (asked, error)
            assert "'netfold' is for tensors on all devices, and torch would drop the other backend" in error


def test_a_destroyed_group_is_gone_and_a_forked_child_frees_nothing(found: list[dict[str, Any]]) -> None:
    """Nothing of ours keeps a destroyed group, whose calls are refused; a child that collects garbage does not crash,
    and is refused its parent's groups."""
    for rank in found:
        assert rank["forked"]["gone"], "a destroyed group is still there"
        assert rank["forked"]["child's status"] == 0
        assert rank["forked"]["child's uses"] == 0, "a child's call of its parent's group was not refused"
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


def test_the_profiler_sees_every_call(found: list[dict[str, Any]]) -> None:
    """Each is an event of its own, with the shapes of its inputs, which the caller's thread does not end."""
    events = {
        "all_reduce": ("all_reduce", [[6]]), "broadcast, strided": ("broadcast", [[6]]), "gather": ("gather", [[6]]),
        "all_gather": ("all_gather", [[6]]), "all_gather_into_tensor": ("all_gather", [[6]]),
        "reduce_scatter_tensor": ("reduce_scatter", [[12]]), "reduce_scatter": ("reduce_scatter", [[6], [6]]),
        "all_to_all_single": ("all_to_all", [[12]]), "all_to_all": ("all_to_all", [[6], [6]]),
        "barrier": ("barrier", []), "reduce": ("reduce", [[6]]),
    }
    for rank in found:
        for call, (name, shapes) in events.items():
            assert rank["seen"][call] == [[f"netfold:{name}", shapes, True]], call
        assert all(rank["seen"].values()), rank["seen"]
    assert [rank["seen"]["send"] for rank in found] == [
        [["netfold:recv", [[6]], True]], [["netfold:send", [[6]], True]]
    ]
    assert found[0]["seen"]["scatter"] == [["netfold:scatter", [[6], [6]], True]]


def test_a_call_takes_no_longer_than_it_allows_itself(found: list[dict[str, Any]]) -> None:
    """By an argument, by options, by ``wait``, and for futures; and each call is counted, on all ranks alike."""
    first, second = (rank["timed"] for rank in found)
    for how in ("barrier", "barrier's options", "argument", "options", "wait", "broadcast"):
        assert first[how].startswith("CollectiveTimeout: Timed out: "), (how, first[how])
        assert "not done within the 0.0" in first[how]
    assert "CollectiveTimeout: Timed out: " in first["future"]
    assert first["result"] == 1  # WorkResult.TIMEOUT
    assert "under way" in first["duration"]
    for rank in (first, second):
        assert rank["done"] == [0, True, True]  # WorkResult.SUCCESS
        assert rank["counted"] == 9


def test_torchs_own_hooks_train_as_with_gloo(found: list[dict[str, Any]]) -> None:
    """None, the built-in ones in C++, and those in Python, of which PowerSGD waits for collectives in callbacks."""
    for rank in found:
        assert len(rank["hooked"]) == 5
        for hook, ways in rank["hooked"].items():
            assert ways["ours"] == pytest.approx(ways["gloo"], rel=1e-3 if "16" in hook else 1e-5), hook


def test_the_debug_mode_that_is_not_followed_is_named_once(found: list[dict[str, Any]]) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL puts no checks around our groups, which one warning says; they work as before."""
    for number, rank in enumerate(found):
        assert rank["detailed"]["sum"] == [4.0, 4.0]
        assert len(rank["detailed"]["said"]) == (1 if number == 0 else 0), "rank 0 warns for all"
    assert "torch does not put its checks around groups of backend 'netfold'" in found[0]["detailed"]["said"][0]
