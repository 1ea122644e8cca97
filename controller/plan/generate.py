# SPDX-License-Identifier: Apache-2.0
"""Fabrics by a line of text, as `--topo` has it.

    leafspine,LEAVES,SPINES,HOSTS                 every leaf on every spine
    threetier,PODS,LEAVES,AGGS,SPINES,HOSTS       per pod LEAVES leaves, each on AGGS aggs; spine s is on the agg
                                                  s mod AGGS of every pod, so that each spine is the root of one tree
    dual,FORM or triple,FORM                      two or three planes: fabrics of that form which share their hosts
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Unpack

from netfold.controller.plan.fabric import Engine, Fabric, FabricError, Faults, Role, assemble, leafspine, spread
from netfold.wire.roce import PATH_MTU

FORMS: Final = {
    "leafspine": "leafspine,LEAVES,SPINES,HOSTS",
    "threetier": "threetier,PODS,LEAVES,AGGS,SPINES,HOSTS",
}
"""What `parse` takes."""
PLANES: Final = {"dual": 2, "triple": 3}
"""What may stand before one of them for `parse_planes`."""
PLANE_NAMES: Final = "abcdefgh"
"""Of planes, in order."""


def parse_planes(text: str, *, rate: str | None = None, **options: Any) -> list[Fabric]:
    """The fabrics of all planes, alike but for their rates: one where ``text`` asks for no more.  Raises FabricError.

    rate     of all links; or one for each plane, with commas
    options  of `parse`
    """
    kind, _, form = text.partition(",")
    count = PLANES.get(kind, 1)
    rates = [rate] if rate is None else [*rate.split(",")]
    if len(rates) not in (1, count):
        raise FabricError(f"rate {rate!r}: expected one for all planes, or {count} with commas")
    rates *= count // len(rates)
    return [parse(form if kind in PLANES else text, rate=rate, **options) for rate in rates]


def parse(
    text: str,
    *,
    rate: str | None = None,
    seed: int = 0,
    engine: Engine = "softswitch",
    rundir: Path | None = None,
    path_mtu: int = PATH_MTU,
    **faults: Unpack[Faults],
) -> Fabric:
    """The fabric of one of `FORMS`.  Raises FabricError."""
    kind, *words = text.split(",")
    form = FORMS.get(kind)
    if form is None or len(words) != form.count(",") or not all(word.isdecimal() for word in words):
        raise FabricError(f"unknown topology {text!r}: expected {' or '.join(FORMS.values())}, as leafspine,2,2,8")
    numbers = [int(word) for word in words]
    if kind == "leafspine":
        leaves, spines, hosts = numbers
        return leafspine(leaves, spines, hosts, rate=rate, seed=seed, engine=engine, rundir=rundir,
                         path_mtu=path_mtu, **faults)
    pods, leaves, aggs, spines, hosts = numbers
    return threetier(pods, leaves, aggs, spines, hosts, rate=rate, seed=seed, engine=engine, rundir=rundir,
                     path_mtu=path_mtu, **faults)


def threetier(
    pods: int,
    leaves: int,
    aggs: int,
    spines: int,
    hosts: int,
    *,
    rate: str | None = None,
    seed: int = 0,
    engine: Engine = "softswitch",
    rundir: Path | None = None,
    path_mtu: int = PATH_MTU,
    base_port: int = 50050,
    **faults: Unpack[Faults],
) -> Fabric:
    """Pods of ``leaves`` leaves and ``aggs`` aggs each under ``spines`` spines, ``hosts`` spread over all leaves.

    Raises FabricError where it cannot be: each spine hangs on one agg of a pod, so there are as many spines as aggs in
    a pod, or a multiple.
    """
    if min(pods, leaves, aggs, hosts) < 1 or spines < aggs or spines % aggs:
        raise FabricError("threetier: expected at least 1 pod, leaf, agg and host, and as many spines as aggs in a "
                          f"pod, or a multiple; got {pods}, {leaves}, {aggs}, {spines}, {hosts}")
    uppers: list[tuple[str, Role]] = [(f"agg{i + 1}", "agg") for i in range(pods * aggs)]
    uppers += [(f"spine{i + 1}", "spine") for i in range(spines)]
    cables = [(f"leaf{pod * leaves + leaf + 1}", f"agg{pod * aggs + agg + 1}")
              for pod in range(pods) for leaf in range(leaves) for agg in range(aggs)]
    cables += [(f"agg{pod * aggs + spine % aggs + 1}", f"spine{spine + 1}")
               for pod in range(pods) for spine in range(spines)]
    return assemble(f"threetier-{pods}-{leaves}-{aggs}-{spines}-{hosts}", spread(hosts, pods * leaves), uppers, cables,
                    rate=rate, seed=seed, engine=engine, rundir=rundir, base_port=base_port, faults=faults,
                    path_mtu=path_mtu)
