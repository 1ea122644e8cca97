# SPDX-License-Identifier: Apache-2.0
"""The arrays that a communicator takes, its end, and the errors of each."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import netfold
from netfold.host.api.communicator import Communicator
from netfold.host.errors import Busy, Closed, CollectiveTimeout, PeerLost
from netfold.host.innet.fold import FoldRail
from netfold.testing import loopback_job, on_every_rank
from netfold.wire import roce
from support.hosts.host import impatient
from support.hosts.insides import parts_of
from switch_support.ports import wait_for


@pytest.mark.parametrize("dtype", ["bool", "complex64", "uint32", "object"])
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    """The error says what came and what is supported, and nothing is sent."""
    with loopback_job(1) as (comm,):
        with pytest.raises(TypeError, match=f"array of {dtype}, .*expected one of float32, float64"):
            comm.allreduce(np.zeros(3, dtype))
        assert comm.stats().operations == 0


def test_arguments_that_make_no_sense_are_refused() -> None:
    """An unknown reduction, an average of integers and an unsuitable ``out`` are refused, and the communicator stays
    usable."""
    with loopback_job(1) as (comm,):
        x = np.zeros(3, np.float32)
        with pytest.raises(ValueError, match="op='xor'"):
            comm.allreduce(x, op="xor")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="average of integers"):
            comm.allreduce(x.astype(np.int32), op="average")
        with pytest.raises(ValueError, match=r"out is float32\[4\]: expected float32\[3\]"):
            comm.allreduce(x, out=np.zeros(4, np.float32))
        with pytest.raises(ValueError, match=r"out is int32\[3\]: expected float32"):
            comm.allreduce(x, out=np.zeros(3, np.int32))
        with pytest.raises(TypeError, match="list"):
            comm.allreduce(x, out=[0.0])  # type: ignore[arg-type]
        frozen = np.zeros(3, np.float32)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            comm.allreduce(x, out=frozen)
        assert comm.allreduce(x).tolist() == [0, 0, 0]


def _reduce(x: NDArray[Any], comm: Communicator) -> NDArray[Any]:
    return comm.allreduce(x)


def test_arrays_of_any_layout_go_through_a_copy() -> None:
    """Strided, transposed, Fortran, big-endian and read-only sources work, and strided and overlapping results."""
    with loopback_job(2) as comms:
        base = np.arange(600, dtype=np.float32).reshape(20, 30)
        frozen = base.copy()
        frozen.flags.writeable = False
        for x in (base[::2, ::3], base.T, np.asfortranarray(base), base.astype(">f4"), frozen, base[::-1]):
            for out in on_every_rank(comms, partial(_reduce, x)):
                assert out.dtype == np.float32
                assert (out == 2 * x).all()
        wide = [np.zeros((20, 60), np.float32) for _ in comms]
        on_every_rank(comms, lambda c: c.allreduce(base, out=wide[c.rank][:, ::2]))
        assert (wide[0][:, ::2] == 2 * base).all()
        assert (wide[0][:, 1::2] == 0).all()
        shifted = [np.arange(1001, dtype=np.float32) for _ in comms]
        on_every_rank(comms, lambda c: c.allreduce(shifted[c.rank][:-1], out=shifted[c.rank][1:]))
        assert (shifted[0][1:] == 2 * np.arange(1000)).all()


def test_barrier_waits_for_the_last_rank() -> None:
    """No rank is past the barrier before every rank has come to it."""
    with loopback_job(3) as comms:
        arrived: list[int] = []
        seen: list[int] = []
        gate = threading.Event()

        def call(comm: Communicator) -> None:
            if comm.rank == 0:
                gate.wait(5)
            arrived.append(comm.rank)
            if comm.rank == 2:
                gate.set()
            comm.barrier()
            seen.append(len(arrived))

        on_every_rank(comms, call)
        assert seen == [3, 3, 3]


def test_two_threads_at_once_are_refused() -> None:
    """The second caller gets Busy, and the first one's operation goes on."""
    with loopback_job(2) as comms:
        inside = threading.Thread(target=lambda: comms[0].barrier(), daemon=True)
        inside.start()
        while not comms[0].flight():
            pass
        with pytest.raises(Busy, match="another thread"):
            comms[0].barrier()
        comms[1].barrier()
        inside.join(60)
        assert not inside.is_alive()
        on_every_rank(comms, lambda c: c.barrier())


def test_a_closed_communicator_says_so_and_keeps_its_totals() -> None:
    """close() may be called twice; statistics stay readable; collectives raise Closed."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(10, np.float32)))
        comms[0].close()
        comms[0].close()
        assert comms[0].stats().operations == 1
        with pytest.raises(Closed):
            comms[0].barrier()




def test_importing_netfold_is_light() -> None:
    """`import netfold` loads neither numpy nor gRPC; an unknown name is an AttributeError."""
    code = "import sys, netfold; print({'numpy', 'grpc', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
    with pytest.raises(AttributeError, match="allreduce"):
        netfold.all_reduce  # noqa: B018


def test_a_rank_with_one_rail_does_not_import_what_several_rails_need() -> None:
    """Neither their policy nor the folds of machines with several ranks: a sixth of the processor time of a start."""
    code = "import sys, netfold.host.api.enduring; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = set(found.stdout.split())
    assert "netfold.host.api.assembly" in imported
    assert not {name for name in imported if name.startswith("netfold.host.rails")}
    assert "netfold.host.innet.parallel" not in imported


def test_what_was_routed_here_is_no_result() -> None:
    """A switch without entries for the job routes the neighbour's contribution to this rank's queue pair: its TTL shows
    that, it never enters a sum, and the error says so."""
    with loopback_job(2, ttl=roce.RESULT_TTL - 1) as comms, futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(comm.allreduce, np.ones(300, np.int32)) for comm in comms]
        rails = [cast(FoldRail, parts_of(comm).dispatch.switches) for comm in comms]
        wait_for(lambda: all(rail.core.unfolded() for rail in rails))
        impatient(comms, 0.1)
        for call in calls:
            error = call.exception(60)
            assert isinstance(error, CollectiveTimeout)
            assert "came from the rank before as it sent them: a switch has no entries of this job" in str(error)


@pytest.mark.parametrize(
    ("rail", "leave", "says"),
    [
        ("tcp", lambda comm: comm.close(), "rank 1 left after operation 2;"),
        ("tcp", lambda comm: comm.close("all is learnt"), "rank 1 left after operation 2: all is learnt;"),
        ("roce", lambda comm: comm.close("all is learnt"), "rank 1 left after operation 2: all is learnt;"),
        ("tcp", lambda comm: comm.close("file x\udcff"), "rank 1 left after operation 2: file x?;"),
        ("tcp", lambda comm: comm.__exit__(KeyError, KeyError("x"), None), "after operation 2: KeyError: 'x';"),
        ("tcp", lambda comm: comm.__exit__(ValueError, ValueError("a\nb"), None), "after operation 2: ValueError: a;"),
        ("tcp", lambda comm: comm.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None),
         "after operation 2: KeyboardInterrupt;"),
        ("tcp", lambda comm: comm.__exit__(None, None, None), "rank 1 left after operation 2;"),
        ("roce", lambda comm: comm.__exit__(None, None, None), "rank 1 left after operation 2;"),
    ],
)
def test_a_rank_that_leaves_says_when_and_why(rail: Any, leave: Callable[[Communicator], None], says: str) -> None:
    """Without a controller, too: by close, with a reason or without, and at the end of a with block, with an error or
    without."""
    with loopback_job(2, rail=rail) as comms:
        for _ in range(2):
            on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
        leave(comms[1])
        with pytest.raises(PeerLost) as told:
            comms[0].allreduce(np.ones(4, np.float32))
        assert says in str(told.value)
        assert "its own error" not in str(told.value)


def test_two_threads_that_close_end_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One leaves the job and frees the engine's memory, which the other one would read after that."""
    with loopback_job(2) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
        sequencer, both, left = parts_of(comms[0]).sequencer, threading.Barrier(2, timeout=30), []
        wait_for_others, leave = sequencer._wait_for_others, parts_of(comms[0]).membership.leave

        def together() -> bool:
            both.wait()  # neither of the two has found it closed
            return wait_for_others()

        monkeypatch.setattr(sequencer, "_wait_for_others", together)
        monkeypatch.setattr(parts_of(comms[0]).membership, "leave", lambda *said: left.append(said) or leave(*said))
        closing = [threading.Thread(target=comms[0].close) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(30)
        assert len(left) == 1


EXITS = """
import sys
import numpy as np
from netfold.testing import loopback_job, on_every_rank
job = loopback_job(2, rail="tcp")
comms = job.__enter__()
on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.float32)))
closed = type(comms[0]).close
type(comms[0]).close = lambda comm, reason="": print(comm.rank, reason) or closed(comm, reason)
if len(sys.argv) > 1:
    raise ValueError(sys.argv[1])
"""


@pytest.mark.parametrize("error", [[], ["wrong"]])
def test_who_does_not_close_leaves_at_the_end_of_the_process(error: list[str]) -> None:
    """An exit handler closes what is open, and says by which exception the process ended."""
    program = [sys.executable, "-c", EXITS, *error]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    said = "its process ended" + (" by ValueError: wrong" if error else "")
    assert sorted(done.stdout.splitlines()) == [f"0 {said}", f"1 {said}"], done.stderr
