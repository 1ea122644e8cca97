# SPDX-License-Identifier: Apache-2.0
"""The Python examples of README.md and docs/, and what each needs to be a whole program.

An example takes names from its reader: a rank, a model, data.  `SCENES` has, for each example by its page and first
line, what stands for the reader's part: lines before and after it, and text of it that is replaced by this fabric's
addresses.  An example without a scene fails the tests, and so does a scene without its example.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "softswitch/README.md",
                *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "softswitch/docs").glob("*.md"))]
RANKS: Final = 4
"""Ranks that run the examples of kind "ranks", which name ranks up to 3; those of kind "torch" have 2."""


@dataclass(frozen=True)
class Snippet:
    """An example: the page, relative to the repository, and the code."""

    page: str
    code: str

    @property
    def key(self) -> tuple[str, str]:
        """The page, and the beginning of the first line that only this example has: `SCENES` knows it by these."""
        lines = [line for line in self.code.splitlines() if line.strip()]
        own = [line for line in lines if not re.match(r"import |from |dist\.init_process_group", line)]
        return self.page, (own or lines[-1:])[0].split("  ")[0].strip()[:50]


@dataclass(frozen=True)
class Scene:
    """The parts that turn an example into a whole program."""

    kind: Literal["alone", "ranks", "torch"]
    """The processes that run it: one process outside of any fabric, all ranks of a job, or those of a job with
    torch."""
    before: str = ""
    after: str = ""
    replaced: dict[str, str] = field(default_factory=dict)
    """Text of the example -> what stands in its place; each occurs once."""
    needs: tuple[str, ...] = ()


_RANK: Final = """
import os
import numpy as np
import netfold
from netfold import Communicator
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gradient = np.full(5000, rank + 1, np.float32)
mean = np.full(5000, (world + 1) / 2, np.float32)
"""
_ADDRESS: Final = 'address=os.environ["NETFOLD_ADDRESS"], controller=os.environ["NETFOLD_CONTROLLER"]'
_TORCH: Final = """
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(1)
model = torch.nn.Linear(8, 2)
data = [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(3)]
loss_of = torch.nn.functional.mse_loss
"""
_STEP: Final = """
loss_of(model(data[0][0] * (dist.get_rank() + 1)), data[0][1]).backward()
"""
_END: Final = "\ndist.destroy_process_group()\n"
_EXACT: Final = "\nnp.testing.assert_allclose(gradient, mean, rtol=1e-6)\n"

SCENES: Final[dict[tuple[str, str], Scene]] = {
    ("README.md", 'with Communicator.join("my-job", rank, world, addr'):
        Scene("ranks", _RANK, _EXACT, {'address="10.0.1.1", controller="10.0.0.1:50050"': _ADDRESS}),
    ("README.md", 'dist.init_process_group("netfold")'): Scene("torch", _TORCH, _END),
    ("docs/host.md", 'with Communicator.join("digits", rank, world, addr'):
        Scene("ranks", _RANK, _EXACT, {'address="10.0.1.1", controller="unix:/run/netfold.sock"': _ADDRESS}),
    ("docs/host.md", "column = comm.group([comm.rank % 2, comm.rank % 2 "): Scene("ranks", f"""{_RANK}
comm = Communicator.join("columns", rank, world, {_ADDRESS})
""", """
assert (gradient == 2 * (rank % 2) + 4).all(), gradient
comm.close()
"""),
    ("docs/host.md", "def train(comm, step, weights, steps, changed=Fals"): Scene(
        "ranks", _RANK, f"""
def gradient_of(weights):
    return weights

with Communicator.join("lasting", rank, world, {_ADDRESS}) as comm:
    trained = train(comm, 0, np.ones(100, np.float32), 3)
np.testing.assert_allclose(trained, np.full(100, 0.99 ** 3, np.float32), rtol=1e-5)
"""),
    ("docs/host.md", "gradients = np.random.default_rng(1).integers(-100"): Scene("alone"),
    ("docs/host.md", "def shift(mesh):"): Scene("alone"),
    ("docs/collectives.md", 'comm.allreduce(x, op="max")'): Scene(
        "ranks", f"""{_RANK}
comm = Communicator.join("collectives", rank, world, {_ADDRESS})
x, out, shard = np.ones(16, np.float32), np.zeros(4, np.float32), np.ones(4, np.float32)
""", """
assert np.array_equal(rows, np.full(4, world**2, np.float32)) and weights.sum() == 16
comm.close()
""", {
            "comm.send(x, 3); comm.receive(x, 0)":
                "comm.send(x, 3) if rank == 0 else comm.receive(x, 0) if rank == 3 else None",
            "comm.group([0, 2])": "if rank in (0, 2): comm.group([0, 2])",
            "Communicator.join(..., helpers": f'Communicator.join("helped", rank, world, {_ADDRESS}, helpers',
        }),
    ("docs/collectives.md", 'weights = {"w": w, "b": b}'): Scene(
        "ranks", f"""{_RANK}
comm = Communicator.join("server", rank, world, {_ADDRESS})
w, b = np.zeros((7, 3), np.float32), np.zeros(5, np.float32)
dw, db, batches = np.ones_like(w), np.ones_like(b), range(2)
""", """
assert (weights["w"] < 0).all()
comm.close()
"""),
    ("docs/fabrics.md", "sandbox.enter()"): Scene(
        "alone", replaced={"leafspine(2, 2, 8,": "leafspine(1, 0, 2,"}, needs=("mininet", "namespaces")),
    ("docs/torch.md", "model = DistributedDataParallel(model)"): Scene("torch", _TORCH, _STEP + _END),
    ("docs/torch.md", 'mesh = init_device_mesh("cpu", (dist.get_world_siz'): Scene("torch", f"""{_TORCH}
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
""", f"""{_STEP}
assert all(one.grad is not None for one in model.parameters())
{_END}""", {"model.layers": "model"}),
    ("docs/torch.md", "with netfold.torch.join() as comm:"): Scene(
        "torch", f"import netfold.torch\nfrom netfold.torch import NetfoldState, netfold_hook\n{_TORCH}", _END,
        {"    ...\n": f"    {_STEP.strip()}\n"}),
    ("docs/torch.md", "optimizer = netfold.torch.PriorityOptimizer(torch."):
        Scene("torch", f"""import netfold.torch
{_TORCH}
dist.init_process_group("gloo")
comm = netfold.torch.join()
""", "\ncomm.close()\n" + _END),
    ("docs/torch.md", "netfold.init()"): Scene("torch", _TORCH, "\nnetfold.shutdown()\n"),
    ("docs/torch.md",
     'trainer = Trainer(accelerator="cpu", devices=2, st'):
        Scene("alone", needs=("lightning",)),
    ("docs/torch.md", "accelerator = Accelerator(cpu=True)"): Scene(
        "torch", "", "\nassert accelerator.num_processes == 2\n" + _END, needs=("accelerate",)),
    ("docs/what-if.md", 'netfold.torch.record("training.json")'): Scene("torch", f"""{_TORCH}
import tempfile
from pathlib import Path
folder = Path(tempfile.mkdtemp())
""", f"""
dist.init_process_group("netfold")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model = DistributedDataParallel(model)
for _ in range(8):
    optimizer.zero_grad()
    loss_of(model(data[0][0]), data[0][1]).backward()
    optimizer.step()
assert (folder / f"training.rank{{dist.get_rank()}}.json").exists()
{_END}""", {'"training.json"': 'folder / "training.json"'}),
    ("docs/launchers.md", 'ray.init(runtime_env={"worker_process_setup_hook":'): Scene("alone", """
import os
from pathlib import Path
from netfold.topo.network import sandbox
sandbox.enter()
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
told = str(Path.cwd() / "backend")
def train():
    import torch
    import torch.distributed as dist
    from ray.train.torch import prepare_model
    prepare_model(torch.nn.Linear(3, 2))(torch.ones(3)).sum().backward()
    Path(told).write_text(dist.get_backend())
""", """
assert Path(told).read_text() == "netfold"
""", {
        '"10.0.0.9:50050"}})': '"store", "NETFOLD_ALGO": "ring", "NETFOLD_ADDRESS": "127.0.0.1"}}, num_cpus=3, '
                               'include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=80 << 20)',
        'num_workers=8, placement_strategy="STRICT_SPREAD"': "num_workers=2",
    }, needs=("ray", "mininet", "namespaces")),
}


def snippets() -> list[Snippet]:
    """All Python examples, page by page."""
    blocks = [(page, block) for page in PAGES for block in re.findall(r"^```python\n(.*?)^```", page.read_text(),
                                                                      re.M | re.S)]
    return [Snippet(str(page.relative_to(ROOT)), block) for page, block in blocks]


def program(snippet: Snippet) -> str:
    """The whole program that an example is part of.  Raises KeyError where it has no scene."""
    scene = SCENES[snippet.key]
    code = snippet.code
    for text, other in scene.replaced.items():
        assert code.count(text) == 1, f"{snippet.page}: {text!r} occurs {code.count(text)} times; expected once"
        code = code.replace(text, other)
    return scene.before + code + scene.after
