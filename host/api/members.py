# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group as its operations see them: who they are, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, repeat

from netfold.host.api.work import Turns
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import Peers


class Members:
    """Ranks 0 .. size-1, who take turns.

    dispatch  carries their reductions, and has what goes between them
    turns     of the communicator, shared by all of its groups
    """

    def __init__(self, dispatch: Dispatch, turns: Turns) -> None:
        self.dispatch = dispatch
        self.turns = turns
        self._numbers = count(1)

    @property
    def peers(self) -> Peers:
        """What goes between the hosts; another one after a rail has died or is back."""
        return self.dispatch.hosts

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self.dispatch.hosts.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.dispatch.hosts.size

    @contextmanager
    def turn(
        self, name: str, nbytes: int = 0, op: str = "", dtype: object = "", *, counted: bool = True
    ) -> Iterator[int]:
        """An operation's turn and number; ``counted``: one that all ranks of the group call, else it has number 0."""
        numbers = self._numbers if counted else repeat(0)
        peers = self.dispatch.hosts
        with self.turns.turn(numbers, peers.label.strip(), name, nbytes, op, dtype) as number:
            if counted:
                peers.count_from(number)
            yield number

    def check_rank(self, rank: int, name: str) -> None:
        """Raises ValueError for a rank that is not there."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: expected a rank of 0 .. {self.size - 1}")

    def check_peer(self, peer: int) -> None:
        """Raises ValueError for a rank that is not there, or is this one."""
        self.check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"peer={peer} is this rank itself: expected another one")
