# SPDX-License-Identifier: Apache-2.0
"""The interface of the switch that the Thrift services control, and their errors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from softswitch.p4runtime.context import Context
from softswitch.p4runtime.process import PortState
from softswitch.thrift.notifications import Notifications
from softswitch.thrift.structs import TYPES

STANDARD, PRE, SWITCH = TYPES["standard"], TYPES["simple_pre_lag"], TYPES["simple_switch"]


class Switch(Protocol):
    """A switch that has a P4Runtime server, whose state the Thrift services share."""

    device_id: int

    def context(self) -> Context:
        """The engine and schema of the running program. Raises EngineError where none runs."""

    def writing(self) -> AbstractContextManager[Any]:
        """Held while something is changed, so that P4Runtime's writes come before or after."""

    def notifications(self) -> Notifications | None:
        """Where the program's digests are published for Thrift's clients."""

    def ports(self) -> list[PortState]:
        """The ports. Raises EngineError."""

    def config(self) -> str:
        """The running program as BMv2's JSON. Raises EngineError."""

    def load(self, config: str) -> None:
        """Compiles a program, BMv2's JSON that says its source or P4 text, for `swap`. Raises EngineError."""

    def swap(self) -> None:
        """Replaces the running program by the loaded one, with empty tables. Raises EngineError."""

    def add_port(self, number: int, interface: str) -> None:
        """Opens a port. Raises EngineError."""

    def remove_port(self, number: int) -> None:
        """Closes a port. Raises EngineError."""

    def limit_queue(self, port: int | None, *, depth: int | None = None, rate: int | None = None) -> None:
        """Bounds the queue of a port, or of all (None): frames that may wait, frames a second that leave (0: as many
        as the link takes). Raises EngineError."""

    def set_crc(self, name: str, bits: int, polynomial: int, initial: int, final_xor: int, *, data_reflected: bool,
                remainder_reflected: bool) -> None:
        """Sets the parameters of a custom CRC of 16 or 32 bits, by the name of its calculation. Raises EngineError."""


def fail_table(error: str) -> NoReturn:
    """Raises the exception of an entry, table, member or group: a name of TableOperationErrorCode."""
    raise STANDARD.InvalidTableOperation(getattr(STANDARD.TableOperationErrorCode, error))
