# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own tests of a backend, those of ``torch.testing._internal.distributed.distributed_test``.

    torch_suite.py RESULTS gloo|WAY[:TEST,...] ...

The ranks are forks of this process, which has imported all they need.  They run one test after the other until one
does not pass.  WAY is tcp or folded; in ``folded`` each test has a fourth process, a switch and its job service.
RESULTS gets a JSON object: way -> test -> [passed, skipped or failed; why; seconds; bytes that each rank has folded].
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import unittest
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

RANKS: Final = 3
SECONDS: Final = 40
"""Longest time for a test: the slowest takes 2 s on a machine of two cores."""
TEMPORARY: Final = tempfile.TemporaryDirectory(prefix="torch-suite-")
os.environ |= {
    # Torch decides at import what it skips: what gloo cannot do, since "netfold" claims to do all that gloo does.
    "BACKEND": "gloo", "INIT_METHOD": "file://", "WORLD_SIZE": str(RANKS), "TEMP_DIR": TEMPORARY.name,
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(SECONDS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    "OMP_NUM_THREADS": "1", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
}

import torch._dynamo  # noqa: E402, F401  (DistributedDataParallel imports it, in each fork)
import torch.distributed as dist  # noqa: E402
from torch.testing._internal import common_distributed as common  # noqa: E402

import netfold.torch  # noqa: E402
from netfold.testing import subnet  # noqa: E402
from support.hosts.torch import loopback_jobs  # noqa: E402


def needs_gpus(*args: Any, **kwargs: Any) -> Any:
    return unittest.skip("needs GPUs")


# These start ranks, which then find that they have no GPUs.
common.skip_if_no_gpu = needs_gpus()
common.skip_if_lt_x_gpu = common.nccl_skip_if_lt_x_gpu = needs_gpus
common.skip_if_small_worldsize = lambda test: test  # asks for 8 ranks, where a group of ranks 1 and 2 needs 3

from torch.testing._internal.distributed import distributed_test as theirs  # noqa: E402

FORK: Final = multiprocessing.get_context("fork")


class LikeGloo(str):
    """The name of a backend.  Torch's tests ask by name what a backend can do, and are told: as gloo."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


class Rank:
    """A process that is a rank of one test after the other: what torch looks at of a process, and of the pipe to it."""

    def __init__(self, rank: int) -> None:
        self._line, theirs = FORK.Pipe()
        self._process = FORK.Process(target=serve, args=(rank, theirs), daemon=True)
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._ended: tuple[int | None, str] | None = None

    def begin(self, name: str, file: str, address: str) -> None:
        """Run a test at this address, with the environment of this process."""
        self._ended = None
        self._line.send((name, file, {**os.environ, "NETFOLD_ADDRESS": address}))

    @property
    def exitcode(self) -> int | None:
        """The status with which the test has ended; None while it runs."""
        if self._ended is None and self._line.poll():
            try:
                self._ended = self._line.recv()
            except EOFError:
                self._process.join()
                self._ended = self._process.exitcode, ""
        return None if self._ended is None else self._ended[0]

    def recv(self) -> str:
        """The traceback of the test."""
        assert self._ended is not None
        return self._ended[1]

    def send(self, event: object) -> None:
        raise BrokenPipeError("this rank tells no traceback while it runs")

    def close(self) -> None:
        """Does nothing: the pipe is for the next test, too."""

    def terminate(self) -> None:
        """Does nothing: the process is for the next test, too."""

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._line.close()


def serve(rank: int, line: Connection) -> None:
    """Run tests as a rank until one does not end with status 0."""
    status = 0
    while status == 0:
        name, file, environment = line.recv()
        os.environ |= environment
        told, pipe = FORK.Pipe()
        try:
            Suite._run(rank, name, file, pipe)
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            status = 1
        line.send((status, told.recv() if status == Suite.TEST_ERROR_EXIT_CODE else ""))


class Suite(theirs.TestDistBackend, theirs.DistributedTest._DistTestBase):
    """Torch's tests on this module's way of making the default group."""

    way = ""
    ranks: tuple[Rank, ...] = ()

    def setUp(self) -> None:
        super().setUp()
        net, self.network = subnet(), None
        os.environ |= {"NETFOLD_CONTROLLER": "store", "NETFOLD_ALGO": "ring"}
        if self.way == "folded":
            where, ready = f"unix:{TEMPORARY.name}/{net}", FORK.Event()
            self.network = FORK.Process(target=network, args=(net, where, ready), daemon=True)
            self.network.start()
            assert ready.wait(SECONDS), "the switch has not started"
            os.environ |= {"NETFOLD_CONTROLLER": where, "NETFOLD_ALGO": "innet"}
        if not self.ranks:
            Suite.meeting, Suite.folded = FORK.Barrier(RANKS), FORK.Array("q", RANKS)
            Suite.ranks = tuple(map(Rank, range(RANKS)))
        self.folded[:] = [0] * RANKS
        self.processes = list(self.ranks)
        for place, rank in enumerate(self.ranks, start=1):
            self.pid_to_pipe[rank.pid] = rank
            rank.begin(self._testMethodName, self.file_name, f"{net}.{place}")

    def tearDown(self) -> None:
        if self.network is not None:
            self.network.kill()
            self.network.join()
        if any(rank.exitcode != 0 for rank in self.ranks):
            self.end()
        super().tearDown()

    @classmethod
    def end(cls) -> None:
        """End the ranks; the next test gets others."""
        for rank in cls.ranks:
            rank.end()
        cls.ranks = ()

    def _barrier(self, *args: Any, **kwargs: Any) -> None:
        self.meeting.wait(SECONDS)  # torch's own looks into files every 0.1 s

    @classmethod
    def _run(cls, rank: int, *args: Any, **kwargs: Any) -> None:
        theirs.INIT_METHOD = f"file://{TEMPORARY.name}/{args[0]}"
        super()._run(rank, *args, **kwargs)

    def run_test(self, name: str, pipe: Any) -> None:
        """Called on a rank, in the default group."""
        group = dist.group.WORLD
        assert self.way == "gloo" or isinstance(group, netfold.torch.NetfoldGroup), f"{name} is run on {group}"
        super().run_test(name, pipe)
        if self.way == "folded":
            Suite.folded[self.rank] = sum(tree.bytes_reduced for tree in group.communicator.stats().by_tree.values())


class Results(unittest.TestResult):
    """Keeps a row for each test."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[Any]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        self.rows[test._testMethodName] = ["passed", "", time.monotonic(), []]
        super().startTest(test)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.rows[test._testMethodName][:2] = "skipped", reason

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        self.rows[test._testMethodName][:2] = "failed", self._exc_info_to_string(error, test)

    addFailure = addError

    def stopTest(self, test: unittest.TestCase) -> None:
        row = self.rows[test._testMethodName]
        row[2:] = round(time.monotonic() - row[2], 2), list(getattr(test, "folded", []))
        print(test._testMethodName, *row, flush=True)


def network(net: str, where: str, ready: Any) -> None:
    """The switch of one test, and its job service, until the process is killed."""
    with loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(RANKS)], where):
        ready.set()
        time.sleep(10 * SECONDS)


def main(results: str, *runs: str) -> None:
    """Runs all tests, or those of these names, in one way after the other."""
    if runs != ("gloo",):
        theirs.BACKEND = LikeGloo("netfold")
        theirs.PROFILING_SUPPORTED_BACKENDS.append("netfold")
        theirs.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append("netfold")
    common.TIMEOUT_OVERRIDE.clear()
    names = unittest.TestLoader().getTestCaseNames(Suite)
    for name in names:
        if "all_to_all" in name and "cuda" not in name:  # which torch takes for MPI's alone
            getattr(Suite, name).__unittest_skip__ = False
    gc.freeze()  # a fork that collects garbage copies no page of what was imported
    rows = {}
    for run in runs:
        Suite.way, _, wanted = run.partition(":")
        told = Results()
        for name in wanted.split(",") if wanted else names:
            Suite(name).run(told)
        Suite.end()
        rows[Suite.way] = told.rows
    Path(results).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
