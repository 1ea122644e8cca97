# SPDX-License-Identifier: Apache-2.0
"""Lightning's own demo model, trained by its Trainer with a process group of the backend that is named.

    torchrun --nproc-per-node 2 rank_lightning.py BACKEND FOLDER [SUBNET]      # ranks at addresses of this subnet
"""

from __future__ import annotations

import os
import sys

import torch.distributed as dist
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy

import netfold.torch  # noqa: F401  registers the backend

backend, folder, *net = sys.argv[1:]
if net:
    os.environ["NETFOLD_ADDRESS"] = f"{net[0]}.{int(os.environ['RANK']) + 1}"
seed_everything(1)
model = BoringModel()
here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
trainer = Trainer(
    accelerator="cpu", devices=here, num_nodes=int(os.environ["WORLD_SIZE"]) // here,
    strategy=DDPStrategy(process_group_backend=backend),
    max_epochs=2, limit_train_batches=6, limit_val_batches=2, default_root_dir=folder, logger=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(model)
trainer.test(model, verbose=False)
print(f"rank {dist.get_rank()} by {dist.get_backend()}: {[round(w, 6) for w in model.layer.weight[0, :4].tolist()]}")
dist.destroy_process_group()
