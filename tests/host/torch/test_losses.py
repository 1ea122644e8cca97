# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch that die: the others go on, by destroying the group and making another one, and under torchft."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

import support
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from support.hosts.torch import start  # noqa: E402

RANKS: Final = Path(__file__).resolve().parents[2] / "support" / "ranks"
BOUND: Final = 120.0


@pytest.mark.slow
def test_a_group_is_made_anew_in_the_same_processes_after_a_death() -> None:
    """The lost rank is named; the others sum together again, exactly; torch's store has to outlive the rank."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    world = 3
    with contextlib.ExitStack() as files:
        said = [[files.enter_context(tempfile.TemporaryFile()) for _ in ("output", "errors")] for _ in range(world)]
        processes = [
            start([str(RANKS / "rank_torch_again.py"), str(rank), str(world), str(store.port)], *said[rank],
                  {"GLOO_SOCKET_IFNAME": "lo"})
            for rank in range(world)
        ]
        try:
            ends = [process.wait(BOUND) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert ends[-1] == -signal.SIGKILL
        for end, files_of in zip(ends[:-1], said, strict=False):
            output, errors = (file.seek(0) or file.read().decode() for file in files_of)
            assert end == 0, errors[-3000:]
            assert float(output) >= 0


@pytest.mark.needs("torchft")
@pytest.mark.timeout(200)
def test_torchfts_own_tests_of_process_groups_pass_on_ours() -> None:
    """Every collective, also those that gloo lacks, and each with a rank that goes away."""
    settings = {"NETFOLD_CONTROLLER": "store", "NETFOLD_ADDRESS": "127.0.0.1", "NETFOLD_ALGO": "ring",
                "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run([sys.executable, str(RANKS / "torchft_tests.py")], capture_output=True, text=True,
                          timeout=180, env={**support.environment(), **settings}, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    ran, skipped = map(int, done.stdout.split()[-2:])
    assert (ran > 20, skipped) == (True, 0), done.stdout
