# SPDX-License-Identifier: Apache-2.0
"""Planes and rails by name, as the environment gives them.

A plane is a fabric of its own on which this machine has an address: its own links, switches and controller.

    NETFOLD_PLANES="a=10.0.1.1@unix:/run/a.sock b=10.1.1.1@unix:/run/b.sock"      this machine's, by name
    NETFOLD_RAILS="innet@a+tcp@b"                                                 the job's, the same on all ranks
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

PLANES_VARIABLE = "NETFOLD_PLANES"
RAILS_VARIABLE = "NETFOLD_RAILS"
Kind = Literal["innet", "verbs", "tcp", "roce"]


@dataclass(frozen=True)
class Plane:
    """A plane as this machine sees it: its own address there, and the address of the controller's job service."""

    address: str
    controller: str


@dataclass(frozen=True)
class RailSpec:
    """A rail of a job: its kind, "innet", "verbs", "tcp" or "roce", and its plane."""

    kind: Kind
    plane: Plane
    name: str = ""
    """Name for messages; default: the kind and the address."""

    def __str__(self) -> str:
        return self.name or f"{self.kind}@{self.plane.address}"


def parse_planes(text: str) -> dict[str, Plane]:
    """Parses the value of NETFOLD_PLANES.  Returns planes by name.  Raises ValueError."""
    planes = {}
    for word in text.split():
        name, equals, rest = word.partition("=")
        address, at, controller = rest.partition("@")
        if not (name and equals and address and at and controller):
            raise ValueError(
                f"{PLANES_VARIABLE}: {word!r}: expected NAME=ADDRESS@CONTROLLER, as in a=10.0.1.1@unix:/run/a.sock"
            )
        planes[name] = Plane(address, controller)
    return planes


def parse_rails(text: str, planes: Mapping[str, Plane]) -> list[RailSpec]:
    """Parses the value of NETFOLD_RAILS.  Raises ValueError."""
    specs = []
    for word in text.split("+"):
        kind, _, plane = word.strip().partition("@")
        if kind not in get_args(Kind) or plane not in planes:
            raise ValueError(
                f"rail {word!r}: expected KIND@PLANE with one of {', '.join(get_args(Kind))} and one of the planes "
                f"{', '.join(planes) or f'of {PLANES_VARIABLE}, which names none'}"
            )
        specs.append(RailSpec(cast(Kind, kind), planes[plane], word.strip()))
    return specs


def specs_of(rails: str | Sequence[RailSpec] | None, *, asked: bool) -> list[RailSpec]:
    """The rails that an argument gives, or the environment where there is none; none where neither names any.

    asked  one rail was asked for by name, so the environment does not count.  Raises ValueError.
    """
    if rails is not None and asked:
        raise ValueError("rail= and rails= both given: expected one of them")
    text = rails if rails is not None else "" if asked else os.environ.get(RAILS_VARIABLE, "")
    if not isinstance(text, str):
        return list(text)
    return parse_rails(text, parse_planes(os.environ.get(PLANES_VARIABLE, ""))) if text else []
