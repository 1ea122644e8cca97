# SPDX-License-Identifier: Apache-2.0
"""An all-gather beside which the reduce-scatter that is called next may go, as in the backward pass of FSDP.

FSDP gathers the next layer's parameters, computes, and reduces this layer's gradients while that may still be under
way.  The all-gather asks, part by part, whether all ranks have called the reduce-scatter (``host/api/joinable.py``);
only the very next collective of the group may join, so that ranks need not say which one they mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from netfold.host import shared_log
from netfold.host.api.communicator import Communicator
from netfold.host.api.joinable import Next
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.join import TOGETHER_VARIABLE
from netfold.host.torch.pieces import as_bytes, as_tensor
from netfold.host.torch.tensors import as_array

log = logging.getLogger("netfold")


def warn_where_nothing_joins(comm: Communicator) -> None:
    """Warns that the option has no effect, if no reduce-scatter of this communicator can join an all-gather."""
    if comm.size > 1 and (why := comm.joins_nothing):
        log.log(
            shared_log.level(comm.rank),
            "%r: Options(together=True), or %s=1, changes nothing in this group, where no reduce-scatter joins an "
            "all-gather: %s. Leave it out for this group, or have the switches of one rail fold for it",
            comm, TOGETHER_VARIABLE, why,
        )


class JoiningScatter:
    """A called reduce-scatter; it runs in its turn, unless it has joined the all-gather before it.

    alone         runs it in its turn
    mine, inputs  its tensors; it joins nothing unless each is plain memory of one tensor
    """

    def __init__(
        self, comm: Communicator, alone: Callable[[], object], mine: torch.Tensor, inputs: object, op: ReduceOp
    ) -> None:
        self.made = False
        self._alone = alone
        self.known: Next = "none"
        """The call that the preceding all-gather learns of."""
        if isinstance(inputs, torch.Tensor) and mine.is_contiguous() and inputs.is_contiguous():
            source, dtype = as_array(inputs.view(-1))
            self.known = comm.scatter_to_join(source, as_array(mine.view(-1))[0], op, dtype=dtype)

    def __call__(self) -> None:
        """Called on the communicator's thread, after the all-gather before it."""
        if not self.made:
            self._alone()


class Following:
    """Information on the collective called after an all-gather; used by the caller's thread and, during the all-gather,
    by the communicator's."""

    def __init__(self) -> None:
        self._after: JoiningScatter | None = None
        self._open = True
        """True while the next collective has not been called, and may still be before the all-gather is done."""

    def follow(self, after: JoiningScatter | None) -> None:
        """Records the next call; None: one that cannot join."""
        if self._open:
            self._after = after
        self._open = False

    def awaited(self) -> None:
        """Records that the program waits for the all-gather: until that is done it calls no other."""
        self._open = False

    def known(self) -> Next:
        """The information that the all-gather reads before its next part."""
        still = self._open  # first: who finds it closed finds also what has closed it
        return self._after.known if self._after is not None else "open" if still else "none"

    def end(self, joined: bool) -> None:
        """Records that the all-gather is done, with the reduce-scatter or without it."""
        self._open = False
        after, self._after = self._after, None  # whose tensors this must not keep
        if joined and after is not None:
            after.made = True


def joinable_gather(
    comm: Communicator, whole: torch.Tensor, mine: torch.Tensor, following: Following
) -> Callable[[], object]:
    """A call that puts every rank's ``mine`` one after another into ``whole``, as ``pieces.all_gather``."""
    into_it = whole.detach()
    away = not into_it.is_contiguous() or into_it.is_conj() or into_it.is_neg()

    def gather() -> None:
        joined = False
        try:
            into = as_bytes(torch.empty(into_it.shape, dtype=into_it.dtype, device="cpu") if away else into_it)
            joined = comm.all_gather_to_join(as_bytes(mine), into, following.known)
            if away:
                into_it.copy_(as_tensor(into, into_it))
        finally:
            following.end(joined)

    return gather
