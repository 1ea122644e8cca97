# SPDX-License-Identifier: Apache-2.0
"""Entries as commands of simple_switch_CLI, executed on an engine in this process: no port, no connection."""

from __future__ import annotations

import contextlib
import io
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from finsy.proto import p4i
from thrift.Thrift import TApplicationException

from softswitch.engine.engine import Engine
from softswitch.engine.errors import EngineError, Unimplemented
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.crcs import set_crc
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.schema import Schema
from softswitch.runtime.printable import clean
from softswitch.thrift.management import Management, SimpleSwitch
from softswitch.thrift.profiles import Profiles
from softswitch.thrift.replication import Replication
from softswitch.thrift.state import State
from softswitch.thrift.tables import Tables
from softswitch.tools.cli.main import SwitchShell
from softswitch.tools.cli.program import Names


def run(engine: Engine, p4info: p4i.P4Info, bmv2_json: str, text: str) -> tuple[str, int]:
    """Executes commands, one a line, and returns what they say in BMv2's words, and how many have failed, after which
    the real one goes on. Lines that begin with # are comments."""
    switch = _LocalSwitch(engine, p4info, bmv2_json)
    replication = Replication(switch)
    management = Management(switch, lambda: 0, replication.forget)
    standard = _Direct(Tables(switch), Profiles(switch), State(switch), management)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):  # also while the shell is made, which keeps what it finds there
        shell = _EntriesShell(standard, _Direct(replication), _Direct(SimpleSwitch(switch)), Names(bmv2_json))
        for line in text.splitlines():
            command = line.partition("#")[0].strip()
            if not command:
                continue
            print(f"{command}")
            shell.onecmd(command)
    return clean(said.getvalue(), keep="\n"), shell.failed


class _EntriesShell(SwitchShell):
    """The commands, without those that reach beyond the switch: a file of entries is not always one's own."""

    def do_shell(self, line: str) -> None:
        """Refused."""
        self.failed += 1
        print("not executed: commands of the system's shell, and such that read or write files, have nothing to do "
              "with entries")

    def default(self, line: str) -> None:
        """Handles a line that is no command."""
        self.failed += 1
        print(f"*** Unknown syntax: {line}")

    def do_load_new_config_file(self, args: Any) -> None:
        """Refused."""
        self.do_shell("")

    do_serialize_state = do_write_config_to_file = do_load_new_config_file


class _Direct:
    """A client of a Thrift service whose calls are calls of the service's handlers.

    What the switch refuses is the exception that a server would send, which the commands print.
    """

    def __init__(self, *handlers: object) -> None:
        self._handlers = handlers

    def __getattr__(self, name: str) -> Any:
        handle = next(getattr(handler, name) for handler in self._handlers if hasattr(handler, name))

        def call(*arguments: Any) -> Any:
            try:
                return handle(*arguments)
            except EngineError as error:
                raise TApplicationException(TApplicationException.INTERNAL_ERROR, str(error)) from error

        return call


class _LocalSwitch:
    """An engine of this process, as the Thrift services see a switch (thrift/switch.py says what the methods do)."""

    device_id = 0

    def __init__(self, engine: Engine, p4info: p4i.P4Info, bmv2_json: str) -> None:
        digests = Digests(lambda _: None)
        schema = Schema(p4info, engine)
        digests.describe(schema.digests, p4info)
        self._context = Context(schema, engine, digests)
        self._json = bmv2_json

    def context(self) -> Context:
        """The engine and what its ids mean."""
        return self._context

    def writing(self) -> AbstractContextManager[Any]:
        """Nobody else writes."""
        return contextlib.nullcontext()

    def notifications(self) -> None:
        """Digests go nowhere."""

    def config(self) -> str:
        """The program as BMv2's JSON."""
        return self._json

    def set_crc(self, name: str, bits: int, polynomial: int, initial: int, final_xor: int, *, data_reflected: bool,
                remainder_reflected: bool) -> None:
        """Sets the parameters of a custom CRC."""
        set_crc(self._context.engine, self._json, name, bits, polynomial, initial, final_xor,
                data_reflected=data_reflected, remainder_reflected=remainder_reflected)

    def _absent(self, *_: object, **__: object) -> NoReturn:
        raise Unimplemented("softswitch explain has no ports, no queues and no other program")

    ports = load = swap = add_port = remove_port = limit_queue = _absent
