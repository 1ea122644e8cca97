# SPDX-License-Identifier: Apache-2.0
"""Common parts of all commands: the prompt, arguments, errors in BMv2's words, and completion."""

from __future__ import annotations

import cmd
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from thrift.Thrift import TApplicationException

from softswitch.thrift.structs import TYPES
from softswitch.tools.cli.program import Names
from softswitch.tools.cli.values import CommandError

_F = TypeVar("_F", bound=Callable[..., Any])

_FAILURES = {
    "InvalidTableOperation": ("table", "TableOperationErrorCode"),
    "InvalidCounterOperation": ("counter", "CounterOperationErrorCode"),
    "InvalidMeterOperation": ("meter", "MeterOperationErrorCode"),
    "InvalidRegisterOperation": ("register", "RegisterOperationErrorCode"),
    "InvalidLearnOperation": ("learn", "LearnOperationErrorCode"),
    "InvalidSwapOperation": ("swap", "SwapOperationErrorCode"),
    "InvalidDevMgrOperation": ("device manager", "DevMgrErrorCode"),
    "InvalidCrcOperation": ("crc", "CrcErrorCode"),
    "InvalidToeplitzHashOperation": ("Toeplitz hash", "ToeplitzHashErrorCode"),
    "InvalidParseVSetOperation": ("parser value set", "ParseVSetOperationErrorCode"),
    "InvalidMcOperation": ("PRE", "McOperationErrorCode"),
    "InvalidMirroringOperation": ("mirroring", "MirroringOperationErrorCode"),
}


def command(method: _F) -> _F:
    """A command: gets its words as a list, and may raise CommandError or what the switch raises. Each is one line on
    standard output, and the next command runs."""

    @functools.wraps(method)
    def run(self: Any, line: str) -> Any:
        self.failed += 1
        try:
            result = method(self, line.split())
            self.failed -= 1
            return result
        except CommandError as error:
            print(f"{error.what}: {error}")
        except TApplicationException as error:
            print(f"Error: {error.message}")
        except Exception as error:
            what = _FAILURES.get(type(error).__name__)
            if what is None:
                raise
            errors: Any = next(getattr(types, what[1]) for types in TYPES.values() if hasattr(types, what[1]))
            print(f"Invalid {what[0]} operation ({errors._VALUES_TO_NAMES.get(getattr(error, 'code', None))})")
        return None

    return run  # type: ignore[return-value]


class Shell(cmd.Cmd):
    """The commands' common ground: clients of the services, and the program's names."""

    prompt = "RuntimeCmd: "
    intro = "Control utility for runtime P4 table manipulation"

    def __init__(self, standard: Any, pre: Any, switch: Any, names: Names, *, lags: bool = True) -> None:
        """`pre` is a client of simple_pre_lag, of simple_pre where `lags` is false, or None."""
        super().__init__()
        self.client, self.mc_client, self.sswitch_client, self.names, self.lags = standard, pre, switch, names, lags
        self.failed = 0
        """Number of commands that have failed."""

    def do_greet(self, line: str) -> None:
        print("hello")

    def do_EOF(self, line: str) -> bool:
        print()
        return True

    def do_shell(self, line: str) -> None:
        "Run a shell command"
        with os.popen(line) as output:
            print(output.read())

    # ---- arguments -------------------------------------------------------------------------------------------

    def at_least(self, args: list[str], n: int) -> None:
        if len(args) < n:
            raise CommandError("Insufficient number of args")

    def exactly(self, args: list[str], n: int) -> None:
        if len(args) != n:
            raise CommandError(f"Wrong number of args, expected {n} but got {len(args)}")

    def find(self, kind: str, name: str) -> Any:
        """An object of the program. Raises CommandError."""
        found = self.names.find(kind, name)
        if found is None:
            raise CommandError(f"Invalid {kind} name ({name})")
        return found

    def number(self, text: str, what: str) -> int:
        """A number, for BMv2's message "Bad format for ..."."""
        try:
            return int(text)
        except ValueError:
            raise CommandError(f"Bad format for {what}") from None

    def completedefault(self, *ignored: Any) -> list[str]:
        """Completes names: the first word is a table or another object of the command's kind, the next an action."""
        text, line = ignored[0], ignored[1]
        words = line.split()
        place = len(words) - (1 if text else 0)
        name = words[0]
        names = self.names
        kinds: dict[str, dict[str, Any]] = {
            "act_prof": names.profiles, "counter": names.counters, "meter": names.meters,
            "register": names.registers, "pvs": names.value_sets, "table": names.tables,
        }
        things: dict[str, Any] = next((things for kind, things in kinds.items() if name.startswith(kind)), {})
        if name.startswith("set_crc"):
            things = {crc: None for crc, bits in self.names.crcs.items() if str(bits) in name}
        if place == 2 and words[1] in things and hasattr(things[words[1]], "actions"):
            things = things[words[1]].actions
        elif place != 1:
            return []
        return sorted(one for one in things if one.startswith(text))
