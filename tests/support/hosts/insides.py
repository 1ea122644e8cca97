# SPDX-License-Identifier: Apache-2.0
"""The parts of the objects that a program has.  They are no interface, so tests reach them here alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.host.api.members import Members
from netfold.host.api.parts import Parts

if TYPE_CHECKING:
    from netfold.host.torch.feedback import Feedback
    from netfold.host.torch.hook import NetfoldState
    from netfold.host.torch.messenger import Messenger
    from netfold.host.torch.process_group import NetfoldGroup
    from netfold.host.torch.reducer import Reducer


def parts_of(comm: Communicator) -> Parts:
    """The parts that ``assembly`` has put together."""
    return comm._parts


def ranks_of(group: Group) -> Members:
    """The ranks of a group, and what carries their operations."""
    return group._ranks


def reducer_of(owner: NetfoldGroup | NetfoldState) -> Reducer:
    """The reducer of a process group or of a hook."""
    return owner._reducer


def messenger_of(group: NetfoldGroup) -> Messenger:
    """The messenger of a process group of several ranks."""
    assert group._messenger is not None
    return group._messenger


def residuals_of(state: NetfoldState) -> Feedback:
    """The rounding errors that a hook keeps of its gradients in narrow lanes."""
    assert state._residuals is not None
    return state._residuals
