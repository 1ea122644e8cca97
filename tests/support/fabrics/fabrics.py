# SPDX-License-Identifier: Apache-2.0
"""Fabrics of tests that are not about how soon a link counts as down, made as by ``netfold.fabric.generate``.

A busy machine may hold up a switch, and with it the probes of its links, for seconds.  With `Fabric.misses` as users
have it, such a link counts as down, and a job is halted for another reason than the one that the test is about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

import msgspec

from netfold.fabric import generate
from netfold.fabric.graph import Fabric

P = ParamSpec("P")
PATIENCE: Final = 120
"""`Fabric.misses` of these fabrics: a link that ranks suspect gets a probe each 30 ms, and a machine that stands still
for 3 s must not cause a recovery round."""


def patient(make: Callable[P, Fabric]) -> Callable[P, Fabric]:
    """The same maker, of fabrics whose links count as down after PATIENCE probes."""

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Fabric:
        return msgspec.structs.replace(make(*args, **kwargs), misses=PATIENCE)

    return made


leafspine: Final = patient(generate.leafspine)
threetier: Final = patient(generate.threetier)
parse: Final = patient(generate.parse)
