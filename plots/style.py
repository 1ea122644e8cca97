# SPDX-License-Identifier: Apache-2.0
"""The style sheet of all figures: sizes, and a colour, a marker and a dash for each scheme, the same in every figure.

Sizes are for print: a chart is as wide as a column of a paper (3.4 in) with letters of 7 points, and two stand beside
each other on a page (7 in).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

COLUMN: Final = 3.4
"""Inches of a column of a paper with two, which one chart fills."""
PAGE: Final = 7.0
"""Inches of a page's text, which two charts beside each other fill."""
LETTERS: Final = 7
"""Points of all letters but those of values at bars and of titles of steps."""
SMALL: Final = 6
SHEET: Final[Mapping[str, object]] = {
    "font.family": "DejaVu Sans", "font.size": LETTERS, "axes.titlesize": LETTERS, "axes.labelsize": LETTERS,
    "xtick.labelsize": LETTERS, "ytick.labelsize": LETTERS, "legend.fontsize": LETTERS, "figure.titlesize": LETTERS + 1,
    "axes.linewidth": 0.6, "lines.linewidth": 1.0, "lines.markersize": 3.5, "lines.markeredgewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "xtick.major.size": 2, "ytick.major.size": 2,
    "svg.fonttype": "none", "svg.hashsalt": "netfold", "pdf.fonttype": 42,
}
"""matplotlib's settings while a figure is made and written."""

COLOURS: Final = {
    "blue": "#0072b2", "vermilion": "#d55e00", "green": "#009e73", "pink": "#cc79a7", "sky": "#56b4e9",
    "orange": "#e69f00", "purple": "#7a5195", "grey": "#808080", "black": "#000000", "brown": "#8c5a2b",
    "olive": "#8f9400", "crimson": "#a5003d",
}
"""The palette of Okabe and Ito, whose colours stay distinct to colour-blind readers, and five more: as many as a figure
has series at most."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
SOLID, DASHED, DOTTED, MIXED = "-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1))
Dash = str | tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Style:
    """How a scheme looks."""

    colour: str
    marker: str
    dash: Dash
    label: str = ""
    """Its name in words; empty where the scheme's own name is one."""


def _named(colour: str, marker: str, dash: Dash = SOLID, label: str = "") -> Style:
    return Style(COLOURS[colour], marker, dash, label)


STYLES: Final[Mapping[str, Style]] = {
    # sums in switches
    "innet": _named("blue", "o", label="in the network"),
    "netfold": _named("blue", "o", label="NetFold"),
    "parallel NetReduce, our window": _named("blue", "o"),
    "parallel NetReduce, the paper's credits": _named("sky", "o", DASHED),
    "NetReduce, our window": _named("purple", "D"),
    "NetReduce, the paper's credits": _named("crimson", "D", DASHED),
    "SwitchML": _named("brown", "<", MIXED),
    "ATP": _named("olive", ">", MIXED),
    "sufficient condition": _named("grey", "X", DOTTED),
    "the paper": _named("grey", "X", DOTTED),
    # allreduces between hosts
    "ring": _named("vermilion", "s"),
    "flat ring": _named("vermilion", "s"),
    "ring by number": _named("brown", "s", DASHED, "ring in order of numbers"),
    "random ring": _named("brown", "s", DASHED, "ring in random order"),
    "two rings": _named("orange", "s", MIXED),
    "rings of rows and columns": _named("grey", "s", DOTTED),
    "halving-doubling": _named("green", "^"),
    "butterfly": _named("green", "^"),
    "double-binary-tree": _named("pink", "v", label="double binary tree"),
    "double binary tree": _named("pink", "v"),
    "Tencent's hierarchy": _named("orange", "P"),
    "smp-binomial": _named("pink", "v", label="binomial tree of machines"),
    "smp-butterfly": _named("purple", "P", label="butterfly of machines"),
    "tide, rows first": _named("sky", "o"),
    "tide, rows first, 16 chunks": _named("purple", "o", DASHED),
    "tide, both halves": _named("blue", "D"),
    "tide, both halves, 4 chunks": _named("olive", "D", MIXED),
    "tide, both halves, 16 chunks": _named("crimson", "D", DASHED),
    "gloo": _named("crimson", "X", DASHED),
    # a step of training: who sums, and who optimizes
    "all serve": _named("green", "^"),
    "half serve": _named("orange", "D"),
    "one serves": _named("grey", "v"),
    # broadcasts
    "flat": _named("grey", "X", label="one after the other"),
    "binomial": _named("pink", "v", label="binomial tree"),
    "chain": _named("orange", "s"),
    "scatter_all_gather": _named("green", "^", label="scatter, then all-gather"),
    "hierarchical": _named("purple", "P"),
    # paths
    "ethereal": _named("black", "s", label="Ethereal"),
    "spray": _named("crimson", "^", DASHED, "random spraying"),
    "spray-rr": _named("orange", "v", DASHED, "spraying in turn"),
    "spray-ideal": _named("brown", "D", DASHED, "ideal spraying"),
    "reps": _named("purple", "P", MIXED, "REPS, recycled entropies"),
    "ecmp": _named("grey", "X", DOTTED, "ECMP, hashed"),
    "hashed": _named("grey", "X", DOTTED),
    "mp-rdma-2": _named("sky", "<", DOTTED, "MP-RDMA, 2 paths"),
    "mp-rdma-4": _named("olive", ">", DOTTED, "MP-RDMA, 4 paths"),
    "mp-rdma-8": _named("green", "p", DOTTED, "MP-RDMA, 8 paths"),
    "pinned": _named("blue", "o"),
    "separately": _named("orange", "s", label="planned separately"),
    # rails
    "tcp": _named("vermilion", "s", label="TCP"),
    "together": _named("black", "D"),
    "Multipath TCP": _named("green", "^", DASHED),
    # parts of a step
    "compute": _named("grey", "s"),
    "wait": _named("orange", "^"),
    "reduce": _named("blue", "o"),
    "ranks": _named("blue", "o"),
    "alone": _named("grey", "s"),
}
"""The look of each scheme by the name that rows and tables have."""


def scheme(name: str) -> str:
    """The scheme that a series shows: a rail's without its plane (tcp@b)."""
    return name.partition("@")[0]


def words(name: str) -> str:
    """A scheme's name in words."""
    known = STYLES.get(name)
    return (known and known.label) or name


def styles(names: Iterable[str]) -> dict[str, Style]:
    """The look of each series of a figure: that of its scheme, or where `STYLES` has none, or an earlier series has
    taken it, the next colour and marker that no series here has; dashes tell apart what is beyond the colours."""
    names = list(names)
    given: dict[str, Style] = {}
    taken: set[str] = set()
    for name in names:
        known = STYLES.get(scheme(name))
        if known is not None and known.colour not in taken:
            _, _, plane = name.partition("@")
            label = f"{known.label}, plane {plane}" if plane and known.label else known.label
            given[name] = Style(known.colour, known.marker, known.dash, label or name)
            taken.add(known.colour)
    dashes: tuple[Dash, ...] = (SOLID, DASHED, DOTTED, MIXED)
    spare = (Style(colour, marker, dash) for dash in dashes
             for colour, marker in zip(COLOURS.values(), MARKERS, strict=True) if dash != SOLID or colour not in taken)
    for name in names:
        if name not in given:
            look = next(spare, None)
            if look is None:
                raise ValueError(f"a figure of {len(names)} series: expected at most {len(COLOURS)}, which colours "
                                 "can tell apart")
            given[name] = Style(look.colour, look.marker, look.dash, name)
    return {name: given[name] for name in names}
