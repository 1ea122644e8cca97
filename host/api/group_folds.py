# SPDX-License-Identifier: Apache-2.0
"""The folds of a communicator's groups: each group that folds is a job of its own at the controller.

    first reduction worth it    ranks agree over the group's mesh to try, and on a number
                                each joins the group at the controller, which plans trees for it, or refuses
                                ranks agree that all have plans
                                all open their rails, or none (``folding``): from then on the group may fold
    any of them could not       all close their part, continue between the hosts, and try again later

So either all ranks of a group may fold, or none.  The time of an attempt depends on counts of operations and bytes
alone, which are the same on all ranks.
"""

from __future__ import annotations

import functools
import logging
import operator
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from netfold.host import shared_log
from netfold.host.collectives import ring
from netfold.host.collectives.flow import run
from netfold.host.errors import NetFoldError
from netfold.host.mesh.connection import printable
from netfold.host.mesh.mesh import Call
from netfold.host.operation.rail import RailStats
from netfold.host.selection.peers import Peers
from netfold.host.selection.prospect import OpenedFold

LEAST_BYTES: Final = 64 << 10
"""Bytes of reductions after which a group tries to fold; fewer are not worth a plan."""
RETRY: Final = 64
"""Reductions between the first attempt and the second; each further attempt multiplies it by GROWTH, up to MOST."""
GROWTH: Final = 4
MOST: Final = 1 << 16
JOIN_SHARE: Final = 0.5
"""Part of the communicator's timeout for which a rank waits for the group's other ranks at the controller.  Ranks that
the controller has refused wait for it meanwhile."""
JOIN_SECONDS: Final = 30.0
"""Most seconds of that wait: all of the ranks have just announced that they join."""
SAID = struct.Struct("!??qQ240s")
"""A rank's report on its part: success, permanent refusal, a number, planes as bits, and the reason."""
FINAL: Final = ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "PERMISSION_DENIED", "UNIMPLEMENTED")
"""gRPC codes of refusals that would be repeated."""

log = logging.getLogger("netfold")


class Word(NamedTuple):
    """A rank's report on its part of opening a fold."""

    able: bool = True
    never: bool = False
    number: int = 0
    why: str = ""
    planes: int = 0
    """Of several rails: those that it has for the group, as bits."""


class HeldFold(Protocol):
    """What folds for a group, and its membership at the controller.

    fallback  why it folds no longer, if it does not
    """

    @property
    def fallback(self) -> str: ...

    def let_go(self, reason: str = "", *, ended: bool = False) -> None:
        """Leaves the group, and closes what folds; the parameters are those of ``GroupFolds.close``."""

    def interrupt(self, error: NetFoldError) -> None:
        """Ends the operation under way with this error soon; called by another thread."""


@dataclass(frozen=True)
class GroupTerms:
    """What holds for all groups of one communicator.

    refusal   why this rank opens none; empty: it does
    timeout   the communicator's
    me        job and rank, for messages
    always    groups fold everything that they can, at any cost
    """

    refusal: str
    timeout: float
    me: str
    always: bool = False

    @property
    def within(self) -> float:
        """Seconds for which a rank waits for the group's other ranks at the controller."""
        return min(JOIN_SHARE * self.timeout, JOIN_SECONDS)


class GroupFolds:
    """The folds of all groups of one communicator.

    make  makes that of the group of these ranks of the job, in this order
    """

    def __init__(self, make: Callable[[GroupFolds, tuple[int, ...]], GroupFold]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, ...], int] = {}
        """Ranks of a group -> its next number."""
        self.open_folds: set[GroupFold] = set()
        self._closed = False

    def of(self, members: Sequence[int]) -> GroupFold:
        """The fold of the group of these ranks of the job, in this order."""
        return self._make(self, tuple(members))

    def number(self, members: tuple[int, ...]) -> int:
        """A number that no group of these ranks has had, as far as this rank knows; -1 if the communicator is
        closed."""
        with self._lock:
            return -1 if self._closed else self._numbers.get(members, 1)

    def count(self, members: tuple[int, ...], number: int) -> None:
        """Marks the number as used."""
        with self._lock:
            self._numbers[members] = number + 1

    def keep(self, fold: GroupFold) -> None:
        """Remembers an open fold, so that ``close`` closes it."""
        with self._lock:
            self.open_folds.add(fold)
            late = self._closed
        if late:
            fold.close()

    def forget(self, fold: GroupFold) -> None:
        """Forgets a fold that is closed."""
        with self._lock:
            self.open_folds.discard(fold)

    def interrupt(self, error: NetFoldError) -> None:
        """Ends folding operations soon, with this error; called by another thread."""
        with self._lock:
            those = list(self.open_folds)
        for fold in those:
            fold.interrupt(error)

    def close(self, reason: str = "", *, ended: bool = False) -> None:
        """Closes all folds, and opens none from then on.

        reason  why the communicator has failed, if it has
        ended   the controller has ended the groups, since their job goes on with other ranks
        """
        with self._lock:
            self._closed, those = True, list(self.open_folds)
        for fold in those:
            fold.close(reason, ended=ended)


class GroupFold(ABC):
    """The fold of one group (``selection.prospect.Prospect``)."""

    def __init__(self, folds: GroupFolds, terms: GroupTerms, members: tuple[int, ...]) -> None:
        self._folds = folds
        self._terms = terms
        self._members = members
        self._lock = threading.Lock()
        self.held: HeldFold | None = None
        """The fold that is open; None while the group does not fold."""
        self._closed = False
        self._shared = shared_log.level(0)
        self._never = False
        self._attempts = self._reductions = self._bytes = 0
        self._next = 1
        """Number of the reduction before which the group tries to fold."""
        self.why = (f"this group of some ranks has yet to fold: it asks for trees before the reduction with which it "
                    f"comes to {LEAST_BYTES >> 10} KiB")

    def due(self, nbytes: int) -> bool:
        if self._never or self._closed:
            return False
        self._reductions += 1
        self._bytes += nbytes
        if self._reductions < self._next or not (self._terms.always or self._bytes >= LEAST_BYTES):
            return False
        self._next = self._reductions + min(RETRY * GROWTH**self._attempts, MOST)
        self._attempts += 1
        return True

    @abstractmethod
    def open(self, hosts: Peers, progress: Callable[[], RailStats]) -> OpenedFold | None: ...

    def lost(self) -> None:
        held = self._release()
        if held is not None:
            self.why = f"this group folds no longer: {held.fallback}; it asks again by and by"
            log.log(self._shared, "%s: %s", self._terms.me, self.why)
            threading.Thread(target=held.let_go, name="netfold-group", daemon=True).start()

    def close(self, reason: str = "", *, ended: bool = False) -> None:
        """Leaves the group's job, and closes the rail.

        reason, ended  as in ``GroupFolds.close``
        """
        self._closed = True
        held = self._release()
        if held is not None:
            self.why = "this group is closed"
            held.let_go(reason, ended=ended)

    def interrupt(self, error: NetFoldError) -> None:
        """Ends its folding operation soon, with this error; called by another thread."""
        with self._lock:
            held = self.held
        if held is not None:
            held.interrupt(error)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _ask(self, hosts: Peers, planes: int = 0) -> tuple[int, int] | None:
        """Agrees with all ranks of the group to ask for trees.  Returns the group's number, and the planes that all of
        them have; None: one of them asks for none."""
        self._shared = shared_log.level(hosts.mesh.rank)
        number = self._folds.number(self._members)
        mine = Word(number=number, planes=planes)
        if self._terms.refusal or number < 0:
            mine = Word(False, True, 0, self._terms.refusal or "its communicator is closed there")
        words = self._agree(hosts, "asking for trees", mine)
        if words is None:
            return None
        number = max(word.number for word in words)
        self._folds.count(self._members, number)
        return number, common(words)

    def _hold(self, held: HeldFold, why: str) -> None:
        """Keeps what folds from now on.

        why  what the controller planned
        """
        with self._lock:
            self.held = held
        self._folds.keep(self)
        self.why = why
        log.info("%s: %s", self._terms.me, why)

    def _agree(self, hosts: Peers, what: str, mine: Word) -> list[Word] | None:
        """Tells all ranks of the group how this rank's part went.  Returns all reports if all succeeded; else None, and
        ``why`` is the first failed rank's reason."""
        mesh = hosts.mesh
        data = np.zeros(mesh.size * SAID.size, np.uint8)
        pieces = [slice(rank * SAID.size, (rank + 1) * SAID.size) for rank in range(mesh.size)]
        said = SAID.pack(mine.able, mine.never, mine.number, mine.planes, mine.why.encode()[:240])
        data[pieces[mesh.rank]] = np.frombuffer(said, np.uint8)
        with mesh.operation(Call(hosts.number, f"{hosts.label}{what}")):
            mesh.expect("ring")
            run(mesh, ring.all_gather(mesh, data, pieces))
        words = []
        for piece in pieces:
            able, never, number, planes, why = SAID.unpack(data[piece].tobytes())
            words.append(Word(able, never, number, printable(why.rstrip(b"\0").decode(errors="replace")), planes))
        unable = {rank: word.why for rank, word in enumerate(words) if not word.able}
        if unable:
            self._fail(unable, never=any(word.never for word in words))
            return None
        return words

    def _fail(self, lacking: Mapping[int, str], *, never: bool) -> None:
        """Records that the group does not fold, since these of its ranks cannot; ``never``: it will not ask again."""
        self._never = never
        again = "" if never else f"; it asks again after {self._next - self._reductions} more reductions"
        reasons: dict[str, int] = {}
        for rank, why in lacking.items():
            reasons.setdefault(why, rank)  # each once, by the first rank that has it
        said = "; ".join(f"rank {self._members[rank]}: {why}" for why, rank in reasons.items())
        self.why = f"this group does not fold: {said}{again}"
        log.log(self._shared, "%s: %s", self._terms.me, self.why)

    def _release(self) -> HeldFold | None:
        with self._lock:
            held, self.held = self.held, None
        self._folds.forget(self)
        return held


def common(words: Sequence[Word]) -> int:
    """The planes that all ranks have, as bits."""
    return functools.reduce(operator.and_, (word.planes for word in words))
