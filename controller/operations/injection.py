# SPDX-License-Identifier: Apache-2.0
"""Faults that the switches' program injects (p4src/fault.p4), set by command on a running fabric.

What is set is part of the switches' desired state, so that one which restarts has it again.  A controller that starts
anew has none but those of the fabric file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from netfold.controller.switch import tables
from netfold.controller.switch.target import Target
from netfold.fabric.graph import FAULTS, Fabric
from netfold.rpc.rpc import Code, Refusal
from netfold.wire import operator

log = logging.getLogger("netfold.controller")

HOW_TO_COMPILE: Final = ("start the fabric with --faults (`netfold run --topo ... --faults`), or with `faults = "
                         "true` in section [fabric] of its file")


class Injection:
    """Sets the injected faults of one fabric."""

    def __init__(self, fabric: Fabric, targets: Mapping[str, Target]) -> None:
        self._fabric = fabric
        self._targets = targets

    async def answer(self, request: operator.SetFaults) -> operator.FaultsSet:
        """The gRPC method Faults: inject these and no others, beside those of the fabric file.  Raises Refusal."""
        if request.links and not self._fabric.faulty:
            raise Refusal(Code.FAILED_PRECONDITION, f"the program on the switches of {self._fabric.name} was compiled "
                                                    f"without faults: {HOW_TO_COMPILE}")
        fabric, seeds = self._with(request)
        if self._fabric.faulty:
            entries = tables.fixed_entries(fabric, seeds)
            await asyncio.gather(*(target.replace({"fabric": entries[target.name]})
                                   for target in self._targets.values()))
        faulty = [link for link in fabric.links if any(getattr(link, name) for name in FAULTS)]
        log.warning("faults are injected on %s", ", ".join(f"{link.a} - {link.b}" for link in faulty) or "no link")
        return operator.FaultsSet(len(faulty))

    def _with(self, request: operator.SetFaults) -> tuple[Fabric, dict[int, int]]:
        """The fabric with these faults added, and the seeds of links by number.  Raises Refusal."""
        numbers = {end: number for number, link in enumerate(self._fabric.links) for end in (link.a, link.b)}
        links, seeds, seen = list(self._fabric.links), dict[int, int](), set[int]()
        for asked in request.links:
            number = numbers.get(asked.link)
            if number is None or number in seen:
                what = "has no such link" if number is None else "has it twice in this request"
                raise Refusal(Code.INVALID_ARGUMENT, f"{asked.link}: {self._fabric.name} {what}; expected NODE:PORT, "
                                                     "each link once (`netfold links` lists them)")
            seen.add(number)
            link = links[number]
            shares = {name: getattr(link, name) + getattr(asked, name) for name in FAULTS}
            if sum(shares.values()) > 1:
                raise Refusal(Code.INVALID_ARGUMENT, f"{asked.link}: a packet has one fault at most, so that shares "
                                                     f"add up to 1 or less; got {shares}")
            links[number] = msgspec.structs.replace(link, **shares)
            if asked.seed is not None:
                seeds[number] = asked.seed
        return msgspec.structs.replace(self._fabric, links=tuple(links)), seeds
