# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch that die: the others go on, by destroying the group and making another one, and under torchft."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

import support
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

RANKS: Final = Path(__file__).resolve().parents[2] / "support" / "ranks"
BOUND: Final = 120.0


def test_a_group_is_made_anew_in_the_same_processes_after_a_death() -> None:
    """The lost rank is named; the others sum together again, exactly; torch's store has to outlive the rank."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    world = 3
    processes = [
        subprocess.Popen([sys.executable, str(RANKS / "rank_torch_again.py"), str(rank), str(world), str(store.port)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**support.environment(), "GLOO_SOCKET_IFNAME": "lo"})
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=BOUND) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert processes[-1].returncode == -signal.SIGKILL
    for process, (output, errors) in list(zip(processes, said, strict=True))[:-1]:
        assert process.returncode == 0, errors[-3000:]
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
