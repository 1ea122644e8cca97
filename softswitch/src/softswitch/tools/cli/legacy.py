# SPDX-License-Identifier: Apache-2.0
"""The classes and functions of BMv2's modules runtime_CLI and sswitch_CLI, for scripts that import these.

There, the names of the program are a variable of the module: `load_json_config` sets it, and the shells use it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from softswitch.thrift.structs import TYPES
from softswitch.tools.cli import main as program
from softswitch.tools.cli.program import Names


class PreType:
    """The packet replication engines, as numbers."""

    none, SimplePre, SimplePreLAG = 0, 1, 2

    @staticmethod
    def to_str(number: int) -> str:
        return ("none", "SimplePre", "SimplePreLAG")[number]

    @staticmethod
    def from_str(name: str) -> int:
        return {"none": 0, "None": 0, "SimplePre": 1, "SimplePreLAG": 2}[name]


_EMPTY = "{}"
_names = Names(_EMPTY)


def reset_config() -> None:
    """Forgets the program's names."""
    load_json_str(_EMPTY)


def load_json_str(json_str: str, architecture_spec: Any = None) -> None:
    """Takes the program's names from JSON."""
    global _names
    _names = Names(json_str)


def load_json_config(standard_client: Any = None, json_path: str | None = None, architecture_spec: Any = None) -> None:
    """Takes the program's names from a file, or from the switch."""
    load_json_str(program.read_config(standard_client, json_path))


def thrift_connect(thrift_ip: str, thrift_port: int, services: Sequence[tuple[str | None, Any]]) -> list[Any]:
    """Clients of services that share a connection."""
    return program.connect(thrift_ip, thrift_port, services)


def get_parser() -> argparse.ArgumentParser:
    """The options of the command lines; `pre` becomes a number of PreType."""
    parser = program.parser()
    for action in parser._actions:
        if action.dest == "pre":
            action.type, action.choices, action.default = PreType.from_str, [0, 1, 2], PreType.SimplePre
    return parser


class RuntimeAPI(program.SwitchShell):
    """The shell of runtime_CLI. What goes beyond the services that it has clients of fails."""

    @staticmethod
    def get_thrift_services(pre_type: int) -> list[tuple[str | None, Any]]:
        """Names and client classes of the services for an engine of PreType."""
        pre = {PreType.SimplePre: "simple_pre", PreType.SimplePreLAG: "simple_pre_lag"}.get(pre_type)
        return [("standard", TYPES["standard"].Client), (pre, TYPES[pre].Client if pre else None)]

    def __init__(self, pre_type: int, standard_client: Any, mc_client: Any = None, sswitch_client: Any = None) -> None:
        self.pre_type = pre_type
        super().__init__(standard_client, mc_client if pre_type else None, sswitch_client, _names,
                         lags=pre_type == PreType.SimplePreLAG)


class SimpleSwitchAPI(RuntimeAPI):
    """The shell of sswitch_CLI."""

    @staticmethod
    def get_thrift_services(pre_type: int = PreType.none) -> list[tuple[str | None, Any]]:
        """Name and client class of simple_switch's own service."""
        return [("simple_switch", TYPES["simple_switch"].Client)]


def main() -> None:
    """runtime_CLI as a program."""
    options = get_parser().parse_args()
    services = RuntimeAPI.get_thrift_services(options.pre)
    standard, pre = thrift_connect(options.thrift_ip, options.thrift_port, services)
    load_json_config(standard, options.json)
    RuntimeAPI(options.pre, standard, pre).cmdloop()
