# SPDX-License-Identifier: Apache-2.0
"""docs/combinations.md: what carries each collective over each kind of ranks, found out by calling it.

    .venv/bin/python tests/support/docs/combinations.py  writes the page; tests/test_combinations.py holds it to the
    code

Each cell is one call by all ranks, whose results are checked: it says whether switches folded it, as the flight
recorder of every rank has it, or why not, as ``explain`` says.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.testing import LoopbackSwitch, loopback_job, on_every_rank, subnet
from support.hosts.group_jobs import GroupJobs
from support.hosts.loopback_rails import loopback_rails
from support.hosts.torch import loopback_jobs
from support.hosts.verbs_jobs import VerbsJobs, fake_devices

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "combinations.md"
ROWS: Final = 600
"""Rows of each rank's arrays, by two ranks or three."""
FOLDS: Final = "folds"


HEAD: Final = """\
# What folds with what

Each cell is the result of a call in a test, which also checks the sums.

- *folds*: the switches carried it on every rank, by the default choice.
- *between the hosts*: it went over TCP; `comm.explain()` has the reason.
- *folds, made anew*: the group's calls are refused by name after the change; a new group of the ranks folds.

`.venv/bin/python tests/support/docs/combinations.py` generates this page, and `tests/test_combinations.py` checks it.
`test_machines.py`, `test_groups.py` and `test_rails.py` of `tests/e2e` check the last three rows on fabrics with
controllers. The host library's page has more on [machines of several ranks](host.md#machines-of-several-ranks).

"""


WHY: Final = """
## What does not fold, and why
`algorithm="innet"` refuses these calls, before anything is sent. Without it they go between the hosts. In a job with
RDMA NICs sums fold in lanes of the job's own width (`lane_bits` of `join`), so in narrow lanes where the job has them.

"""


@dataclass(frozen=True)
class Ranks:
    """Ranks that call together.

    comms    all communicators of the job, by rank
    callers  the ranks that call, and the group that each calls on
    """

    comms: list[Communicator]
    callers: Mapping[int, Group]


# ---- who calls -------------------------------------------------------------------------------------------------------
@contextmanager
def machines(*counts: int) -> Iterator[Ranks]:
    """All ranks of a job over the switches, so many on each machine."""
    ends = np.cumsum([0, *counts])
    ranks = [list(range(first, first + count)) for first, count in zip(ends, counts, strict=False)]
    with loopback_job(sum(counts), members=ranks) as comms:
        yield Ranks(comms, dict(enumerate(comms)))


@contextmanager
def group() -> Iterator[Ranks]:
    """Three of a job's four ranks, with trees of their own."""
    net, world, chosen = subnet(), 4, [0, 1, 3]
    addresses = [f"{net}.{rank + 1}" for rank in range(world)]
    services: list[GroupJobs] = []

    def make(switch: LoopbackSwitch, world: int) -> GroupJobs:
        services.append(GroupJobs(switch, world, net))
        return services[-1]

    with tempfile.TemporaryDirectory() as folder:
        where = f"unix:{folder}/jobs"
        with loopback_jobs(f"{net}.200", addresses, where, make):
            comms = on_every_rank(list(range(world)), lambda rank: Communicator.join(  # type: ignore[arg-type]
                "groups", rank, world, address=addresses[rank], controller=where, rail="innet"))  # type: ignore[call-overload]
            try:
                yield Ranks(comms, {rank: comms[rank].group(chosen) for rank in chosen})
            finally:
                on_every_rank(comms, lambda comm: comm.close())
                services[0].close()


@contextmanager
def verbs_jobs(*names: str, world: int = 3) -> Iterator[list[list[Communicator]]]:
    """The communicators of each of these jobs on the same hosts, by the queue pairs of their RDMA devices."""
    net = subnet()
    addresses = [f"{net}.{rank + 1}" for rank in range(world)]
    with tempfile.TemporaryDirectory() as folder, fake_devices():
        where = f"unix:{folder}/jobs"
        with loopback_jobs(f"{net}.200", addresses, where, VerbsJobs):
            jobs = [on_every_rank(list(range(world)), lambda rank, name=name: Communicator.join(  # type: ignore[arg-type,misc]
                name, rank, world, address=addresses[rank], controller=where, rail="verbs")) for name in names]  # type: ignore[call-overload]
            try:
                yield jobs
            finally:
                for comms in jobs:
                    on_every_rank(comms, lambda comm: comm.close())


@contextmanager
def verbs() -> Iterator[Ranks]:
    """All ranks of a job by the queue pairs of RDMA devices."""
    with verbs_jobs("verbs") as (comms,):
        yield Ranks(comms, dict(enumerate(comms)))


@contextmanager
def group_over_verbs() -> Iterator[Ranks]:
    """Three of the four ranks of a job by the queue pairs of RDMA devices, with queue pairs of their own."""
    chosen = [0, 1, 3]
    with verbs_jobs("verbs", world=4) as (comms,):
        yield Ranks(comms, {rank: comms[rank].group(chosen) for rank in chosen})


@contextmanager
def rails() -> Iterator[Ranks]:
    """All ranks of a job over two rails that fold."""
    with loopback_rails(["innet", "innet"], 3) as comms:
        yield Ranks(comms, dict(enumerate(comms)))


@contextmanager
def group_over_rails() -> Iterator[Ranks]:
    """Three of the four ranks of a job over two rails, with trees of their own on both."""
    chosen = [0, 1, 3]
    with loopback_rails(["innet", "innet"], 4, groups=True) as comms:
        yield Ranks(comms, {rank: comms[rank].group(chosen) for rank in chosen})


COLUMNS: Final[dict[str, Callable[[], AbstractContextManager[Ranks]]]] = {
    "innet, 1 rank a machine": lambda: machines(1, 1, 1),
    "innet, 2 ranks a machine": lambda: machines(2, 2),
    "innet, 2, 1 and 1 ranks": lambda: machines(2, 1, 1),
    "a group of some ranks": group,
    "verbs": verbs,
    "a group over verbs": group_over_verbs,
    "several rails": rails,
    "a group over several rails": group_over_rails,
}


# ---- what they call --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Feature:
    """One row of the page.

    call       what a rank calls, by its place among the callers and their number; raises AssertionError where the
               result is wrong
    collective, op, dtype  what ``explain`` is asked, where switches do not carry it
    """

    call: Callable[[Group, int, int], None]
    collective: str = "allreduce"
    op: str = "sum"
    dtype: str = "float32"


def own(place: int, dtype: str = "float32") -> Any:
    """The array of one caller: whole numbers."""
    return np.random.default_rng(place).integers(-1000, 1000, ROWS).astype(dtype)


def total(size: int, dtype: str = "float32") -> Any:
    return np.sum([own(place, dtype) for place in range(size)], axis=0, dtype=dtype)


def reduces(dtype: str = "float32", op: str = "sum", tolerance: float = 0.0, **how: Any) -> Feature:
    """An allreduce; ``tolerance``: how far each element may be off."""

    def call(group: Group, place: int, size: int) -> None:
        out = group.allreduce(own(place, dtype), op=op, **how)  # type: ignore[arg-type]
        right = total(size, dtype) if op == "sum" else np.max([own(one, dtype) for one in range(size)], axis=0)
        assert np.abs(out - right).max() <= tolerance, np.abs(out - right).max()

    return Feature(call, op=op, dtype=dtype)


def with_feedback(group: Group, place: int, size: int) -> None:
    residual = np.zeros(ROWS, np.float32)
    out = group.allreduce(own(place), lane_bits=8, feedback=residual)
    assert np.abs(out - total(size)).max() <= 1000 * size / 10


def reduce_scatter(group: Group, place: int, size: int) -> None:
    out = group.reduce_scatter(own(place))
    assert (out == np.split(total(size), size)[place]).all()


def reduce(group: Group, place: int, size: int) -> None:
    out = group.reduce(own(place), root=size - 1)
    assert out is None if place != size - 1 else (out == total(size)).all()


def all_gather(group: Group, place: int, size: int) -> None:
    assert (group.all_gather(own(place)) == np.concatenate([own(one) for one in range(size)])).all()


def broadcast(group: Group, place: int, size: int) -> None:
    assert (group.broadcast(own(place), root=size - 1) == own(size - 1)).all()


def together(group: Group, place: int, size: int) -> None:
    with group.together() as both:
        sums, rows = both.reduce_scatter(own(place)), both.all_gather(own(place))
    assert (sums == np.split(total(size), size)[place]).all()
    assert (rows == np.concatenate([own(one) for one in range(size)])).all()


FEATURES: Final[dict[str, Feature]] = {
    "allreduce of float32": reduces(),
    "... of int32": reduces("int32"),
    "... maximum": reduces(op="max"),
    "... of float64": reduces("float64"),
    "lanes of 16 bits": reduces(lane_bits=16, tolerance=20),
    "lanes of 8 bits, error feedback": Feature(with_feedback),
    "saturating sum of int32": reduces("int32", saturate=True),
    "reproducible sum": reduces(reproducible=True),
    "reduce_scatter": Feature(reduce_scatter, "reduce_scatter"),
    "reduce": Feature(reduce, "reduce"),
    "all_gather": Feature(all_gather, "all_gather"),
    "broadcast": Feature(broadcast, "broadcast"),
    "barrier": Feature(lambda group, place, size: group.barrier(), "barrier"),
    "reduce_scatter and all_gather together": Feature(together, "reduce_scatter"),
}


BY_NAME: Final[dict[str, Callable[[Group], object]]] = {
    "... of float64": lambda group: group.allreduce(own(0, "float64"), algorithm="innet"),
    "lanes of 16 bits": lambda group: group.allreduce(own(0), algorithm="innet", lane_bits=16),
    "lanes of 8 bits, error feedback": lambda group: group.allreduce(
        own(0), algorithm="innet", lane_bits=8, feedback=np.zeros(ROWS, np.float32)),
    "saturating sum of int32": lambda group: group.allreduce(own(0, "int32"), algorithm="innet", saturate=True),
}
"""Calls that do not fold everywhere, asked to by name: refused before anything is sent."""


@dataclass(frozen=True)
class Life:
    """A job whose rank ``victim`` goes, and where another one comes; tests/e2e/test_machines.py holds its cells true.

    machines  ranks of each
    """

    machines: tuple[int, ...]
    victim: int
    cells: Mapping[str, str]

    @property
    def at(self) -> int:
        """The machine of the victim."""
        return next(at for at in range(len(self.machines)) if self.victim < sum(self.machines[: at + 1]))


GOES: Final = "a rank is lost: shrink"
COMES: Final = "a rank comes: grow"
BESIDE: Final = "two jobs at once on the same hosts"
ANEW: Final = "folds, made anew"
LIVES: Final = {
    "innet, 1 rank a machine": Life((1, 1, 1, 1), 2, {GOES: FOLDS, COMES: FOLDS, BESIDE: FOLDS}),
    "innet, 2 ranks a machine": Life((2, 2, 2, 2), 5, {GOES: FOLDS, COMES: FOLDS, BESIDE: FOLDS}),
    "innet, 2, 1 and 1 ranks": Life((2, 1, 2, 1), 3, {GOES: FOLDS, COMES: FOLDS, BESIDE: FOLDS}),
}
"""Columns -> jobs on a fabric with a controller."""
OTHERS: Final = {
    "a group of some ranks": {GOES: ANEW, COMES: ANEW, BESIDE: FOLDS},
    "verbs": {GOES: FOLDS, COMES: FOLDS, BESIDE: FOLDS},
    "a group over verbs": {GOES: ANEW, COMES: ANEW, BESIDE: FOLDS},
    "several rails": {GOES: FOLDS, COMES: FOLDS, BESIDE: FOLDS},
    "a group over several rails": {GOES: ANEW, COMES: ANEW, BESIDE: FOLDS},
}
"""The cells of other columns."""


# ---- cells -----------------------------------------------------------------------------------------------------------
def cell(ranks: Ranks, feature: Feature) -> str:
    """The path of a feature: ``FOLDS``, or another one."""
    size = len(ranks.callers)
    before = {rank: len(ranks.comms[rank].flight()) for rank in ranks.callers}
    callers = [ranks.comms[rank] for rank in ranks.callers]
    for error in on_every_rank(callers, lambda comm: feature.call(
            ranks.callers[comm.rank], list(ranks.callers).index(comm.rank), size)):
        if error is not None:
            raise error
    folded = {
        tuple(any(name in record.path for name in ("innet", "verbs")) for record in ranks.comms[rank].flight()[seen:])
        for rank, seen in before.items()
    }
    assert len(folded) == 1, f"some ranks fold, and others do not: {folded}"
    (parts,) = folded
    return FOLDS if all(parts) else "folds in part" if any(parts) else "between the hosts"


def column(name: str) -> tuple[dict[str, str], dict[str, str]]:
    """The cells of one column, by row; and why its calls that do not fold are refused where they are asked to by
    name."""

    def refused(group: Group, call: Callable[[Group], object]) -> str:
        try:
            call(group)
        except ValueError as error:
            return str(error).removeprefix("algorithm='innet': ").partition("; expected")[0]
        raise AssertionError("expected a refusal")

    def each(ranks: Ranks, call: Callable[[Group], object]) -> str:
        (why,) = set(on_every_rank([ranks.comms[rank] for rank in ranks.callers],
                                   lambda comm: refused(ranks.callers[comm.rank], call)))
        assert isinstance(why, str), why
        return why

    with COLUMNS[name]() as ranks:
        cells = {row: cell(ranks, feature) for row, feature in FEATURES.items()}
        return cells, {row: each(ranks, call) for row, call in BY_NAME.items() if cells[row] != FOLDS}


def page(columns: Mapping[str, Mapping[str, str]], why: Mapping[str, Mapping[str, str]]) -> str:
    """The page's text, of the cells and of the refusals of each column."""
    whole = {
        name: {**cells, **(LIVES[name].cells if name in LIVES else OTHERS[name])} for name, cells in columns.items()
    }
    table = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    rows = (*FEATURES, GOES, COMES, BESIDE)
    table += [f"| {row} | " + " | ".join(cells[row] for cells in whole.values()) + " |" for row in rows]
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, refused in why.items():
        for row, words in refused.items():
            reasons.setdefault((row, words), []).append(name)
    refused_table = ["| | over | refused by name |", "|---|---|---|"]
    refused_table += [f"| {row} | {'all' if len(names) == len(columns) else '; '.join(names)} | {words} |"
                      for (row, words), names in reasons.items()]
    return HEAD + "\n".join(table) + "\n" + WHY + "\n".join(refused_table) + "\n"


if __name__ == "__main__":
    made = {name: column(name) for name in COLUMNS}
    PAGE.write_text(page(*({name: parts[at] for name, parts in made.items()} for at in (0, 1))))
