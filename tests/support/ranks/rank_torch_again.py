# SPDX-License-Identifier: Apache-2.0
"""One rank of torch that loses another one, and goes on with the others in the same process.

    rank_torch_again.py RANK WORLD PORT     the last rank kills itself; the others print the seconds to their next sum
"""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import netfold.torch
from netfold.host.errors import NetFoldError

rank, world, port = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
options = netfold.torch.Options(controller=netfold.torch.STORE, address="127.0.0.1", algorithm="ring", timeout=30.0)


def begin(turn: int, ranks: int) -> None:
    """Joins the process group of this turn, with keys of its own in the store."""
    dist.init_process_group("netfold", store=dist.PrefixStore(f"turn {turn}", store), rank=rank, world_size=ranks,
                            pg_options=options)


begin(1, world)
ones = torch.ones(1000)
dist.all_reduce(ones)
if not (ones == world).all():
    sys.exit(f"the first sum is wrong: {ones}")
if rank == world - 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(torch.ones(1000))
except NetFoldError as error:
    named, since = str(error), time.monotonic()
if f"rank {world - 1}" not in named:
    sys.exit(f"the lost rank is not named: {named}")
dist.destroy_process_group()
begin(2, world - 1)
again = torch.full((1000,), float(rank + 1))
dist.all_reduce(again)
if not (again == sum(range(1, world))).all():
    sys.exit(f"the sum of the others is wrong: {again}")
print(time.monotonic() - since, flush=True)
dist.destroy_process_group()
