# SPDX-License-Identifier: Apache-2.0
"""Torch's own tests of its backends (``torch.testing._internal.distributed.distributed_test``) on backend "netfold".

Left out are those that need GPUs or four ranks, and those that torch skips itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any, Final

import pytest

from support import RANKS as PROGRAMS
from support import needs

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason=needs.reason("torch"))

from support.hosts.torch import start  # noqa: E402

RANKS: Final = 3
SECONDS: Final = 280
"""Bound for all of them: 60 s on two cores."""
NAME: Final = "torch's monitored_barrier asks for a group that is named gloo"
EXPECTED: Final = {
    "test_monitored_barrier_failure_order": NAME,
    "test_monitored_barrier_gloo": NAME,
    "test_monitored_barrier_gloo_subgroup": NAME,
    "test_monitored_barrier_wait_all_ranks": NAME,
}
"""Tests that pass on gloo and fail on NetFold -> why.  One that passes after all has to be taken out."""
LEAST: Final = 110
"""Tests that have to pass; of torch 2.13 it runs 119."""
FOLDED: Final = (
    "DistributedDataParallelCPU DistributedDataParallelCPU_grad_is_view all_gather all_gather_coalesced_complex "
    "all_gather_coalesced_simple all_gather_coalesced_with_empty all_gather_complex all_gather_object_default_pg "
    "all_reduce_coalesced_max all_reduce_coalesced_min all_reduce_coalesced_sum all_reduce_max all_reduce_min "
    "all_reduce_sum all_reduce_sum_async all_reduce_sum_complex barrier broadcast ddp_create_graph "
    "ddp_logging_data_cpu grads_same_across_ranks_with_no_sync reduce_max reduce_min reduce_sum reduce_sum_twice "
    "scatter_object_list static_graph_api_cpu"
)
"""Tests whose default group has something to fold; other groups go over TCP (docs/torch.md)."""

Rows = dict[str, Any]


def names_of_folded() -> list[str]:
    return [f"test_{name}" for name in FOLDED.split()]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """Results of all tests over TCP, and of FOLDED folded: way -> name -> result, why, seconds, bytes that each rank
    folded."""
    folder, folded = tmp_path_factory.mktemp("suite"), ",".join(names_of_folded())
    results, log = folder / "results.json", folder / "suite.log"
    with log.open("wb") as said:
        suite = start([str(PROGRAMS / "torch_suite.py"), str(results), "tcp", f"folded:{folded}"], said)
        try:
            status = suite.wait(SECONDS)
        finally:  # with its ranks, where one of them hangs
            with contextlib.suppress(ProcessLookupError):
                os.killpg(suite.pid, signal.SIGKILL)
            suite.wait()
    assert status == 0, log.read_text()[-3000:]
    rows: dict[str, Rows] = json.loads(results.read_text())
    return rows


def failed(rows: Rows) -> dict[str, str]:
    return {name: why[-1500:] for name, (result, why, *_) in rows.items() if result == "failed"}


@pytest.mark.needs("expecttest")
def test_torchs_own_tests_pass_over_tcp(ran: dict[str, Rows]) -> None:
    """Tests that pass on gloo pass here, and all-to-all of unlike sizes, but for a list of reasons."""
    rows = ran["tcp"]
    wrong = failed(rows)
    assert {name: why for name, why in wrong.items() if name not in EXPECTED} == {}
    assert set(EXPECTED) & set(rows) == set(wrong), "these pass now: take them out of the list"
    assert sum(result == "passed" for result, *_ in rows.values()) >= LEAST


@pytest.mark.needs("expecttest")
def test_torchs_own_tests_pass_folded(ran: dict[str, Rows]) -> None:
    """All whose default group has something to fold pass with every rank's part folded by the switch."""
    rows = ran["folded"]
    assert failed(rows) == {}
    assert [name for name in names_of_folded() if rows[name][0] != "passed" or min(rows[name][3]) == 0] == []
