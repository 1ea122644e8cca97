# SPDX-License-Identifier: Apache-2.0
"""Groups of backend "netfold" for programs that ask for "gloo" by name: ``python -m netfold.torch --as gloo SCRIPT``.

``init_process_group`` and ``new_group``, and functions that call them, such as ``new_subgroups`` and device meshes, get
"netfold" if the program names "gloo", "cpu:gloo", or "cpu:gloo" beside devices that this machine lacks.  Other names,
and calls that name none, are left as they are.  Standard error has a line for each, on rank 0.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from netfold.host.torch import register

OURS, THEIRS = "netfold", "gloo"

_told: set[str] = set()


def ours_for(asked: str) -> str:
    """The backend to use when a program asks for this one.

    Raises ValueError if the group would be for other devices of this machine, too
    """
    name = asked.lower()
    if {part.rpartition(":")[2] for part in name.split(",")} == {THEIRS} and (":" not in name or "cpu" in name):
        return OURS
    parts = dict(part.partition(":")[::2] for part in name.split(","))
    if parts.pop("cpu", "") != THEIRS:
        return asked
    here = [device for device in parts if _is_here(device)]
    if here:
        raise ValueError(
            f"--as {THEIRS}: backend={asked!r}: a group of backend {OURS!r} is for tensors on all devices, and this "
            f"machine has {', '.join(here)}: expected {THEIRS!r} or 'cpu:{THEIRS}'; give the other backend a group of "
            "its own, by new_group"
        )
    return OURS


def rename() -> None:
    """Makes this process, and those that it starts by multiprocessing, create groups of backend "netfold" in place of
    gloo's. A second call does nothing."""
    c10d = dist.distributed_c10d
    if hasattr(c10d.init_process_group, "renames"):
        return
    register()
    c10d.init_process_group = dist.init_process_group = _renaming(c10d.init_process_group, "init_process_group")
    c10d._new_group_with_tag = _renaming(c10d._new_group_with_tag, "new_group")
    prepare = multiprocessing.spawn.get_preparation_data

    @functools.wraps(prepare)
    def with_names(name: str) -> dict[str, Any]:
        return {**prepare(name), OURS: _Renamed()}

    multiprocessing.spawn.get_preparation_data = with_names


# ---- inside ----------------------------------------------------------------------------------------------------------
class _Renamed:
    """Renames in the process that unpickles it: a new interpreter started by multiprocessing reads its preparation data
    before it imports the program."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return rename, ()


def _renaming(make: Callable[..., Any], name: str) -> Callable[..., Any]:
    takes = inspect.signature(make)

    @functools.wraps(make)
    def renaming(*args: Any, **kwargs: Any) -> Any:
        given = takes.bind(*args, **kwargs).arguments
        asked = given.get("backend")
        if asked is None:
            if name == "init_process_group":
                _tell(f"{name}() names no backend, and is left as it is")
            return make(*args, **kwargs)
        meant = ours_for(str(asked))
        what = "is left as it is" if meant == asked else f"makes a group of backend {meant!r}"
        _tell(f"{name}(backend={str(asked)!r}) {what}")
        return make(**{**given, "backend": meant})

    renaming.renames = True  # type: ignore[attr-defined]
    return renaming


def _is_here(device: str) -> bool:
    """True if this machine has such a device."""
    module = getattr(torch, device, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())


def _tell(what: str) -> None:
    if what not in _told and os.environ.get("RANK", "0") == "0":
        print(f"netfold: --as {THEIRS}: {what}", file=sys.stderr, flush=True)
    _told.add(what)
