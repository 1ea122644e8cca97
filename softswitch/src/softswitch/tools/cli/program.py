# SPDX-License-Identifier: Apache-2.0
"""The names in a program, from BMv2's JSON: what commands may call tables, actions and other objects."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

KINDS = {"table": "tables", "action profile": "profiles", "action": "actions", "meter": "meters",
         "counter": "counters", "register": "registers", "parser value set": "value_sets"}
"""Kinds of objects, as messages name them, and the attribute of Names that has them."""


@dataclass
class Action:
    """An action: (name, bits) of each parameter."""

    name: str
    params: list[tuple[str, int]]

    def __str__(self) -> str:
        params = ",\t".join(f"{name}({bits})" for name, bits in self.params)
        return f"{self.name:30} [{params}]"


@dataclass
class Profile:
    """An action profile, or (selector) action selector; `users` counts the tables that share it."""

    name: str
    selector: bool
    actions: dict[str, Action] = field(default_factory=dict)
    users: int = 0


@dataclass
class Table:
    """A table: its own match kind ("exact" ...), its type ("simple", "indirect", "indirect_ws"), and (name, match kind,
    bits) of each key field."""

    name: str
    match: str
    type: str
    ages: bool
    actions: dict[str, Action]
    profile: Profile | None
    key: list[tuple[str, str, int]]

    @property
    def ordered(self) -> bool:
        """True if its entries have a priority."""
        return self.match in ("ternary", "range")

    def __str__(self) -> str:
        key = ",\t".join(f"{name}({kind}, {bits})" for name, kind, bits in self.key)
        profile = self.profile.name if self.profile else "None"
        return f"{self.name:30} [implementation={profile}, mk={key}]"


@dataclass
class Array:
    """A meter or counter array; `table` is the one that it is direct to, or None."""

    name: str
    table: str | None
    rates: int = 0


@dataclass
class Register:
    """A register array."""

    name: str


@dataclass
class ValueSetName:
    """A parser value set, whose values have so many bits."""

    name: str
    bits: int


class Names:
    """All objects of a program. An object may be called by its full name, or by as many of its last parts as are its
    alone."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for text that is not BMv2's JSON of a program."""
        try:
            self._read(json.loads(text))
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"expected BMv2's JSON of a program: {error!r}") from None

    def _read(self, program: dict[str, Any]) -> None:
        self.actions = {a["name"]: Action(a["name"], [(p["name"], p["bitwidth"]) for p in a["runtime_data"]])
                        for a in program.get("actions", [])}
        self.profiles: dict[str, Profile] = {}
        self.tables: dict[str, Table] = {}
        types = {h["name"]: h["header_type"] for h in program.get("headers", [])}
        self._bits = {(t["name"], f[0]): f[1] for t in program.get("header_types", []) for f in t["fields"]}
        self._types = types
        for pipeline in program.get("pipelines", []):
            for profile in pipeline.get("action_profiles", []):
                self.profiles[profile["name"]] = Profile(profile["name"], "selector" in profile)
            for table in pipeline["tables"]:
                self.tables[table["name"]] = self._table(table)
        self.meters = {m["name"]: Array(m["name"], m["binding"] if m.get("is_direct") else None, m["rate_count"])
                       for m in program.get("meter_arrays", [])}
        self.counters = {c["name"]: Array(c["name"], c["binding"] if c["is_direct"] else None)
                         for c in program.get("counter_arrays", [])}
        self.registers = {r["name"]: Register(r["name"]) for r in program.get("register_arrays", [])}
        self.value_sets = {v["name"]: ValueSetName(v["name"], v["compressed_bitwidth"])
                           for v in program.get("parse_vsets", [])}
        self.crcs = {c["name"]: int(c["algo"][3:5]) for c in program.get("calculations", [])
                     if c["algo"] in ("crc16_custom", "crc32_custom")}
        """Custom CRCs, and their bits."""
        self._short = {kind: _suffixes(getattr(self, attribute)) for kind, attribute in KINDS.items()}

    def find(self, kind: str, name: str) -> Any:
        """The object of a kind that is called so, or None."""
        return self._short[kind].get(name)

    def _table(self, j: dict[str, Any]) -> Table:
        actions = {name: self.actions[name] for name in j["actions"]}
        profile = None
        if j["type"] != "simple":
            profile = self.profiles[j["action_profile"]]
            profile.actions.update(actions)
            profile.users += 1
        return Table(j["name"], j["match_type"], j["type"], bool(j["support_timeout"]), actions, profile,
                     [self._field(key) for key in j["key"]])

    def _field(self, key: dict[str, Any]) -> tuple[str, str, int]:
        target, kind = key["target"], key["match_type"]
        if kind == "valid":
            return f"{target}_valid", kind, 1
        header, name = target
        if name == "$valid$":
            return f"{header}_valid", kind, 1
        return f"{header}.{name}", kind, self._bits[self._types[header], name]


def _suffixes(things: dict[str, Any]) -> dict[str, Any]:
    """The objects by every ending of their names that is no other's."""
    found: dict[str, Any] = {}
    uses: Counter[str] = Counter()
    for name, thing in things.items():
        parts = name.split(".")
        for n in range(1, len(parts) + 1):
            ending = ".".join(parts[-n:])
            found[ending] = thing
            uses[ending] += 1
    return {ending: thing for ending, thing in found.items() if uses[ending] == 1}
