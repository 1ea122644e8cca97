# SPDX-License-Identifier: Apache-2.0
"""One of two ranks whose tensors are on a PrivateUse1 device, over TCP; the device is registered before NetFold is.

    rank_torch_private.py RANK STORE    prints what it found, as JSON; STORE is a file
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from support.devices import private_device

private_device.register()

from netfold.host.staging.device import Accelerator, check_flags, device_of, devices  # noqa: E402

rank, place = int(sys.argv[1]), torch.device(private_device.NAME, 0)


def on_device(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).to(place)


def told(tensor: torch.Tensor) -> list[Any]:
    return [str(tensor.device), tensor.cpu().tolist()]


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def accelerator() -> dict[str, Any]:
    """torch.accelerator's functions for a device whose module has no streams."""
    device, worked = Accelerator(place), on_device(0.0)
    device.enqueue(device.stream(), lambda: worked.add_(2))
    with device.on(device.stream()):
        inside = str(device.current())
    return {"worked": told(worked), "current": [inside, str(device.current())], "capturing": device.capturing(),
            "pinned": refusal(lambda: device.pool.take(1))}


def collectives() -> dict[str, Any]:
    summed, begun, wide = on_device(1.0 + rank, 2.0), on_device(5.0 + rank), on_device(*[1.0 + rank] * 300_000)
    work = dist.all_reduce(begun, async_op=True)
    assert work is not None
    work.wait()
    dist.all_reduce(summed)
    dist.all_reduce(wide)
    sent = on_device(7.0 + rank)
    dist.broadcast(sent, 1)
    rows = [on_device(0.0, 0.0), on_device(0.0, 0.0)]
    dist.all_gather(rows, on_device(1.0 + rank, 9.0))
    dist.barrier()
    return {"all_reduce": told(summed), "async": told(begun), "future": told(work.get_future().value()[0]),
            "wide": wide.cpu().unique().tolist(), "broadcast": told(sent), "all_gather": list(map(told, rows)),
            "apart": refusal(lambda: dist.all_gather([torch.zeros(1), torch.zeros(1)], on_device(1.0)))}


found: dict[str, Any] = {
    "devices": devices(), "device": type(device_of(on_device(1.0))).__name__, "accelerator": accelerator(),
    "refused": [refusal(lambda: device_of(torch.ones(2, device="meta"))), refusal(check_flags)],
}
dist.init_process_group("cpu:netfold,npu:netfold", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
found["registered"] = dist.Backend.backend_capability["netfold"]
found["collectives"] = collectives()
dist.destroy_process_group()
print(json.dumps(found))
