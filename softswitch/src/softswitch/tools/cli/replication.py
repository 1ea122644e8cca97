# SPDX-License-Identifier: Apache-2.0
"""The commands of multicast groups, nodes and link aggregates."""

from __future__ import annotations

import json

from softswitch.tools.cli.shell import Shell, command
from softswitch.tools.cli.values import CommandError


class ReplicationCommands(Shell):
    """mc_*."""

    def _group(self, text: str) -> int:
        self._check()
        return self.number(text, "multicast group id")

    def _check(self) -> None:
        if self.mc_client is None:
            raise CommandError("Cannot execute this command without packet replication engine")

    def _bitmap(self, texts: list[str], what: str) -> str:
        """Numbers as a text of zeros and ones, whose last digit stands for number 0."""
        found: set[int] = set()
        for text in texts:
            if not text.isascii() or not text.isdigit() or int(text) >= 1 << 16:
                raise CommandError(f"'{text}' is not a valid {what} number")
            if int(text) in found:
                raise CommandError(f"Found duplicate {what} number '{int(text)}'")
            found.add(int(text))
        return "".join("1" if at in found else "0" for at in range(max(found, default=-1), -1, -1))

    def _ports_and_lags(self, texts: list[str]) -> tuple[str, ...]:
        """The bitmap of the ports before "|", and that of the aggregates after it where the engine has any."""
        at = texts.index("|") if "|" in texts else len(texts)
        ports = self._bitmap(texts[:at], "port")
        return (ports, self._bitmap(texts[at + 1 :], "lag")) if self.lags else (ports,)

    @command
    def do_mc_mgrp_create(self, args: list[str]) -> None:
        "Create multicast group: mc_mgrp_create <group id>"
        self._check()
        self.exactly(args, 1)
        group = self._group(args[0])
        print("Creating multicast group", group)
        self.mc_client.bm_mc_mgrp_create(0, group)

    @command
    def do_mc_mgrp_destroy(self, args: list[str]) -> None:
        "Destroy multicast group: mc_mgrp_destroy <group id>"
        self._check()
        self.exactly(args, 1)
        group = self._group(args[0])
        print("Destroying multicast group", group)
        self.mc_client.bm_mc_mgrp_destroy(0, group)

    @command
    def do_mc_node_create(self, args: list[str]) -> None:
        ("Create multicast node: mc_node_create <rid> <space-separated port list> [ | <space-separated lag list> ]")
        self._check()
        self.at_least(args, 1)
        rid = self.number(args[0], "rid")
        maps = self._ports_and_lags(args[1:])
        if self.lags:
            print("Creating node with rid", rid, ", port map", maps[0], "and lag map", maps[1])
        else:
            print("Creating node with rid", rid, "and with port map", maps[0])
        print("node was created with handle", self.mc_client.bm_mc_node_create(0, rid, *maps))

    @command
    def do_mc_node_update(self, args: list[str]) -> None:
        ("Update multicast node: mc_node_update <node handle> <space-separated port list> "
         "[ | <space-separated lag list> ]")
        self._check()
        self.at_least(args, 2)
        node = self.number(args[0], "node handle")
        maps = self._ports_and_lags(args[1:])
        print("Updating node", node, "with port map", maps[0], *(["and lag map", maps[1]] if self.lags else []))
        self.mc_client.bm_mc_node_update(0, node, *maps)

    @command
    def do_mc_node_associate(self, args: list[str]) -> None:
        "Associate node to multicast group: mc_node_associate <group handle> <node handle>"
        self._check()
        self.exactly(args, 2)
        group, node = self._group(args[0]), self.number(args[1], "node handle")
        print("Associating node", node, "to multicast group", group)
        self.mc_client.bm_mc_node_associate(0, group, node)

    @command
    def do_mc_node_dissociate(self, args: list[str]) -> None:
        "Dissociate node from multicast group: mc_node_associate <group handle> <node handle>"
        self._check()
        self.exactly(args, 2)
        group, node = self._group(args[0]), self.number(args[1], "node handle")
        print("Dissociating node", node, "from multicast group", group)
        self.mc_client.bm_mc_node_dissociate(0, group, node)

    @command
    def do_mc_node_destroy(self, args: list[str]) -> None:
        "Destroy multicast node: mc_node_destroy <node handle>"
        self._check()
        self.exactly(args, 1)
        node = self.number(args[0], "node handle")
        print("Destroying node", node)
        self.mc_client.bm_mc_node_destroy(0, node)

    @command
    def do_mc_set_lag_membership(self, args: list[str]) -> None:
        "Set lag membership of port list: mc_set_lag_membership <lag index> <space-separated port list>"
        self._check()
        if not self.lags:
            raise CommandError("Cannot execute this command with this type of PRE, SimplePreLAG is required")
        self.at_least(args, 2)
        lag = self.number(args[0], "lag index")
        ports = self._bitmap(args[1:], "lag")
        print("Setting lag membership:", lag, "<-", ports)
        self.mc_client.bm_mc_set_lag_membership(0, lag, ports)

    @command
    def do_mc_dump(self, args: list[str]) -> None:
        "Dump entries in multicast engine"
        self._check()
        try:
            found = json.loads(self.mc_client.bm_mc_get_entries(0))
        except ValueError:
            raise CommandError("the switch's multicast entries cannot be read") from None
        nodes = {node["handle"]: node for node in found["l1_handles"]}
        members = {node["handle"]: node for node in found["l2_handles"]}
        print("==========\nMC ENTRIES")
        for group in found["mgrps"]:
            print(f"**********\nmgrp({group['id']})")
            for handle in group["l1_handles"]:
                node = nodes[handle]
                to = members[node["l2_handle"]]
                print(f"  -> (L1h={handle}, rid={node['rid']}) -> (ports=[{', '.join(map(str, to['ports']))}], "
                      f"lags=[{', '.join(map(str, to['lags']))}])")
        print("==========\nLAGS")
        if "lags" not in found:
            print("None for this PRE type")
        for lag in found.get("lags", []):
            print(f"lag({lag['id']}) -> ports=[{', '.join(map(str, lag['ports']))}]")
        print("==========")
