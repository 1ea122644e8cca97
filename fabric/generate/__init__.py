# SPDX-License-Identifier: Apache-2.0
"""Fabrics from the text that `--topo` takes: a family, its numbers, and what else it is to have.

    leafspine,LEAVES,SPINES,HOSTS                 every leaf on every spine                            `leafspine`
    threetier,PODS,LEAVES,AGGS,SPINES,HOSTS       pods of leaves and aggregation switches, spines      `threetier`
    mesh,ROWS,COLUMNS                             switches linked to their neighbours in a grid        `grids.mesh`
    torus,ROWS,COLUMNS                            the same, whose rows and columns close to rings      `grids.torus`
    file:PATH                                     any graph, from a file                               `graph_file`
    dual,FORM or triple,FORM                      two or three planes: fabrics of that form which share their hosts

    leafspine,2,3,8,uplinks=1gbit:1gbit:250mbit   options come behind the numbers, NAME=VALUE by commas
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack

from netfold.fabric.generate import graph_file, grids
from netfold.fabric.generate.assemble import PATH_MTU, Edge, FabricOptions, Faults, assemble, sites, spread
from netfold.fabric.generate.uplinks import Uplink, number, rate, uplinks
from netfold.fabric.graph import Fabric, FabricError

__all__ = ["FORMS", "PATH_MTU", "PLANES", "PLANE_NAMES", "FabricOptions", "Faults", "leafspine", "parse",
           "parse_planes", "threetier"]

PLANES: Final = {"dual": 2, "triple": 3}
"""Number of planes by the word that stands before the topology in `parse_planes`."""
PLANE_NAMES: Final = "abcdefgh"
"""Letters that name planes, in order."""
FILE: Final = "file:"


def leafspine(
    leaves: int, spines: int, hosts: int, *, uplinks: Sequence[Uplink] = (), name: str | None = None,
    **options: Unpack[FabricOptions],
) -> Fabric:
    """Every leaf linked to every spine, and the hosts spread evenly over the leaves, in order.  Raises FabricError.

    uplinks  links of a leaf to each spine, in order; default: one of the fabric's rate to each
    Names are leaf1.., spine1.., h1..; a leaf's ports are its hosts, 1.., then its uplinks.  With one uplink to each,
    port l of a spine leads to leaf l.  Host h of leaf l is 10.0.l.h.
    """
    if leaves < 1 or hosts < 1 or spines < 0:
        raise FabricError(f"leafspine: expected at least 1 leaf, 0 spines and 1 host, got {leaves}, {spines}, {hosts}")
    if leaves > 1 and spines == 0:
        raise FabricError(f"leafspine: {leaves} leaves need at least 1 spine to meet, got 0")
    above = _to_each("leafspine: uplinks", uplinks, spines, "spine")
    lower = sites([f"leaf{i + 1}" for i in range(leaves)], "leaf", spread(hosts, leaves))
    upper = sites([f"spine{i + 1}" for i in range(spines)], "spine")
    cables = [cable for leaf in lower for spine, up in zip(upper, above, strict=True)
              for cable in [Edge(leaf.name, spine.name, up.rate)] * up.links]
    return assemble(name or f"leafspine-{leaves}-{spines}-{hosts}", [*lower, *upper], cables, **options)


def threetier(
    pods: int, leaves: int, aggs: int, spines: int, hosts: int, *, uplinks: Sequence[Uplink] = (),
    cores: Sequence[Uplink] = (), **options: Unpack[FabricOptions],
) -> Fabric:
    """Pods of ``leaves`` leaves and ``aggs`` aggregation switches each under ``spines`` spines, with ``hosts`` spread
    over all leaves.  Spine s is linked to aggregation switch s mod ``aggs`` of every pod, so that each spine is the
    root of one tree.

    uplinks  links of a leaf to each aggregation switch of its pod;  cores  links of a pod to each spine
    Addresses count leaves from 0, so that a pod has one block of them if its number of leaves is a power of two.
    Raises FabricError for numbers that do not fit: each spine is linked to one aggregation switch of a pod, so there
    are as many spines as aggregation switches in a pod, or a multiple.
    """
    if min(pods, leaves, aggs, hosts) < 1 or spines < aggs or spines % aggs:
        raise FabricError("threetier: expected at least 1 pod, leaf, agg and host, and as many spines as aggs in a "
                          f"pod, or a multiple; got {pods}, {leaves}, {aggs}, {spines}, {hosts}")
    to_aggs = _to_each("threetier: uplinks", uplinks, aggs, "agg of a pod")
    to_spines = _to_each("threetier: cores", cores, spines, "spine")
    lower = sites([f"leaf{i + 1}" for i in range(pods * leaves)], "leaf", spread(hosts, pods * leaves))
    middle = sites([f"agg{i + 1}" for i in range(pods * aggs)], "agg")
    upper = sites([f"spine{i + 1}" for i in range(spines)], "spine")
    cables = [cable for pod in range(pods) for leaf in range(leaves) for agg, up in enumerate(to_aggs)
              for cable in [Edge(lower[pod * leaves + leaf].name, middle[pod * aggs + agg].name, up.rate)] * up.links]
    cables += [cable for pod in range(pods) for spine, up in enumerate(to_spines)
               for cable in [Edge(middle[pod * aggs + spine % aggs].name, upper[spine].name, up.rate)] * up.links]
    return assemble(f"threetier-{pods}-{leaves}-{aggs}-{spines}-{hosts}", [*lower, *middle, *upper], cables, first=0,
                    **options)


def _to_each(where: str, given: Sequence[Uplink], expected: int, what: str) -> Sequence[Uplink]:
    if given and len(given) != expected:
        raise FabricError(f"{where}: expected one for each {what}, {expected} in all, got {len(given)}")
    return given or [Uplink()] * expected


class Family(NamedTuple):
    """A family of topologies: what stands in its text, and what makes it."""

    make: Callable[..., Fabric]
    """(*numbers, **options, **`FabricOptions`) -> fabric"""
    example: str
    numbers: str
    options: Mapping[str, tuple[str, Callable[[str], Any]]]
    """Name -> form of the value, and its parser, which raises FabricError."""


_UPLINKS: Final = ("[Nx][RATE]:...", uplinks)
_GRID: Final = {"hosts": ("N", number), "rows": ("RATE", rate), "columns": ("RATE", rate), "host": ("RATE", rate)}
FAMILIES: Final = {
    "leafspine": Family(leafspine, "leafspine,2,2,8", "LEAVES,SPINES,HOSTS", {"uplinks": _UPLINKS}),
    "threetier": Family(threetier, "threetier,2,2,2,4,8", "PODS,LEAVES,AGGS,SPINES,HOSTS",
                        {"uplinks": _UPLINKS, "cores": _UPLINKS}),
    "mesh": Family(grids.mesh, "mesh,2,4", "ROWS,COLUMNS", _GRID),
    "torus": Family(grids.torus, "torus,3,3", "ROWS,COLUMNS", _GRID),
}
"""The families that `parse` takes, by the first word."""
FORMS: Final = {kind: f"{kind},{family.numbers}" + "".join(f"[,{name}={form}]" for name, (form, _) in
                                                         family.options.items()) for kind, family in FAMILIES.items()}
"""The texts that `parse` takes besides file:PATH, by their first word."""


def parse_planes(text: str, *, rate: str | None = None, **options: Any) -> list[Fabric]:
    """One fabric for each plane that ``text`` asks for, alike but for their rates.  Raises FabricError.

    rate     rate of all links; or one for each plane, separated by commas
    options  other `FabricOptions`
    """
    kind, _, form = text.partition(",")
    planes = PLANES.get(kind, 1)
    rates = [rate] if rate is None else [*rate.split(",")]
    if len(rates) not in (1, planes):
        raise FabricError(f"rate {rate!r}: expected one for all planes, or {planes} with commas")
    rates *= planes // len(rates)
    return [parse(form if kind in PLANES else text, rate=rate, **options) for rate in rates]


def parse(text: str, **options: Unpack[FabricOptions]) -> Fabric:
    """The fabric that a text such as ``leafspine,2,2,8`` or ``file:lab.graphml`` describes.  Raises FabricError."""
    if text.startswith(FILE):
        return graph_file.load(Path(text.removeprefix(FILE)), **options)
    kind, *words = text.split(",")
    family = FAMILIES.get(kind)
    if family is None:
        raise FabricError(f"unknown topology {text!r}: expected {', '.join(FORMS.values())} or {FILE}PATH, as "
                          "leafspine,2,2,8 or mesh,2,4")
    plain = [word for word in words if "=" not in word]
    if len(plain) != family.numbers.count(",") + 1 or words[: len(plain)] != plain or not all(
            word.isdecimal() and len(word) <= 5 for word in plain):
        raise FabricError(f"unknown topology {text!r}: expected {FORMS[kind]}: whole numbers, then "
                          f"options, as {family.example}")
    given: dict[str, Any] = {}
    for word in words[len(plain):]:
        name, _, value = word.partition("=")
        if name not in family.options or name in given:
            why = "given twice" if name in given else f"expected {FORMS[kind]}"
            raise FabricError(f"topology {text!r}: {name}: {why}")
        try:
            given[name] = family.options[name][1](value)
        except FabricError as error:
            raise FabricError(f"topology {text!r}: {name}: {error}") from error
    return family.make(*map(int, plain), **given, **options)
