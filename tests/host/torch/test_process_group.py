# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over NetFold: backend and hook train as gloo does, and report what goes wrong."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from support import RANKS as PROGRAMS
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402

import netfold.torch  # noqa: E402
from netfold.host.api.communicator import Communicator  # noqa: E402
from netfold.host.errors import Closed, CollectiveTimeout, JoinRefused, PlanError  # noqa: E402
from netfold.host.job_secret import derive  # noqa: E402
from netfold.host.torch.creation import create  # noqa: E402
from netfold.host.torch.group_log import warn_of_timeout  # noqa: E402
from netfold.host.torch.join import plan_by_store  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.host.torch.reducer import Reducer  # noqa: E402
from netfold.host.torch.tensors import as_array, reduces  # noqa: E402
from netfold.host.torch.work import TorchWork  # noqa: E402
from netfold.testing import loopback_job, on_every_rank, subnet  # noqa: E402
from netfold.torch import NetfoldState, Options  # noqa: E402
from support.hosts.host import impatient  # noqa: E402
from support.hosts.insides import messenger_of, reducer_of  # noqa: E402
from support.hosts.torch import FORKS, LoopbackJobs, loopback_jobs, torchrun  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "torch_cnn.py"
RANKS = 4
BOUND = 1e-5
"""Largest relative difference between a loss and gloo's within the first steps, as docs/torch.md states it."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[dict[str, Any]], LoopbackJobs]]:
    """The results of every rank of rank_torch.py, and the job service of those that folded."""
    folder, net = tmp_path_factory.mktemp("torch"), subnet()
    where = f"unix:{folder}/jobs"
    FORKS.warm([sys.executable, str(EXAMPLE)])  # scikit-learn, once for all ranks
    with loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(RANKS)], where) as jobs:
        torchrun(PROGRAMS / "rank_torch.py", net, where, str(folder), ranks=RANKS, environment={}, forks=True)
        yield [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)], jobs


Trained = tuple[list[dict[str, Any]], LoopbackJobs]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "innet", "hook"])
@pytest.mark.parametrize("example", ["torch_cnn", "torch_lm"])
def test_losses_are_those_of_gloo(trained: Trained, example: str, way: str) -> None:
    """DistributedDataParallel learns as with gloo: by the backend, over TCP and in the network, and by the hook."""
    for rank in trained[0]:
        gloo = np.array(rank["losses"][example]["gloo"])
        assert gloo[-1] < gloo[0], "gloo itself does not learn"
        np.testing.assert_allclose(rank["losses"][example][way], gloo, rtol=BOUND)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "bound"), [(16, 0.02), (8, 0.03)])
def test_narrow_lanes_with_feedback_learn_as_whole_ones(trained: Trained, bits: int, bound: float) -> None:
    """In 60 steps of the hook on 16 and 8 bits the mean loss is within the bound of docs/torch.md, that of the last ten
    within 0.05, and the same on all ranks."""
    for rank in trained[0]:
        assert rank["long"] == trained[0][0]["long"]
        gloo, narrow = (np.array(rank["long"][way]) for way in ("gloo", f"{bits} bits"))
        assert gloo[-10:].mean() < 0.25 * gloo[0], "gloo itself does not learn"
        assert not np.array_equal(gloo, narrow), "nothing was narrowed"
        assert narrow.mean() == pytest.approx(gloo.mean(), rel=bound)
        assert narrow[-10:].mean() == pytest.approx(gloo[-10:].mean(), abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tcp", "innet"])
def test_reductions_are_those_of_gloo(trained: Trained, way: str) -> None:
    """Integers, maxima and what gloo carries are exact, and sums of floats right within rounding, whatever the
    strides."""
    for rank in trained[0]:
        difference = rank["differences"][way]
        exact = [kind for kind in difference if "int" in kind or kind.startswith(("max", "min"))]
        assert len(exact) == 12, exact
        assert {kind: difference.pop(kind) for kind in exact} == dict.fromkeys(exact, 0)
        assert max(difference.pop("sum of float64"), difference.pop("sum of float64 again")) < 4e-15
        # folded: one rounding to nearest; over TCP one after each addition, of partial sums that may be larger
        roundings = 1.01 if way == "innet" else 3 * 8
        assert difference.pop("half: sum of torch.float16") <= roundings * 2**-11
        assert difference.pop("half: sum of torch.bfloat16") <= roundings * 2**-8
        assert difference, "nothing in float32 was compared"
        assert max(difference.values()) < 4e-6  # sums of four values below 8


@pytest.mark.slow
def test_gradients_go_through_the_switch(trained: Trained) -> None:
    """In a group that folds, all float32 gradients of both examples pass the switch, in several buckets."""
    results, jobs = trained
    for rank in results:
        assert rank["rails"] == {"tcp": "tcp", "innet": "innet"}
        steps = len(rank["losses"]["torch_cnn"]["gloo"])
        assert rank["folded"]["bytes"] >= steps * rank["parameters"] * 4
        assert rank["folded"]["operations"] > 2 * 2 * steps, "one bucket a step: nothing can overlap with backward"
    assert sorted(jobs.reports) == list(range(RANKS)), "a rank did not leave the job"


@pytest.mark.slow
def test_sharded_training_is_that_of_gloo(trained: Trained) -> None:
    """FSDP, the old and the new one, shards and gathers through the communicator, over TCP and in the network, with
    gloo's losses."""
    for rank in trained[0]:
        for losses in rank["sharded"].values():
            gloo = losses.pop("gloo")
            assert gloo[-1] < gloo[0], "gloo itself does not learn"
            assert set(losses) == {"tcp", "innet"}
            for way, ours in losses.items():
                np.testing.assert_allclose(ours, gloo, rtol=BOUND, err_msg=way)


@pytest.mark.slow
def test_the_path_of_each_kind_is_logged_once(trained: Trained) -> None:
    """The path of an operation, by fold, between the hosts or by gloo, is logged once for each kind and group."""
    for rank in trained[0]:
        for job, folded, scattered in (("default", "tcp", "TCP, ring"), ("default.2", "innet", "innet")):
            said = [line for line in rank["said"] if f"job={job!r}" in line]
            left = [line for line in said if "gloo does it" in line]
            assert len(left) == 1, left
            assert "allreduce, bor of int32 has no path through NetFold: gloo does it" in left[0]
            for kind in ("sum of float64", "sum of int64", "product of uint8"):
                assert sum(f"allreduce, {kind} goes over tcp" in line for line in said) == 1, said
            for kind in ("sum of float32", "sum of bfloat16", "max of float16", "min of int32", "average of float32"):
                assert sum(f"allreduce, {kind} goes over {folded}" in line for line in said) == 1, said
            for kind, way in ((r"all_?gather\S*", scattered), (r"reduce_scatter\S*, \w+ of float32", scattered)):
                named = [line for line in said if re.search(rf": {kind} goes over ", line)]
                assert named, said
                assert all(line.endswith(f" goes over {way}") for line in named), named
                assert len(set(named)) == len(named)


@pytest.mark.slow
def test_backward_names_the_rank_that_never_calls(trained: Trained) -> None:
    """Where a rank never calls, DistributedDataParallel's backward raises on all others, and the error names it."""
    results = trained[0]
    assert results[-1]["error"] == ""
    for rank in results[:-1]:
        assert "CollectiveTimeout" in rank["error"] or "PeerLost" in rank["error"], rank["error"]
        assert f"rank {RANKS - 1}" in rank["error"], rank["error"]


@pytest.mark.slow
@pytest.mark.parametrize("example", ["torch_cnn", "torch_lm"])
def test_examples_run_as_their_first_lines_say(trained: Trained, example: str) -> None:
    """Each example's own command line works without a fabric, and rank 0 prints the result."""
    says = [rank["printed"][example] for rank in trained[0]]
    assert "after 2 steps" in says[0]
    assert says[1:] == [""] * (RANKS - 1)


def test_hook_returns_before_the_sum_is_there() -> None:
    """The hook's future is pending until the other rank calls too, so that backward goes on."""
    with loopback_job(2, rail="tcp") as comms:
        states = [NetfoldState(comm) for comm in comms]
        tensors = [torch.full((1000,), float(rank)) for rank in range(2)]
        first = states[0].reduce(tensors[0])
        assert not first.done(), "the average is there although rank 1 has not given its part"
        second = states[1].reduce(tensors[1])
        for future, tensor in zip((first, second), tensors, strict=True):
            assert future.wait() is tensor
            assert bool((tensor == 0.5).all())
        for state in states:
            state.close()


def test_sum_is_left_alone_without_average() -> None:
    """average=False gives the sum; bfloat16 and float64 gradients go through the communicator, too."""
    with loopback_job(2, rail="tcp") as comms:
        states = [NetfoldState(comm, average=False) for comm in comms]
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            tensors = [torch.ones(7, dtype=dtype) * (rank + 1) for rank in range(2)]
            for future in [state.reduce(tensor) for state, tensor in zip(states, tensors, strict=True)]:
                assert future.wait().tolist() == [3.0] * 7
        for state in states:
            state.close()


def test_several_are_under_way_in_order() -> None:
    """Works complete in the order of their calls with the right results, and closing waits for all of them."""
    with loopback_job(3, rail="tcp") as comms:
        reducers = [Reducer(comm) for comm in comms]
        tensors = [[torch.full((size,), rank + size, dtype=torch.int32) for size in range(1, 20)] for rank in range(3)]
        pending = [
            [reducer.allreduce(t, "sum") for t in mine] for reducer, mine in zip(reducers, tensors, strict=True)
        ]
        for reducer in reducers:
            reducer.close()
        for mine in pending:
            for size, one in enumerate(mine, start=1):
                assert one.done()
                assert one.future.done()
                assert one.tensors[0].tolist() == [3 * size + 3] * size
        with pytest.raises(Closed):
            reducers[0].allreduce(torch.ones(1), "sum")


def test_waiting_has_a_bound_and_a_named_error() -> None:
    """wait(timeout) gives up by itself, the operation by the communicator's timeout; the future says the same."""
    begins = threading.Event()
    with loopback_job(2, rail="tcp") as comms:
        reducer = Reducer(comms[0])
        comms[0].later(begins.wait, "what is before it")
        pending = reducer.allreduce(torch.ones(3), "sum")
        work = TorchWork(pending)
        with pytest.raises(CollectiveTimeout, match="it goes on"):
            work.wait(timedelta(milliseconds=1))
        assert not work.is_completed()
        assert work.exception() is None
        impatient(comms, 0.5)
        begins.set()
        with pytest.raises(CollectiveTimeout, match="rank 1"):
            work.wait()
        with pytest.raises(RuntimeError, match="CollectiveTimeout"):
            work.get_future().wait()
        assert work.is_completed()
        assert not work.is_success()
        assert isinstance(work.exception(), CollectiveTimeout)
        reducer.close()


def test_no_controller_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NETFOLD_CONTROLLER nothing falls back to TCP by itself."""
    monkeypatch.delenv("NETFOLD_CONTROLLER", raising=False)
    with pytest.raises(JoinRefused, match="NETFOLD_CONTROLLER"):
        netfold.torch.join(rank=0, world=2)


def test_missing_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names variables that torchrun would have set, and values that are no numbers."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "NETFOLD_ADDRESS", "NETFOLD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="RANK=None"):
        netfold.torch.join(Options(controller="store"))
    with pytest.raises(ValueError, match="NETFOLD_ADDRESS"):
        netfold.torch.join(Options(controller="store"), rank=0, world=1)
    with pytest.raises(ValueError, match="needs a store"):
        netfold.torch.join(Options(controller="store", address="127.0.0.1"), rank=0, world=1)
    monkeypatch.setenv("NETFOLD_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="NETFOLD_TIMEOUT='soon'"):
        netfold.torch.join(Options(controller="store", address="127.0.0.1"), rank=0, world=1)


def test_store_carries_a_plan_every_time_anew() -> None:
    """All ranks get one epoch, one secret and all addresses; joining again does not read what the first time has left
    in the store."""
    store = dist.HashStore()
    plans: dict[tuple[int, int], Any] = {}

    def rank(me: int) -> None:
        for turn in range(2):
            where = f"127.0.0.{me + 1}"
            plans[turn, me] = plan_by_store(store, "j", me, 3, where, f"{where}:{turn + 1}", timeout=10)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(rank, range(3), timeout=30))
    for turn in range(2):
        mine = [plans[turn, me] for me in range(3)]
        assert len({plan.epoch for plan in mine}) == 1
        assert [[peer.tcp for peer in plan.peers] for plan in mine] == [
            [f"127.0.0.{me + 1}:{turn + 1}" for me in range(3)]
        ] * 3
        assert all("store" in plan.reason and not plan.trees for plan in mine)
        assert len({derive(plan.secret, "a test") for plan in mine}) == 1
    assert plans[0, 0].secret != plans[1, 0].secret


def test_store_names_ranks_that_do_not_join() -> None:
    """Waiting at the store is bounded; the error names ranks that are missing or have another version."""
    with pytest.raises(JoinRefused, match=r"ranks \[1, 2\] have not joined"):
        plan_by_store(dist.HashStore(), "j", 0, 3, "127.0.0.1", "127.0.0.1:1", timeout=0.05)
    store = dist.HashStore()
    store.set("netfold/j/1/1", "999 2 5 127.0.0.2 127.0.0.2:1")
    with pytest.raises(PlanError, match="rank 1 speaks protocol 999"):
        plan_by_store(store, "j", 0, 2, "127.0.0.1", "127.0.0.1:1", timeout=5)


@pytest.mark.parametrize(("places", "machines", "words"), [
    (["127.0.1.1", "10.0.0.2", "10.0.0.3"], ["a", "b", "b"], "rank 0 is at 127.0.1.1, a loopback address"),
    (["127.0.1.1", "127.0.1.1", "127.0.1.1"], ["a", "b", "c"], "rank 0 is at 127.0.1.1, a loopback address"),
    (["0.0.0.0", "10.0.0.2", "10.0.0.3"], ["a", "b", "b"], "rank 0, at '0.0.0.0'"),
])
def test_all_ranks_hear_at_the_store_of_an_address_that_keeps_them_apart(
    places: list[str], machines: list[str], words: str
) -> None:
    """The rank whose address it is, too: it would wait for the others, who connect to something else."""
    store = dist.HashStore()
    said: dict[int, str] = {}

    def rank(me: int) -> None:
        at = f"{places[me]}:{me + 1}"
        with pytest.raises(PlanError) as caught:
            plan_by_store(store, "j", me, 3, places[me], at, timeout=10, machine=machines[me])
        said[me] = str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(rank, range(3), timeout=30))
    assert sorted(said) == [0, 1, 2]
    assert all(words in text and "set NETFOLD_ADDRESS of rank 0" in text for text in said.values())


def test_tensors_are_seen_in_place() -> None:
    """Arrays share the tensor's memory, strided and bfloat16 ones too; other devices and layouts are refused."""
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    array, name = as_array(tensor.T)
    array[1, 2] = 99
    assert tensor[2, 1] == 99
    assert name is None
    half = torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    bits, name = as_array(half)
    assert (bits.dtype.name, name, bits.tolist()) == ("uint16", "bfloat16", [0x3F80] * 4)
    for wrong in (torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")):
        with pytest.raises(ValueError, match="expected a dense one on the CPU"):
            as_array(wrong)
    assert not reduces(torch.ones(2, 2).to_sparse(), "sum")


def test_wrong_options_are_refused() -> None:
    """pg_options of another backend are refused."""
    with pytest.raises(TypeError, match="expected netfold"):
        create(None, {"controller": "store"})  # type: ignore[arg-type]


def test_registering_twice_does_nothing() -> None:
    """``import netfold.torch`` has registered the backend; register() may be called again."""
    netfold.torch.register()
    assert "netfold" in dist.Backend.backend_list


def test_everyone_may_share_one_communicator() -> None:
    """Allreduces of the caller's own and of the hook keep the order of their calls."""

    def work(comm: Communicator) -> list[float]:
        state = NetfoldState(comm, average=False)
        tensor = torch.ones(1000)
        future = state.reduce(tensor)
        own = comm.allreduce(np.ones(3, np.float32))
        total = [float(future.wait()[0]), float(own[0])]
        state.close()
        return total

    with loopback_job(2, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [[2.0, 2.0]] * 2


def test_all_that_a_group_does_has_the_communicators_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """``Options(timeout=)`` and NETFOLD_TIMEOUT set it; torch's own is for the ranks to come together.  What sets a
    group's time-out later changes neither gloo's nor the communicator's, which one warning says."""
    store = dist.HashStore()
    warn_of_timeout.cache_clear()
    with loopback_job(2, rail="tcp", timeout=1.0) as comms:
        one, other = on_every_rank(comms, lambda comm: NetfoldGroup(store, comm, timedelta(seconds=30)))
        for seconds in (1, 5):
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), one)
            one.set_timeout(timedelta(seconds=seconds))
        said = [record.message for record in caplog.records if "time-out" in record.message]
        assert len(said) == 1
        assert "stays at 1 s, and is not set to 5 s" in said[0]
        assert "Options(timeout=)" in said[0]
        with pytest.raises(RuntimeError, match="1000ms"):
            one.allreduce([torch.ones(3, dtype=torch.int8)]).wait()
        with pytest.raises(CollectiveTimeout, match="nothing moved for 1 s: rank 1"):
            one.recv([torch.ones(3)], 1).wait()
        with pytest.raises(CollectiveTimeout, match="nothing moved for 1 s: rank 1"):
            one.allreduce([torch.ones(3)]).wait()
        for group in (one, other):
            group.shutdown()


def test_an_abort_ends_a_shutdown_that_another_thread_has_begun(caplog: pytest.LogCaptureFixture) -> None:
    """A shutdown that sends what nobody receives does not hold up an abort, nor raise, and all parts are closed."""
    store = dist.HashStore()
    with loopback_job(2, rail="tcp") as comms:
        one, other = on_every_rank(comms, lambda comm: NetfoldGroup(store, comm, timedelta(seconds=20)))
        messenger, inner = messenger_of(one), one._inner
        ended: list[str] = []
        one._inner = type("Inner", (), {"shutdown": lambda _: ended.append("inner")})()
        unsent = one.send([torch.zeros(8 << 20)], 1, 0)
        closing = threading.Thread(target=one.shutdown)
        closing.start()
        while not messenger.closing:
            assert closing.is_alive()
        one.abort()
        closing.join(20)
        assert not closing.is_alive()
        assert ended == ["inner"]
        with pytest.raises(Closed, match="1 messages"):
            unsent.wait()
        with pytest.raises(Closed, match="destroyed"):
            _ = one.communicator
        other.shutdown()
        inner.shutdown()
    assert "1 messages" in caplog.text


def test_an_abort_does_nothing_whenever_a_shutdown_ends() -> None:
    """The group may leave on another thread between any two things that the abort looks at."""
    store, left = dist.HashStore(), [0]

    class Leaving(NetfoldGroup):
        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name == "__dict__" and left[0]:
                left[0] -= 1
                if not left[0]:
                    other = threading.Thread(target=self.shutdown)
                    other.start()
                    other.join(20)
            return found

    for looks in range(1, 5):
        with loopback_job(1, rail="tcp") as comms:
            group = Leaving(store, comms[0], timedelta(seconds=20))
            left[0] = looks
            group.abort()
            assert not left[0]
            with pytest.raises(Closed, match="destroyed"):
                _ = group.communicator


def test_what_one_part_raises_at_the_end_keeps_no_other_part_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the collectives or the messages end with, the rest is closed, and the group has left."""
    store = dist.HashStore()
    with loopback_job(2, rail="tcp") as comms:
        for group in on_every_rank(comms, lambda comm: NetfoldGroup(store, comm, timedelta(seconds=20))):
            messenger = messenger_of(group)
            monkeypatch.setattr(reducer_of(group), "close", Mock(side_effect=KeyError("cannot close")))
            with pytest.raises(KeyError, match="cannot close"):
                group.shutdown()
            with pytest.raises(Closed, match="destroyed"):
                messenger.send(np.ones(8, np.uint8), 1 - group.rank(), 0, [])
            with pytest.raises(Closed, match="destroyed"):
                _ = group.communicator
