# SPDX-License-Identifier: Apache-2.0
"""The promise of ``reproducible=True`` for every rail, algorithm and group: the same bits, those of the exact sum."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.collectives import ALLREDUCE
from netfold.host.errors import RankMismatch
from netfold.testing import loopback_job, on_every_rank
from support.hosts.collectives import same
from support.hosts.exact import expected, values_of
from support.hosts.loopback_rails import loopback_rails


def contributions(ranks: int, size: int, dtype: Any = np.float32) -> list[NDArray[Any]]:
    """Floats whose sum depends on the order in which they are added, a few of them by far the largest."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(size) * 2.0 ** rng.integers(-20, 4, size) for _ in range(ranks)]
    arrays[0][:: size // 7] *= 1e30
    arrays[-1][:: size // 7] = -arrays[0][:: size // 7]
    return [array.astype(dtype) for array in arrays]


def test_every_rail_and_algorithm_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded, folded with ranks that share machines, and by every algorithm between the hosts, with ranks in any order,
    sums and averages are the exact ones rounded once."""
    arrays = contributions(4, 700)
    wanted = {op: expected(arrays, op, "float32") for op in ("sum", "average")}

    def both(comm: Communicator, turn: int, algorithm: str | None) -> list[list[float]]:
        mine = arrays[(comm.rank + turn) % 4]
        return [values_of(comm.allreduce(mine, op=op, algorithm=algorithm, reproducible=True), "float32")
                for op in ("sum", "average")]

    ways: list[tuple[dict[str, Any], list[str | None]]] = [
        ({"rail": "innet"}, [None]), ({"rail": "innet", "members": 2, "loss": 0.02}, [None]),
        ({"rail": "tcp"}, [*ALLREDUCE]), ({"rail": "roce"}, ["ring"]),
    ]
    monkeypatch.setenv("NETFOLD_ALGO", "auto")
    for turn, (settings, algorithms) in enumerate(ways):
        with loopback_job(4, **settings) as comms:
            for algorithm in algorithms:
                for result in on_every_rank(comms, partial(both, turn=turn, algorithm=algorithm)):
                    assert result == [wanted["sum"], wanted["average"]], (settings, algorithm)


def test_several_rails_give_the_same_bits() -> None:
    """Cut over a rail that folds and one over TCP, whatever their shares, sums are the exact ones rounded once."""
    arrays = contributions(2, 9000)
    wanted = expected(arrays, "sum", "float32")
    with loopback_rails(["innet", "tcp"], 2, reproducible=True) as comms:
        result = same(on_every_rank(comms, lambda comm: comm.allreduce(arrays[comm.rank])))
        assert values_of(result, "float32") == wanted
        with pytest.raises(ValueError, match="lane_bits=16"):
            comms[0].allreduce(arrays[0], lane_bits=16)


def test_what_carries_it_is_said() -> None:
    """The flight recorder has the stages with their bytes and rail, and ``explain`` what is sent and how."""
    arrays = contributions(2, 700)
    with loopback_job(2) as comms:
        same(on_every_rank(comms, lambda comm: comm.allreduce(arrays[comm.rank], name="bucket 3", reproducible=True)))
        records = [(record.name, record.op, record.dtype, record.path) for record in comms[0].flight()]
        assert records == [
            ("bucket 3, scales", "max", "int32", "innet"), ("bucket 3, digits", "sum", "int32", "innet"),
            ("bucket 3, tails", "sum", "int32", "innet"),
        ]
        said = comms[0].explain(700 * 4, reproducible=True)
        assert said.startswith("reproducible, as integers: 24 bytes of scales, then up to 2 lanes of int32 an element")
        assert "5600 bytes" in said
        assert "reproducible" not in comms[0].explain(700 * 4)


def test_all_reductions_of_floats_in_any_layout() -> None:
    """reduce, reduce_scatter, groups, asynchronous calls, arrays that are not plain, out= that overlaps, float64,
    float16 and maxima; integers go as they are."""
    arrays = contributions(3, 696)
    wanted = np.array(expected(arrays, "sum", "float32"), np.float32)
    pair = np.array(expected(arrays[:2], "sum", "float32"), np.float32)
    double = contributions(3, 300, np.float64)

    def run(comm: Communicator) -> None:
        mine = arrays[comm.rank]
        assert comm.reproducible
        turned = np.asfortranarray(mine.reshape(24, 29))
        assert (comm.allreduce(turned) == wanted.reshape(24, 29)).all()
        assert comm.allreduce(turned, out=turned) is turned
        assert (turned == wanted.reshape(24, 29)).all()
        both = np.concatenate([mine, [0]]).astype(np.float32)
        assert (comm.allreduce(both[:-1], out=both[1:]) == wanted).all()
        assert (comm.iallreduce(mine.copy()).wait() == wanted).all()
        total = comm.reduce(mine, root=1)
        assert (total is None) == (comm.rank != 1)
        assert total is None or (total == wanted).all()
        assert (comm.reduce_scatter(mine.reshape(24, 29)) == wanted.reshape(24, 29)[8 * comm.rank :][:8]).all()
        if comm.rank < 2:
            assert (comm.group([1, 0]).allreduce(mine) == pair).all()
        assert comm.allreduce(double[comm.rank]).tolist() == expected(double, "sum", "float64")
        halves = [(array / 1e30).astype(np.float16) for array in contributions(3, 70, np.float64)]
        assert comm.allreduce(halves[comm.rank], op="average").tolist() == expected(halves, "average", "float16")
        assert (comm.allreduce(mine, op="max") == np.maximum.reduce(arrays)).all()
        assert comm.allreduce(np.empty(0, np.float32)).size == 0
        assert float(comm.allreduce(np.float32(0.1))) == np.float32(3 * float(np.float32(0.1)))
        assert comm.allreduce(np.array([2**31 - 1], np.int32))[0] == (3 * (2**31 - 1) + 2**31) % 2**32 - 2**31
        assert comm.flight()[-1].name == "allreduce", "integers as they are"

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NETFOLD_REPRODUCIBLE", "1")
        patch.setenv("NETFOLD_ALGO", "ring")
        with loopback_job(3, rail="tcp") as comms:
            for result in on_every_rank(comms, run):
                assert result is None, result


def test_what_it_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products, narrow lanes, feedback and stochastic rounding are ValueErrors before anything is sent, and so are
    settings that do not fit together."""
    x = np.ones(8, np.float32)
    with loopback_job(1, rail="tcp") as [comm]:
        with pytest.raises(ValueError, match="reproducible=True for product of float32"):
            comm.allreduce(x, op="product", reproducible=True)
        with pytest.raises(ValueError, match="reproducible=True with lane_bits=16"):
            comm.allreduce(x, lane_bits=16, reproducible=True)
        with pytest.raises(ValueError, match=r"feedback.*give either"):
            comm.allreduce(x, feedback=np.zeros_like(x), reproducible=True)
        with pytest.raises(ValueError, match=r"rounding='stochastic'.*give either"):
            comm.allreduce(x, rounding="stochastic", reproducible=True)
        with pytest.raises(ValueError, match="an allreduce carries it"):
            comm.reduce(x, algorithm="binomial", reproducible=True)
        assert (comm.allreduce(x, reproducible=True) == x).all()
    monkeypatch.setenv("NETFOLD_REPRODUCIBLE", "1")
    monkeypatch.setenv("NETFOLD_LANE_BITS", "8")
    with pytest.raises(ValueError, match=r"reproducible=True with lane_bits=8.*NETFOLD_REPRODUCIBLE and"):
        Communicator.join("j", 0, 1, address="127.0.0.1")
    monkeypatch.setenv("NETFOLD_LANE_BITS", "32")
    with pytest.raises(ValueError, match="helpers have no data"):
        Communicator.join("j", 0, 3, address="127.0.0.1", rail="tcp", helpers=[2])
    monkeypatch.setenv("NETFOLD_REPRODUCIBLE", "yes")
    with pytest.raises(ValueError, match="NETFOLD_REPRODUCIBLE='yes': expected 0 or 1"):
        Communicator.join("j", 0, 1, address="127.0.0.1")


@pytest.mark.parametrize("rail", ["innet", "tcp"])
def test_ranks_that_disagree_whether_it_is_reproducible_are_told_so(
    rail: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that adds floats and one that adds integers are a RankMismatch on both, with what each called."""
    monkeypatch.setenv("NETFOLD_ALGO", "ring")
    x = np.ones(300, np.float32)
    with loopback_job(2, rail=rail) as comms:
        results = on_every_rank(comms, lambda comm: comm.allreduce(x, reproducible=comm.rank == 0))
        assert all(isinstance(result, RankMismatch) for result in results), results
        again = on_every_rank(comms, lambda comm: comm.allreduce(x))
        assert all(isinstance(result, RankMismatch) for result in again), "broken"
