# SPDX-License-Identifier: Apache-2.0
"""What the entity modules work on: a running pipeline's engine and schema, and what only P4Runtime knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.engine.engine import Engine
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.one_shot import OneShotSets
from softswitch.p4runtime.schema import Schema

Identity = tuple[int, bytes, bytes, int]
"""A table entry: table id, key and mask in byte form, priority."""


@dataclass
class Context:
    """Lives as long as the pipeline runs."""

    schema: Schema
    engine: Engine
    digests: Digests
    metadata: dict[Identity, bytes] = field(default_factory=dict)
    """TableEntry.metadata, which the switch itself has no use for."""
    group_metadata: dict[int, bytes] = field(default_factory=dict)
    """MulticastGroupEntry.metadata, likewise."""
    one_shot: OneShotSets = field(init=False)

    def __post_init__(self) -> None:
        self.one_shot = OneShotSets(self.engine)
