# SPDX-License-Identifier: Apache-2.0
"""The program simple_switch_CLI: connects, asks the switch for its program's names, and reads commands."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TMultiplexedProtocol import TMultiplexedProtocol
from thrift.transport import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from softswitch.runtime import files
from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.program import Names
from softswitch.tools.cli.replication import ReplicationCommands
from softswitch.tools.cli.state import StateCommands
from softswitch.tools.cli.switch import SwitchCommands
from softswitch.tools.cli.tables import TableCommands


class SwitchShell(TableCommands, StateCommands, ReplicationCommands, SwitchCommands):
    """All commands."""


def parser() -> argparse.ArgumentParser:
    """The options of BMv2's command lines."""
    made = argparse.ArgumentParser(description="BM runtime CLI")
    made.add_argument("--thrift-port", help="Thrift server port for table updates", type=int, default=9090)
    made.add_argument("--thrift-ip", help="Thrift IP address for table updates", default="localhost")
    made.add_argument("--json", help="JSON description of P4 program")
    made.add_argument("--pre", help="Packet Replication Engine used by target",
                      choices=["None", "SimplePre", "SimplePreLAG"], default="SimplePre")
    return made


def connect(
    address: str, port: int, services: Sequence[tuple[str | None, Any]], out: TextIO | None = None
) -> list[Any]:
    """Clients of services, (name, class) each, that share a connection; None for a service without a name. Where
    there is no server, says so and ends the program with status 1."""
    transport = TBufferedTransport(TSocket.TSocket(address, port))
    wire = TBinaryProtocol(transport)
    clients = [None if name is None else made(TMultiplexedProtocol(wire, name)) for name, made in services]
    try:
        transport.open()
    except TTransportException:
        print(f"Could not connect to thrift client on port {port}\n"
              "Make sure the switch is running and that you have the right port", file=out or sys.stdout)
        sys.exit(1)
    return clients


def read_config(standard: Any, path: str | None, out: TextIO | None = None) -> str:
    """The program's JSON: a file's, with a warning where the switch runs another program, or what the switch gives."""
    out = out or sys.stdout
    if path:
        if standard is not None:
            check_config(standard, path, out)
        return files.read_text(path)
    print("Obtaining JSON from switch...", file=out)
    try:
        text: str = standard.bm_get_config()
    except Exception as error:
        print(f"Error when requesting JSON config from switch: {error}", file=out)
        sys.exit(1)
    print("Done", file=out)
    return text


def check_config(standard: Any, path: str, out: TextIO | None = None) -> None:
    """Prints a warning where the switch runs another program than that of a file."""
    ours = hashlib.md5(Path(path).read_bytes(), usedforsecurity=False).digest()
    theirs = standard.bm_get_config_md5()
    if ours != theirs:
        print("**********\n"
              "WARNING: the JSON files loaded into the switch and the one you just provided to this CLI don't "
              "have the same md5 sum. Are you sure they describe the same program?\n"
              f"{'switch md5':<15}: {theirs.hex()}\n{'CLI input md5':<15}: {ours.hex()}\n**********", file=out)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs commands from standard input; the exit status is 0 whatever they answer, as with BMv2's."""
    options = parser().parse_args(arguments)
    services = [(name, TYPES[name].Client) for name in ("standard", "simple_pre_lag", "simple_switch")]
    standard, pre, switch = connect(options.thrift_ip, options.thrift_port, services)
    try:
        try:
            names = Names(read_config(standard, options.json))
        except (OSError, ValueError) as error:
            print(f"The program's JSON cannot be read{f' from {options.json}' if options.json else ''}: {error}")
            return 1
        SwitchShell(standard, pre, switch, names).cmdloop()
    except (TTransportException, EOFError, OSError) as error:
        print(f"The connection to the switch was lost: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
