# SPDX-License-Identifier: Apache-2.0
"""NCCL's plug-in, driven as NCCL drives it, by ranks that are threads of this process: exact sums of many requests on
several communicators, windows, messages, refusals, and ranks that are gone."""

from __future__ import annotations

import ctypes as C
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.capi import calls, library
from netfold.testing import loopback_job, subnet
from support.hosts.c_programs import nccl_driver
from support.hosts.host import impatient

pytestmark = [pytest.mark.needs("libpython"), pytest.mark.slow]
RANKS = 3


class Drive:
    """Runs the driver on all ranks, whose jobs fold on loopback; each new name of a job takes the next one.

    jobs  how many jobs the ranks join
    """

    def __init__(self, folder: Path, jobs: ExitStack) -> None:
        self.folder = folder
        self.patience = 20.0
        """Seconds without progress that end all requests of a rank but its first."""
        self.asked: dict[str, list[Communicator]] = {}
        self.options: list[dict[str, Any]] = []
        self._jobs = jobs
        self._begun: set[int] = set()
        self._allreduce = calls.allreduce
        self._lock = threading.Lock()

    def join(self, job: str, rank: int, world: int, *more: Any) -> Communicator:
        """``calls.join`` without a controller."""
        with self._lock:
            self.options.append({"job": job, "rank": rank, "world": world, "rail": more[3], "timeout": more[5]})
            if job not in self.asked:
                self.asked[job] = self._jobs.enter_context(loopback_job(world, rail="innet"))
        return self.asked[job][rank]

    def allreduce(self, comm: Communicator, *more: Any) -> Any:
        """``calls.allreduce``; by the first one all ranks come together, however long that takes."""
        if comm.rank in self._begun:
            impatient([comm], self.patience)
        self._begun.add(comm.rank)
        return self._allreduce(comm, *more)

    def __call__(self, what: str, ranks: int = RANKS) -> str:
        """What NCCL's log says.  Fails with it if a rank finds anything else than it must."""
        driver, plugin = C.CDLL(str(nccl_driver("shared"))), library.build_plugin()
        results: dict[int, int] = {}

        def work(rank: int) -> None:
            results[rank] = driver.drive(str(plugin).encode(), what.encode(), rank, ranks)

        driver.place(str(self.folder).encode())
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(150)
        log = self.folder / "log"
        said = log.read_text() if log.exists() else ""
        assert results == dict.fromkeys(range(ranks), 0), said
        return said


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    """The driver, with the environment of a rank."""
    monkeypatch.setenv("NETFOLD_ADDRESS", f"{subnet()}.1")
    monkeypatch.setenv("NETFOLD_CONTROLLER", "unix:/nowhere/at/all")
    monkeypatch.setenv("NETFOLD_JOB", "train")
    for name in ("NETFOLD_RAILS", "NETFOLD_PLANES", "NETFOLD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as jobs:
        drive = Drive(tmp_path, jobs)
        monkeypatch.setattr(calls, "join", drive.join)
        monkeypatch.setattr(calls, "allreduce", drive.allreduce)
        yield drive


def test_requests_on_several_communicators_are_exact_in_any_order_of_asking(drive: Drive) -> None:
    """Sums, maxima and minima, windows of gathers and scatters, messages between the ranks; what does not fold is
    refused.  Each communicator is a job that rank 0's handle names, which folds."""
    drive("everything")
    assert len(drive.asked) == 3
    assert all(job.startswith("train.") and len(job) == len("train.") + 16 for job in drive.asked)
    assert {one["rail"] for one in drive.options} == {"innet"}
    assert {one["timeout"] for one in drive.options} == {600.0}
    assert sorted(one["rank"] for one in drive.options) == sorted(3 * [*range(RANKS)])


def test_a_rank_that_has_left_fails_the_others_requests(drive: Drive) -> None:
    """The one that is under way and the one behind it, with NetFold's words in NCCL's log, and nothing hangs."""
    drive.patience = 2.0
    said = drive("left")
    assert said.count("WARN") == RANKS - 1, said  # once for each communicator
    assert "NET/netfold: job train." in said
    assert f"of {RANKS}: NETFOLD_TIMEOUT: " in said  # no controller tells here who has left


def test_a_communicator_is_closed_while_its_request_waits(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job is aborted with these words, so the wait ends; the others have no sums without that rank."""
    aborted: list[str] = []
    drive.patience = 2.0
    abort = calls.abort
    monkeypatch.setattr(calls, "abort", lambda comm, why: (aborted.append(why), abort(comm, why))[1])
    words = "NCCL closed the communicator before its collective was done"
    assert words in drive("closed")
    assert aborted == [words]


def test_a_sum_that_comes_while_its_communicator_is_closed_is_not_written(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL's memory may be in other use by then; that the job could not be aborted is in NCCL's log."""
    refused = threading.Event()

    def allreduce(comm: Communicator, send: memoryview, receive: memoryview, *more: Any) -> None:
        (drive.folder / "waits").touch()
        assert refused.wait(60)
        receive[:] = send

    def abort(comm: Communicator, why: str) -> None:
        refused.set()
        raise ValueError("not today")

    monkeypatch.setattr(calls, "allreduce", allreduce)
    monkeypatch.setattr(calls, "abort", abort)
    assert "rank 0 does not abort job train." in drive("late", ranks=1)


def test_a_rank_that_cannot_join_says_why(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """No communicator, NetFold's words in NCCL's log, and ncclSystemError: NCCL goes on between the hosts."""
    monkeypatch.undo()
    monkeypatch.setenv("NETFOLD_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("NETFOLD_CONTROLLER", "unix:/nowhere/at/all")
    said = drive("absent", ranks=1)
    assert "rank 0 of 2 does not join job " in said
    assert "NETFOLD_REFUSED: " in said
    assert "unix:/nowhere/at/all" in said


@pytest.mark.parametrize(("name", "value", "words"), [
    ("NETFOLD_CONTROLLER", "", "neither NETFOLD_CONTROLLER nor NETFOLD_PLANES is set"),
    ("NETFOLD_ADDRESS", "fe80::1", "NETFOLD_ADDRESS is not this host's IPv4 address"),
    ("NETFOLD_ADDRESS", "", "NETFOLD_CONTROLLER leads to none"),
])
def test_without_settings_the_plug_in_gives_way_to_nccls_own_network(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """Both halves refuse to start, and say what is not set."""
    monkeypatch.setenv(name, value)
    said = drive("unset", ranks=1)
    assert said.count(words) == 2, said


def test_an_invalid_timeout_is_refused(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mistake of the caller's, by name."""
    monkeypatch.setenv("NETFOLD_TIMEOUT", "soon")
    monkeypatch.setenv("EXPECTED", "5")
    assert "NETFOLD_TIMEOUT=soon" in drive("absent", ranks=1)
