# SPDX-License-Identifier: Apache-2.0
"""Multicast over Thrift: groups of nodes, each with a replication id and sets of ports and link aggregates.

The engine has groups of (port, instance) pairs alone. The nodes are kept here, and the pairs of a group are those of
its nodes, in their order. Groups that P4Runtime has written get nodes, one for each run of pairs with one instance, as
soon as somebody asks. Of a link aggregate BMv2 always takes the member at 255 modulo their number.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn

from softswitch.engine.engine import Engine
from softswitch.engine.entities import Multicast
from softswitch.engine.errors import AlreadyExists, NotFound
from softswitch.thrift.switch import PRE, Switch

_LAG_HASH = 0xFF
_LAG_MAX = 256
_NODES_MAX = 4096
"""Most nodes, as in BMv2."""
_PORTS_MAX = 512
_LAGS_MAX = 256


def _fail(error: str) -> NoReturn:
    raise PRE.InvalidMcOperation(getattr(PRE.McOperationErrorCode, error))


def _members(bitmap: str | None, limit: int) -> tuple[int, ...]:
    """The places of the ones in a text of zeros and ones, whose last digit is place 0; those beyond `limit` do not
    exist in BMv2 either."""
    text = bitmap or ""
    if text.strip("01"):
        _fail("ERROR")
    return tuple(at for at, digit in enumerate(reversed(text[-limit:])) if digit == "1")


@dataclass
class _Node:
    rid: int
    ports: tuple[int, ...]
    lags: tuple[int, ...] = ()
    group: int | None = None


@dataclass
class _Nodes:
    """The nodes of one running program."""

    engine: Engine
    nodes: dict[int, _Node] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)
    """Group -> the handles of its nodes, in the order of their arrival."""
    lags: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def free_handle(self) -> int:
        return next(n for n in range(len(self.nodes) + 1) if n not in self.nodes)

    def replicas(self, group: int) -> tuple[tuple[int, int], ...]:
        """The copies that a group sends: (port, instance), no pair twice."""
        found: dict[tuple[int, int], None] = {}
        for handle in self.groups[group]:
            node = self.nodes[handle]
            for port in node.ports:
                found[port, node.rid] = None
            for lag in node.lags:
                if ports := self.lags.get(lag):
                    found[ports[_LAG_HASH % len(ports)], node.rid] = None
        return tuple(found)

    def refresh(self) -> None:
        """Takes over what P4Runtime has changed."""
        present = {group.group: group.replicas for group in self.engine.multicasts()}
        for ident in [ident for ident in self.groups if ident not in present]:
            for handle in self.groups.pop(ident):
                self.nodes[handle].group = None
        for ident, replicas in present.items():
            if ident in self.groups and self.replicas(ident) == replicas:
                continue
            for handle in self.groups.get(ident, []):
                del self.nodes[handle]
            self.groups[ident] = []
            for port, rid in replicas:
                last = self.nodes[self.groups[ident][-1]] if self.groups[ident] else None
                if last is not None and last.rid == rid and port > last.ports[-1]:
                    last.ports += (port,)
                else:
                    handle = self.free_handle()
                    self.nodes[handle] = _Node(rid, (port,), group=ident)
                    self.groups[ident].append(handle)

    def write(self, group: int) -> None:
        self.engine.write_multicast("modify", Multicast(group, self.replicas(group)))


class Replication:
    """The methods bm_mc_*, with link aggregates (SimplePreLAG); SimplePre's calls have no `lag_map`."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._kept: _Nodes | None = None

    def _nodes(self) -> _Nodes:
        engine = self._switch.context().engine
        if self._kept is None or self._kept.engine is not engine:  # another program runs now
            self._kept = _Nodes(engine)
        self._kept.refresh()
        return self._kept

    def forget(self) -> None:
        """Forgets all nodes, when the switch's state is reset."""
        self._kept = None

    def bm_mc_mgrp_create(self, cxt_id: int, mgrp: int) -> int:
        nodes = self._nodes()
        if not 0 < mgrp < 1 << 16:
            _fail("INVALID_MGID")
        try:
            nodes.engine.write_multicast("insert", Multicast(mgrp, ()))
        except AlreadyExists:  # BMv2 keeps what is there, and says nothing
            return mgrp
        nodes.groups[mgrp] = []
        return mgrp

    def bm_mc_mgrp_destroy(self, cxt_id: int, mgrp_handle: int) -> None:
        nodes = self._nodes()
        try:
            nodes.engine.write_multicast("delete", Multicast(mgrp_handle & 0xFFFFFFFF, ()))
        except NotFound:  # BMv2 says nothing
            return
        for handle in nodes.groups.pop(mgrp_handle & 0xFFFFFFFF):
            nodes.nodes[handle].group = None

    def bm_mc_node_create(self, cxt_id: int, rid: int, port_map: str, lag_map: str | None = None) -> int:
        nodes = self._nodes()
        if len(nodes.nodes) >= _NODES_MAX:
            _fail("TABLE_FULL")
        handle = nodes.free_handle()
        nodes.nodes[handle] = _Node(rid & 0xFFFF, _members(port_map, _PORTS_MAX), _members(lag_map, _LAGS_MAX))
        return handle

    def _node(self, nodes: _Nodes, handle: int) -> _Node:
        return nodes.nodes.get(handle) or _fail("INVALID_L1_HANDLE")

    def bm_mc_node_associate(self, cxt_id: int, mgrp_handle: int, l1_handle: int) -> None:
        nodes = self._nodes()
        node = self._node(nodes, l1_handle)
        if mgrp_handle not in nodes.groups:
            _fail("INVALID_MGRP_HANDLE")
        if node.group is not None:
            _fail("ERROR")
        node.group = mgrp_handle
        nodes.groups[mgrp_handle].append(l1_handle)
        nodes.write(mgrp_handle)

    def bm_mc_node_dissociate(self, cxt_id: int, mgrp_handle: int, l1_handle: int) -> None:
        nodes = self._nodes()
        node = self._node(nodes, l1_handle)
        if mgrp_handle not in nodes.groups:
            _fail("INVALID_MGRP_HANDLE")
        if node.group != mgrp_handle:
            _fail("ERROR")
        self._leave(nodes, l1_handle)

    def _leave(self, nodes: _Nodes, handle: int) -> None:
        node = nodes.nodes[handle]
        if node.group is not None:
            group, node.group = node.group, None
            nodes.groups[group].remove(handle)
            nodes.write(group)

    def bm_mc_node_destroy(self, cxt_id: int, l1_handle: int) -> None:
        nodes = self._nodes()
        self._node(nodes, l1_handle)
        self._leave(nodes, l1_handle)
        del nodes.nodes[l1_handle]

    def bm_mc_node_update(self, cxt_id: int, l1_handle: int, port_map: str, lag_map: str | None = None) -> None:
        nodes = self._nodes()
        node = self._node(nodes, l1_handle)
        node.ports, node.lags = _members(port_map, _PORTS_MAX), _members(lag_map, _LAGS_MAX)
        if node.group is not None:
            nodes.write(node.group)

    def bm_mc_set_lag_membership(self, cxt_id: int, lag_index: int, port_map: str) -> None:
        nodes = self._nodes()
        if not 0 <= lag_index <= _LAG_MAX:
            _fail("ERROR")
        nodes.lags[lag_index] = _members(port_map, _PORTS_MAX)
        for group, handles in nodes.groups.items():
            if any(lag_index in nodes.nodes[handle].lags for handle in handles):
                nodes.write(group)

    def bm_mc_get_entries(self, cxt_id: int) -> str:
        nodes = self._nodes()
        found: dict[str, Any] = {
            "mgrps": [{"id": ident, "l1_handles": handles} for ident, handles in sorted(nodes.groups.items())],
            "l1_handles": [{"handle": handle, "rid": node.rid, "l2_handle": handle}
                           for handle, node in sorted(nodes.nodes.items())],
            "l2_handles": [{"handle": handle, "ports": list(node.ports), "lags": list(node.lags)}
                           for handle, node in sorted(nodes.nodes.items())],
            "lags": [{"id": ident, "ports": list(ports)} for ident, ports in sorted(nodes.lags.items())],
        }
        return json.dumps(found, indent=1)
