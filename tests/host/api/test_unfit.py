# SPDX-License-Identifier: Apache-2.0
"""Where one rank lacks something to fold, all ranks know: rail="auto" goes over TCP, rail="innet" ends by name."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from netfold.host.collectives import shared_memory
from netfold.host.errors import TransportError
from netfold.testing import loopback, loopback_job, on_every_rank, subnet


@pytest.fixture(params=[1, 2], ids=["one rank a machine", "two ranks a machine"])
def members(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Ranks of a machine; another program has the source port that was drawn for rank 1 of the next job."""
    net, members = subnet(), int(request.param)
    monkeypatch.setattr(loopback, "subnet", lambda: net)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((f"{net}.{1 // members + 1}", loopback.FIRST + 1 % members))
        yield members


def test_a_source_port_that_is_taken_on_one_rank_takes_all_over_tcp(members: int) -> None:
    """The warning of rank 0 and every rank's ``explain`` name the rank, the port and what to do; sums are right."""
    why = r"rank 1 cannot fold: .*:504\d\d for RoCEv2: Address already in use; .*another program on this host has it"
    with warnings.catch_warnings(record=True) as warned, loopback_job(4, members=members, rail="auto") as comms:
        assert [bool(re.search(f"goes over TCP.*{why}", str(one.message))) for one in warned] == [True]
        sums = on_every_rank(comms, lambda comm: comm.allreduce(np.ones(1000, np.int32)).sum())
        assert sums == [4000] * 4
        for comm in comms:
            assert comm.rail == "tcp"
            assert comm.plan.trees == []
            assert "rank 1 cannot fold" in comm.explain(4)
            assert "rank 0" not in comm.plan.reason


def test_who_asks_for_folding_learns_which_rank_cannot(members: int) -> None:
    """Rank 0, which lacks nothing, raises the same reason as rank 1."""
    with (
        pytest.raises(TransportError, match=r"rank 0 of 4, rail='innet': rank 1 cannot fold: .*Address already in use"),
        loopback_job(4, members=members, rail="innet"),
    ):
        pass


def test_a_machine_without_shared_memory_takes_all_over_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full /dev/shm on the machines is named with its size, and everything goes over TCP, between machines and inside
    them."""

    def full(path: str, size: int) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(shared_memory, "create_file", full)
    with warnings.catch_warnings(record=True) as warned, loopback_job(4, members=2, rail="auto") as comms:
        why = r"rank 0 cannot fold: .*8388608 bytes of shared memory \(No space left"
        assert [bool(re.search(why, str(one.message))) for one in warned] == [True]
        with caplog.at_level(logging.WARNING, "netfold"):
            sums = on_every_rank(comms, lambda comm: comm.allreduce(np.ones(10, np.int32)).sum())
        assert sums == [40] * 4
        assert {comm.rail for comm in comms} == {"tcp"}
    assert "nothing is reduced in shared memory: rank 0 has none: " in caplog.text
