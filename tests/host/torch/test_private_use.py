# SPDX-License-Identifier: Apache-2.0
"""Tensors on a PrivateUse1 device, which torch dispatches to functions in Python."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from typing import Any, Final

import pytest

import support
from netfold.topo.processes.forks import Forks
from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

pytestmark = [pytest.mark.slow, pytest.mark.needs("python-device")]
RANKS: Final = 2
SETTINGS: Final = {"NETFOLD_CONTROLLER": "store", "NETFOLD_ADDRESS": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo",
                   "OMP_NUM_THREADS": "1", "PYTEST_CURRENT_TEST": ""}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The findings of each rank of rank_torch_private.py, in a fork of a process that has imported torch alone."""
    store = tmp_path_factory.mktemp("private") / "store"
    kept = {name: value for name, value in support.environment().items() if not name.startswith("NETFOLD_")} | SETTINGS
    with contextlib.closing(Forks("torch.distributed", environment=kept)) as forks, contextlib.ExitStack() as files:
        said = [[files.enter_context(tempfile.TemporaryFile("w+")) for _ in ("output", "errors")] for _ in range(RANKS)]
        script = str(support.RANKS / "rank_torch_private.py")
        ranks = [forks.start([sys.executable, script, str(rank), str(store)], *said[rank], environment=kept)
                 for rank in range(RANKS)]
        try:
            ends = [rank.wait(120) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        read = [[file.seek(0) or file.read() for file in files_of] for files_of in said]
    assert ends == [0] * RANKS, read
    return [json.loads(output) for output, _ in read]


def test_the_backend_is_for_the_device(found: list[dict[str, Any]]) -> None:
    """A group may be asked for by the CPU and the device, and torch's accelerator is the device."""
    for rank in found:
        assert rank["devices"] == rank["registered"] == ["cpu", "npu"]


def test_collectives_take_its_tensors(found: list[dict[str, Any]]) -> None:
    """Results are in the tensors of the device, as is the value of a future; tensors apart are refused."""
    for at, rank in enumerate(found):
        calls = rank["collectives"]
        assert calls["all_reduce"] == ["npu:0", [3.0, 4.0]]
        assert calls["async"] == calls["future"] == ["npu:0", [11.0]]
        assert calls["wide"] == [3.0]
        assert calls["broadcast"] == ["npu:0", [8.0]]
        assert calls["all_gather"] == [["npu:0", [1.0, 9.0]], ["npu:0", [2.0, 9.0]]], f"rank {at}"
        assert "tensors on npu:0 and cpu: expected one device" in calls["apart"]


def test_a_device_without_events_is_used_without_streams(found: list[dict[str, Any]]) -> None:
    """Each call ends after its work, and the device is refused where the host would run ahead."""
    for rank in found:
        assert rank["device"] == "Blocking"
        meta, ahead = rank["refused"]
        assert meta.endswith("on meta: expected one on the CPU, or on torch's accelerator, which here is npu; move it "
                             "there")
        assert ahead == "ValueError: npu:0: torch has no events of this device"


def test_streams_are_torchs_where_the_devices_module_has_none(found: list[dict[str, Any]]) -> None:
    """Work is done on a stream, which is the current one inside; memory that cannot be pinned is told by name."""
    for rank in found:
        device = rank["accelerator"]
        assert device["worked"] == ["npu:0", [2.0]]
        assert all("device_type=npu, device_index=0" in stream for stream in device["current"])
        assert device["capturing"] is False
        assert device["pinned"].startswith("NotImplementedError: You should register `PrivateUse1HooksInterface`")
