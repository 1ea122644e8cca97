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

from netfold.host.torch import launch, renamed
from netfold.testing import subnet
from support.hosts.torch import loopback_jobs, torchrun
from support.sandboxes.topo import in_sandbox

PROGRAM = Path(__file__).parents[2] / "support" / "ranks" / "rank_lightning.py"
AS_MODULE = PROGRAM.with_name("rank_module.py")
RANKS = 2
STORE = {"NETFOLD_CONTROLLER": "store", "NETFOLD_ALGO": "ring", "NETFOLD_ADDRESS": "127.0.0.1"}


def lines_of(said: str, pattern: str) -> set[str]:
    """The matches of a pattern's group in the ranks' output."""
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


@pytest.mark.slow
def test_a_script_runs_unchanged_in_netfolds_group(tmp_path: Path) -> None:
    """``python -m netfold.torch SCRIPT`` makes the default group, and gives the script its arguments and its folder."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, beside\n"
        "x = torch.full((5,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(x)\n"
        "print(f'sum {x.tolist()} {dist.get_backend()} {sys.argv[1:]} {beside.NAME}')  # in one piece\n"
    )
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    said = torchrun(AS_MODULE, "netfold.torch", str(script), "--lr", "3", ranks=RANKS, environment=STORE, forks=True)
    assert said.count("sum [3.0, 3.0, 3.0, 3.0, 3.0] netfold ['--lr', '3'] beside") == RANKS


NAMES_GLOO = """
import pickle, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed import new_group
import beside

class Kept: pass

def child(place, name):
    dist.init_process_group("gloo", init_method="file://" + name, rank=place, world_size=1)
    print(f"child {dist.get_backend()}")

if __name__ == "__main__":
    dist.init_process_group(init_method="env://", backend="cpu:gloo,cuda:nccl")
    groups = [dist.group.WORLD, new_group([0, 1], None, "gloo"), dist.new_group(backend="GLOO"), dist.new_group()]
    groups += [dist.new_subgroups(2, backend="gloo")[0], *dist.new_subgroups_by_enumeration([[0, 1]])[1]]
    for group in groups:
        x = torch.full((5,), float(dist.get_rank() + 1))
        dist.all_reduce(x, group=group)
        assert x.tolist() == [3.0] * 5
    kinds = {type(group).__name__ for group in groups} | {dist.get_backend(group) for group in groups}
    pickle.loads(pickle.dumps(Kept()))
    print(f"{sorted(kinds)} {sys.argv[1:]} {beside.NAME} {__name__} {sys.argv[0].endswith('script.py')}")
    if dist.get_rank() == 0:
        mp.spawn(child, (sys.argv[1],), 1)
    dist.barrier()
    raise SystemExit(int(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_program_that_names_gloo_gets_netfolds_groups(tmp_path: Path) -> None:
    """With ``--as gloo`` every way to make a group by that name makes NetFold's, in processes that the program spawns
    too; one line for each says so, and all else is as Python runs a script."""
    script = tmp_path / "script.py"
    script.write_text(NAMES_GLOO)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    said = torchrun(
        AS_MODULE, "netfold.torch", "--as", "gloo", str(script), str(tmp_path / "store"), "0", ranks=RANKS,
        environment=STORE, forks=True,
    )
    assert said.count(f"['NetfoldGroup', 'netfold'] [{str(tmp_path / 'store')!r}, '0'] beside __main__ True") == RANKS
    assert said.count("child netfold") == 1
    lines = [line.partition("--as gloo: ")[2] for line in said.splitlines() if "netfold: --as gloo" in line]
    assert lines == [
        "init_process_group(backend='cpu:gloo,cuda:nccl') makes a group of backend 'netfold'",
        "new_group(backend='gloo') makes a group of backend 'netfold'",
        "new_group(backend='GLOO') makes a group of backend 'netfold'",
        "init_process_group(backend='gloo') makes a group of backend 'netfold'",
    ]


def test_a_module_runs_as_by_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-m MODULE`` runs a module of a package with its arguments, and ends with its exit status."""
    (tmp_path / "netfold_test_package").mkdir()
    (tmp_path / "netfold_test_package" / "program.py").write_text(
        "import pickle, sys\nfrom netfold_test_package import beside\nclass Kept: pass\npickle.dumps(Kept())\n"
        "assert __name__ == '__main__' and __file__ == sys.argv[0]\nsys.exit(int(sys.argv[2]) + beside.NUMBER)\n"
    )
    (tmp_path / "netfold_test_package" / "beside.py").write_text("NUMBER = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(renamed, "rename", lambda: None)
    with pytest.raises(SystemExit) as ended:
        launch.run(["--as", "gloo", "-m", "netfold_test_package.program", "--lr", "3"])
    assert ended.value.code == 4


@pytest.mark.needs("accelerate")
def test_accelerate_gets_netfolds_group_by_gloos_name(tmp_path: Path) -> None:
    """Accelerate, which knows gloo's name alone, makes its own group, and its own test script passes."""
    spec = importlib.util.find_spec("accelerate.test_utils.scripts.test_script")
    assert spec is not None
    assert spec.origin is not None
    said = torchrun(
        Path("-m"), "netfold.torch", "--as", "gloo", spec.origin, ranks=RANKS,
        environment=STORE | {"ACCELERATE_USE_CPU": "true"},
    )
    assert "init_process_group(backend='gloo') makes a group of backend 'netfold'" in said
    assert "Training yielded the same results on one CPU or distributed setup with batch split." in said


def test_other_names_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only gloo for the CPU is NetFold's, alone or for all devices; beside another backend for devices that are there
    it is refused by name."""
    names = ("gloo", "GLOO", "cpu:gloo", "cuda:nccl,cpu:gloo", "cpu:gloo,cuda:gloo")
    assert [renamed.ours_for(name) for name in names] == ["netfold"] * 5
    for other in ("nccl", "mpi", "netfold", "cuda:gloo", "cpu:mpi,cuda:gloo", "cpu:netfold"):
        assert renamed.ours_for(other) == other
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ValueError, match=r"backend='cpu:gloo,cuda:nccl': .* this machine has cuda: expected 'gloo'"):
        renamed.ours_for("cpu:gloo,cuda:nccl")


@pytest.mark.parametrize(("arguments", "wrong"), [
    (["nowhere.py"], "no file 'nowhere.py': expected a Python file"), ([], "no script"),
    (["--as", "gloo"], "no script"), (["--as", "nccl", "x.py"], "--as nccl: expected gloo"),
    (["--as"], "--as : expected"), (["--as=gloo", "-m"], "no module"),
    (["-m", "no.such.module"], "no module 'no.such.module'"),
], ids=str)
def test_what_cannot_be_run_is_told_with_the_usage(arguments: list[str], wrong: str) -> None:
    """A missing script or module, and another name than gloo, end the command with the usage."""
    with pytest.raises(SystemExit, match=rf"usage: torchrun .* -m netfold.torch \[--as gloo\][^$]*{wrong}"):
        launch.run(arguments)
