# SPDX-License-Identifier: Apache-2.0
"""A PrivateUse1 device of torch in Python, whose work is done at once: it has no events, and pins no memory.

Each of its tensors holds a tensor of the CPU, on which its operations run.  It has what torch's C++ asks of a backend
and no more, so its module lacks ``current_stream``, ``stream`` and ``device``.  The strides that torch shows of its
tensors are those of contiguous ones.  To register it cannot be undone, so this needs a process of its own.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.utils import _pytree as trees
from torch.utils import backend_registration

NAME: Final = "npu"
_COPY: Final = torch.ops.aten._copy_from.default
_held: Final[dict[int, tuple[torch.UntypedStorage, torch.Tensor]]] = {}
"""The storage of each tensor of the device, by its address, and the CPU's tensor; both are kept for good."""
_libraries: Final[list[torch.library.Library]] = []


def register() -> None:
    """Makes it torch's accelerator, as "npu"."""
    module = SimpleNamespace(is_initialized=lambda: True, is_available=lambda: True, current_device=lambda: 0,
                             device_count=lambda: 1, _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None)
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    every, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    every.fallback(_run, "PrivateUse1")
    some.impl("view.dtype", partial(_run, torch.ops.aten.view.dtype), "PrivateUse1")
    _libraries.extend([every, some])


def _run(operation: Any, *given: Any, **named: Any) -> Any:
    """An operation of torch, of which an argument or the result is on the device."""
    host, host_named = trees.tree_map(_on_host, (given, named))
    if operation is _COPY:  # the CPU has none
        host[1].copy_(host[0])
        return given[1]
    pairs = zip(trees.tree_leaves(host), trees.tree_leaves(given), strict=True)
    same = {id(inside): tensor for inside, tensor in pairs}

    def back(result: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        return same[id(result)] if id(result) in same else _on_device(result)

    return trees.tree_map(back, operation(*host, **host_named))


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.device.type == NAME:
        return _held[value.untyped_storage()._cdata][1]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _on_device(held: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode(False):  # in which views of other tensors are not made
        tensor: torch.Tensor = torch._C._acc.create_empty_tensor(tuple(held.shape), held.dtype)
    storage = tensor.untyped_storage()
    _held[storage._cdata] = storage, held
    return tensor
