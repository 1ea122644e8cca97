# SPDX-License-Identifier: Apache-2.0
"""Which rank a process is according to its launcher, which address it has, and the verbs that follow from both."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy.typing import NDArray

import netfold
from netfold.host import environment
from netfold.host.api import verbs
from netfold.host.api.communicator import Communicator
from netfold.host.environment import RankIdentity
from netfold.testing import loopback_job, on_every_rank


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, RankIdentity(3, 8, 1)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            RankIdentity(1, 2, 1),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, RankIdentity(0, 4, 0)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2"}, RankIdentity(5, 6, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "RANK": "7", "WORLD_SIZE": "8"}, RankIdentity(7, 8, 0)),
        ({"RANK": "7", "PMI_RANK": "1", "PMI_SIZE": "2"}, RankIdentity(1, 2, 0)),
    ],
)
def test_each_launcher_is_understood(said: dict[str, str], place: RankIdentity) -> None:
    """Rank and size come from one launcher; a second one that sets only some variables is not mixed in."""
    assert environment.rank_identity(said) == place


def test_an_address_is_that_of_the_way_to_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """NETFOLD_ADDRESS comes first, then the first target that is no unix socket; without either an error names the
    variable."""
    monkeypatch.delenv("NETFOLD_ADDRESS", raising=False)
    assert environment.address("unix:/run/x", "", "127.0.0.1:50050") == "127.0.0.1"
    with pytest.raises(ValueError, match="NETFOLD_ADDRESS is not set"):
        environment.address("unix:/run/x", "")
    monkeypatch.setenv("NETFOLD_ADDRESS", "10.9.9.9")
    assert environment.address("127.0.0.1:50050") == "10.9.9.9"


def test_verbs_speak_horovods_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """allgather takes rows of different lengths and objects, broadcast a root_rank, and parameters are a mapping,
    arrays or pairs."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")

    def work(comm: Communicator) -> None:
        mine = _Verbs(comm)
        rows = mine.allgather(np.full((comm.rank + 1, 2), comm.rank))
        np.testing.assert_array_equal(rows, [[0, 0], [1, 1], [1, 1]])
        assert mine.broadcast(np.array([comm.rank]), root_rank=1).tolist() == [1]
        named = {"w": np.full(3, float(comm.rank)), "b": np.full(1, comm.rank)}
        mine.broadcast_parameters(named, root_rank=1)
        mine.broadcast_parameters(iter([("w", named["w"])]), root_rank=0)
        assert [value.tolist() for value in named.values()] == [[1.0, 1.0, 1.0], [1]]
        mean = mine.allreduce(np.array([comm.rank], np.float32), op=netfold.Average)
        assert mean.tolist() == [0.5]
        with pytest.raises(ValueError, match="single number"):
            mine.allgather(np.array(1))
        assert mine.allgather_object({"rank": comm.rank, "words": "x" * comm.rank}) == [
            {"rank": 0, "words": ""}, {"rank": 1, "words": "x"}
        ]
        assert mine.broadcast_object(("from", comm.rank), root_rank=1) == ("from", 1)

    with loopback_job(2, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None, None]
        monkeypatch.setattr(verbs, "_world", comms[0])
        assert (netfold.is_initialized(), netfold.rank(), netfold.size(), netfold.local_rank()) == (True, 0, 2, 1)
        monkeypatch.delenv("WORLD_SIZE")
        assert netfold.local_rank() == 0


class _Verbs:
    """The verbs' code for one of several communicators of this process, which normally has only one."""

    def __init__(self, comm: Communicator) -> None:
        spec = sys.modules["netfold.host.api.verbs"].__spec__
        assert spec is not None
        import importlib.util

        self._module = importlib.util.module_from_spec(spec)
        assert spec.loader is not None
        spec.loader.exec_module(self._module)
        self._module._world = comm

    def __getattr__(self, name: str) -> NDArray[np.float64]:
        return getattr(self._module, name)  # type: ignore[no-any-return]
