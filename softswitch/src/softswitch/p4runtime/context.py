# SPDX-License-Identifier: Apache-2.0
"""The data that the entity modules work on: the engine and schema of a running pipeline, and state that only P4Runtime
has."""

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
    """The state of one running pipeline."""

    schema: Schema
    engine: Engine
    digests: Digests
    metadata: dict[Identity, bytes] = field(default_factory=dict)
    """TableEntry.metadata, which is kept for controllers; the switch does not use it."""
    group_metadata: dict[int, bytes] = field(default_factory=dict)
    """MulticastGroupEntry.metadata, which is kept for controllers as well."""
    one_shot: OneShotSets = field(init=False)

    def __post_init__(self) -> None:
        self.one_shot = OneShotSets(self.engine)

    def reset(self) -> None:
        """Forgets what is kept for controllers, when the engine's state was reset."""
        self.metadata.clear()
        self.group_metadata.clear()
        self.one_shot = OneShotSets(self.engine)
