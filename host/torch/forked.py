# SPDX-License-Identifier: Apache-2.0
"""Process groups in a forked child, such as a DataLoader's worker: they are never freed there.

The threads of a group's gloo part exist in its own process alone; in the child C++ would join them, and crash.
"""

from __future__ import annotations

import ctypes
import os
import weakref

import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401  its functions keep the default group that is there when it loads

_groups: weakref.WeakSet[dist.ProcessGroup] = weakref.WeakSet()


def keep_in_children(group: dist.ProcessGroup) -> None:
    """In children that are forked from now on, this group stays until they end, also where nobody needs it there."""
    _groups.add(group)


def _keep() -> None:
    for group in list(_groups):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # not in a list: a child that exits would empty that


os.register_at_fork(after_in_child=_keep)
