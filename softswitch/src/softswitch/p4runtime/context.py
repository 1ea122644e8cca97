# SPDX-License-Identifier: Apache-2.0
"""The data that the entity modules work on: the engine and schema of a running pipeline, and state that only P4Runtime
has."""

from __future__ import annotations

import threading
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
    default_metadata: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """By table: the controller_metadata and metadata of its default action, kept in the same way."""
    group_metadata: dict[int, bytes] = field(default_factory=dict)
    """MulticastGroupEntry.metadata, which is kept for controllers as well."""
    crcs: dict[str, tuple[int, int, int, int, bool, bool]] = field(default_factory=dict)
    """The parameters of custom CRCs that were set, in the order of `set_crc` (crcs.py)."""
    one_shot: OneShotSets = field(init=False)
    changing: threading.Lock = field(default_factory=threading.Lock)
    """Held while a write is executed, and while a part of a read is, so that it shows no write half done."""

    def __post_init__(self) -> None:
        self.one_shot = OneShotSets(self.engine)

    def reset(self) -> None:
        """Forgets what is kept for controllers, when the engine's state was reset."""
        self.metadata.clear()
        self.default_metadata.clear()
        self.group_metadata.clear()
        self.one_shot = OneShotSets(self.engine)
