# SPDX-License-Identifier: Apache-2.0
"""Chooses the cheapest allreduce for a size: links are measured once (``measure``), costs predicted (``cost``), choices
kept.

The first operation that has a choice measures the links, and times every algorithm at a few sizes, the switches' fold
too where there is one; or all of this is read from the file that $NETFOLD_COST names (``calibration``).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

from netfold.host.collectives.flow import Strand, run
from netfold.host.collectives.machines import Machines
from netfold.host.collectives.tidalmesh import TIDALMESH
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.selection import calibration
from netfold.host.selection.choice import BETWEEN_HOSTS, INNET, Choice, Collective, Setting, choose, predict
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.measure import Measured, measure, measure_inside, time_algorithms

HIERARCHICAL = "hierarchical"
CHOSEN = BETWEEN_HOSTS
"""Algorithms that may be chosen by themselves, besides the fold and, where ranks share machines, ``HIERARCHICAL``, or,
where they are on a mesh, ``TIDALMESH``.  The
parameter server is not among them: its n (n-1) simultaneous flows are cheap in the model alone, which knows nothing of
queues that overflow where many send to one; byteps needs helpers to differ from it."""
REMEMBERED = 256
"""Number of cached choices: a training loop has a few sizes, and repeats them."""
UNMEASURED = Measured(LinkCost(0.0, 0.0), 1.0)
"""The figures for tensors without elements, which send nothing but a barrier."""

log = logging.getLogger("netfold")

Trial = Callable[[Flat, int], None]
"""Sums an array over all ranks by folding, in place, as a part of operation ``number``."""


class Chooser:
    """The chooser of one mesh; all ranks call it alike, and get the same answer.

    strand    an allreduce by name, in place
    fabric    identifies the fabric in the file of figures
    measured  links of an earlier run; default: measured when first needed
    grid      rows and columns of the mesh that the ranks are on, for ``TIDALMESH``; None: they are on none
    remembered  links as measured before the ranks changed, if this rank was there: one that knows them is enough
    """

    def __init__(
        self,
        mesh: Mesh,
        machines: Machines,
        strand: Callable[[str, Flat, Reduction], Strand],
        *,
        fabric: str = "",
        measured: Measured | None = None,
        remembered: Measured | None = None,
        grid: tuple[int, int] | None = None,
    ) -> None:
        self._mesh = mesh
        self._grid = grid
        self._remembers = remembered
        self._fabric = fabric
        self._machines = machines
        self._strand = strand
        self.measured = measured
        self._trial: Trial | None = None
        """Runs a timed fold, if the switches fold; else None."""
        self._folds: Callable[[int], bool] = lambda number: False
        self._choices: dict[tuple[int, int | None, Collective], tuple[Measured, Choice]] = {}

    def fold_by(self, trial: Trial | None, folds: Callable[[int], bool] = lambda number: True) -> None:
        """The fabric folds, too: ``trial`` is what to time, in those operations that ``folds`` says it can, by their
        number; None: it does not.  Before the first operation, or where all ranks ``forget``."""
        self._trial, self._folds = trial, folds

    def forget(self) -> None:
        """All figures are measured anew, since what folds has changed.  All ranks call it between the same operations.
        """
        self.measured = self._remembers = None

    def choice(
        self, nbytes: int, call: Call, *, folded: int | None = None, collective: Collective = "allreduce"
    ) -> Choice:
        """The cheapest algorithm, with all others.  May measure.

        nbytes  of the tensor
        call    the operation that needs to know
        folded  bytes that each rank sends where the switches fold; None: this operation does not fold
        """
        return self._choice(nbytes, folded, collective, self._measure(call) if nbytes else UNMEASURED)

    def known(
        self, nbytes: int, *, folded: int | None = None, collective: Collective = "allreduce"
    ) -> Choice | None:
        """The same choice where links have been measured, else None."""
        return None if self.measured is None else self._choice(nbytes, folded, collective, self.measured)

    @property
    def seen(self) -> Measured:
        """The figures measured so far, or UNMEASURED."""
        return self.measured or UNMEASURED

    def link(self, nbytes: int, call: Call) -> LinkCost:
        """The cost of a rank's link.  May measure."""
        return self._measure(call).link if nbytes and self._mesh.size > 1 else UNMEASURED.link

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _choice(self, nbytes: int, folded: int | None, collective: Collective, measured: Measured) -> Choice:
        key = nbytes, folded, collective
        known = self._choices.get(key)
        if known is None or known[0] is not measured:
            while len(self._choices) >= REMEMBERED:
                del self._choices[next(iter(self._choices))]
            chosen = choose(
                nbytes,
                self._setting(measured, folds=folded is not None),
                folded=folded,
                collective=collective,
                timed=measured.timed,
                only=(lambda name: collective != "allreduce" or name in (*CHOSEN, HIERARCHICAL, INNET, TIDALMESH)),
            )
            known = self._choices[key] = measured, chosen
        return known[1]

    def _setting(self, measured: Measured, *, folds: bool) -> Setting:
        return Setting(
            self._mesh.size,
            measured.link,
            measured.contention,
            groups=self._machines.shape() if measured.inside else None,
            inside=measured.inside,
            fold=measured.link if folds else None,
            mesh=self._grid,
        )

    def _measure(self, call: Call) -> Measured:
        if self.measured is None:
            with self._mesh.operation(Call(call.number, f"measuring links, for {call.text}")):
                self.measured = self._remembered() or self._measured(call.number)
        return self.measured

    def _remembered(self) -> Measured | None:
        """The figures that an earlier run measured of the same ranks on the same fabric, if at least one rank's file
        has them."""
        path = os.environ.get(calibration.COST_VARIABLE)
        known = self._remembers or (calibration.load(path, self._key()) if path else None)
        found = calibration.share(self._mesh, known)
        if found is not None:
            log.info("rank %d of %d: links are as an earlier run, or %s, has them: %s",
                     self._mesh.rank, self._mesh.size, path or calibration.COST_VARIABLE, found.link)
        return found

    def _key(self) -> str:
        """Identifies what the figures hold for: ranks, transport, machines, folding and fabric."""
        rows = self._machines.rows()
        return ", ".join((
            f"{self._mesh.size} ranks",
            self._mesh.kind,
            *(() if rows is None else ("by machine",)),
            *(() if self._trial is None else ("folded",)),
            *((f"fabric {self._fabric}",) if self._fabric else ()),
        ))

    def _measured(self, number: int) -> Measured:
        mesh, trial = self._mesh, self._trial if self._folds(number) else None
        begin = time.monotonic()
        measured = measure(mesh)
        names: tuple[str, ...] = (*CHOSEN, TIDALMESH) if self._grid is not None else CHOSEN
        if (rows := self._machines.rows()) is not None:
            inside = measure_inside(mesh, self._machines.local(), rows, parts=self._machines.parts())
            measured = replace(measured, inside=inside)
            names = (*names, HIERARCHICAL)
        reduction = Reduction("sum", "float32")

        def algorithm(name: str) -> Callable[[Flat], None]:
            return lambda data: run(mesh, self._strand(name, data, reduction))

        algorithms = {name: algorithm(name) for name in names}
        if trial is not None:
            algorithms[INNET] = lambda data: trial(data, number)
        setting = self._setting(measured, folds=trial is not None)
        measured = replace(measured, timed=time_algorithms(mesh, algorithms, lambda nbytes: predict(nbytes, setting)))
        log.info("rank %d of %d: links measured in %.2f s (saved where %s names a file): %s",
                 mesh.rank, mesh.size, time.monotonic() - begin, calibration.COST_VARIABLE, measured.link)
        if mesh.rank == 0 and (path := os.environ.get(calibration.COST_VARIABLE)):
            calibration.save(path, self._key(), measured)
        return measured
