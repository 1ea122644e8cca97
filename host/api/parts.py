# SPDX-License-Identifier: Apache-2.0
"""The parts of a communicator, which ``assembly`` puts together."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netfold.host.api.group_folds import GroupFolds
from netfold.host.api.join_settings import JoinSettings
from netfold.host.api.work import OperationSequencer
from netfold.host.client.membership import Membership
from netfold.host.opening.planes import RailSpec
from netfold.host.operation.coding import Coding
from netfold.host.selection.dispatch import Dispatch
from netfold.wire.plan import Plan

if TYPE_CHECKING:  # imported where several rails are asked for
    from netfold.host.rails.multirail import MultiRail
    from netfold.host.rails.policy import RailOptions


@dataclass(frozen=True)
class RailsAsked:
    """The several rails that a user asks for, in their order, and the settings of all of them."""

    specs: Sequence[RailSpec]
    options: RailOptions


@dataclass(frozen=True)
class Parts:
    """The parts of a communicator.

    settings  the user's settings
    rails     the rails of ``join(rails=)`` as one; None if it has one rail only, or is one rank
    several   what was asked of these rails; None if it has one rail only
    receiver  the socket of the rank's UDP port, kept for all incarnations of the job; None if no rail needs one
    folds     the folds of its groups; None if no controller plans for it
    """

    membership: Membership
    dispatch: Dispatch
    sequencer: OperationSequencer
    coding: Coding
    settings: JoinSettings
    rails: MultiRail | None = None
    several: RailsAsked | None = None
    receiver: socket.socket | None = None
    folds: GroupFolds | None = None

    def close(self, reason: str = "") -> None:
        """Leaves the job and releases everything, once; safe to call twice.

        reason  shown to the other ranks if the program leaves before it is done
        """
        if not self.sequencer.close():
            return
        broken = self.sequencer.broken
        why = "" if broken is None else str(broken).encode(errors="replace").decode()
        last = self.sequencer.last_words(reason or self.sequencer.untold)
        try:
            if self.folds is not None:
                self.folds.close(why)
            self.dispatch.close_fold(why)
            self.membership.leave(self.dispatch.stats() if self.rails is None else self.rails.progress(), why, last)
            if broken is None or self.sequencer.untold:  # else the others know, or hear it from those who are to blame
                self.dispatch.leave(last)
                if self.rails is not None:
                    self.rails.leave(last)
        finally:
            self.dispatch.close()
            self.membership.close()
            if self.receiver is not None:
                self.receiver.close()


def coding_of(plan: Plan, settings: JoinSettings) -> Coding:
    """The lane coding of calls that ask for none."""
    return settings.coding(zlib.crc32(plan.job.encode()))


def checked(parts: Parts) -> Parts:
    """The same parts.  If the settings' lanes are too narrow for the sums of so many ranks, closes them and raises
    ValueError."""
    try:
        if parts.coding.lane_bits != 32:
            parts.dispatch.check_lanes(parts.coding.lane_bits)
    except ValueError:
        parts.close()
        raise
    return parts
