# SPDX-License-Identifier: Apache-2.0
"""Lightning's and Accelerate's own examples, unchanged, and Ray Train, with backend "netfold"; skipped where these are
missing."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import support
from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.torch import launch
from netfold.testing import subnet
from support.topo import in_sandbox
from support.torch import loopback_jobs, torchrun

PROGRAM = Path(__file__).parents[2] / "support" / "ranks" / "rank_lightning.py"
RANKS = 2
STORE = {"NETFOLD_CONTROLLER": "store", "NETFOLD_ALGO": "ring", "NETFOLD_ADDRESS": "127.0.0.1"}


def lines_of(said: str, pattern: str) -> set[str]:
    """What a pattern's group finds in what the ranks have printed."""
    return set(re.findall(pattern, said))


@pytest.mark.needs("lightning")
def test_lightning_trains_its_demo_model_as_over_gloo(tmp_path: Path) -> None:
    """Its Trainer with DDPStrategy(process_group_backend="netfold") fits, validates, saves and tests BoringModel, over
    TCP and folded in a switch, and ends with gloo's weights on every rank."""
    pattern = r"rank \d by \w+: (\[.*\])"
    weights = lines_of(torchrun(PROGRAM, "gloo", str(tmp_path), ranks=RANKS, environment={}), pattern)
    over_tcp = torchrun(PROGRAM, "netfold", str(tmp_path), ranks=RANKS, environment=STORE)
    net, where = subnet(), f"unix:{tmp_path}/jobs"
    with loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(RANKS)], where) as jobs:
        folded = torchrun(PROGRAM, "netfold", str(tmp_path), net, ranks=RANKS,
                          environment={"NETFOLD_CONTROLLER": where, "NETFOLD_ALGO": "innet"})
        assert set(jobs.reports) == {0, 1}
        assert all(report.by_tree["loop"] > 0 for report in jobs.reports.values())
    assert len(weights) == 1
    for said in (over_tcp, folded):
        assert lines_of(said, pattern) == weights
        assert lines_of(said, r"rank (\d) by netfold") == {"0", "1"}
    assert list(tmp_path.glob("checkpoints/*.ckpt"))


@pytest.mark.needs("accelerate")
def test_accelerate_runs_its_own_test_script(tmp_path: Path) -> None:
    """Its own test script, which trains by DDP and compares with one process, passes unchanged."""
    spec = importlib.util.find_spec("accelerate.test_utils.scripts.test_script")
    assert spec is not None
    assert spec.origin is not None
    said = torchrun(
        Path("-m"), "netfold.torch", spec.origin, ranks=RANKS, environment=STORE | {"ACCELERATE_USE_CPU": "true"}
    )
    assert "Training yielded the same results on one CPU or distributed setup with batch split." in said
    assert "Test reinstantiated state" in said


@pytest.mark.timeout(700)
@pytest.mark.needs("ray")
@in_sandbox(timeout=660)
def test_ray_train_folds(tmp_path: Path) -> None:
    """Two workers of its TorchTrainer, whose processes have registered the backend, fold in a switch, and end with the
    weights of a single process."""
    net, where = subnet(), f"unix:{tmp_path}/jobs"
    environment = support.environment() | {
        "NETFOLD_CONTROLLER": where, "NETFOLD_ALGO": "innet", "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with (tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as short,
          loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(RANKS)], where) as jobs):
        done = subprocess.run([sys.executable, str(PROGRAM.with_name("rank_ray.py")), str(tmp_path), net, short],
                              capture_output=True, text=True, env=environment, timeout=600, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert all(jobs.reports[rank].by_tree["loop"] > 0 for rank in range(RANKS))
    ends = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert [end["backend"] for end in ends] == ["netfold"] * RANKS
    assert ends[0]["weights"] == ends[1]["weights"]
    assert ends[0]["weights"] == pytest.approx(json.loads((tmp_path / "alone.json").read_text()), abs=1e-5)


def test_a_script_runs_unchanged_in_netfolds_group(tmp_path: Path) -> None:
    """``python -m netfold.torch SCRIPT`` makes the default group, and gives the script its arguments and its folder; a
    missing one is told with the usage."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, beside\n"
        "x = torch.full((5,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(x)\n"
        "print(f'sum {x.tolist()} {dist.get_backend()} {sys.argv[1:]} {beside.NAME}')  # in one piece\n"
    )
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    said = torchrun(Path("-m"), "netfold.torch", str(script), "--lr", "3", ranks=RANKS, environment=STORE)
    assert said.count("sum [3.0, 3.0, 3.0, 3.0, 3.0] netfold ['--lr', '3'] beside") == RANKS
    with pytest.raises(SystemExit, match=r"usage: torchrun .* -m netfold.torch SCRIPT[^$]*no file 'nowhere.py'"):
        launch.run(["nowhere.py"])
