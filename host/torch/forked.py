# SPDX-License-Identifier: Apache-2.0
"""Process groups in a forked child, such as a DataLoader's worker: they are refused there, and never freed.

Their connections are the parent's.  The threads of a group's gloo part exist in its own process alone; in the child C++
would join them, and crash.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Protocol

import torch.distributed.nn.functional  # noqa: F401  its functions keep the default group that is there when it loads


class OwnedGroup(Protocol):
    """A process group of this process."""

    def let_go(self, why: str) -> None:
        """Drops all it has; later calls are refused for this reason."""


_groups: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[list[Any]] = []
"""Groups kept alive during a fork, a list for each fork under way."""


def leave_to_parent(group: OwnedGroup) -> None:
    """In children that are forked from now on, refuses calls of this group, and keeps its objects until the child
    ends."""
    _groups.add(group)


def _hold() -> None:
    """Before a fork: keeps all groups alive until ``_leave``, even through a garbage collection in the child."""
    _held.append(list(_groups))


def _leave() -> None:
    for group in (group for groups in _held for group in groups):
        for kept in (group, dict(vars(group))):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # not in a list: a child that exits would empty that
        group.let_go("its process group belongs to the process that forked this one: make one here, or call it there")
    _held.clear()


os.register_at_fork(before=_hold, after_in_parent=lambda: _held.pop(), after_in_child=_leave)
