# SPDX-License-Identifier: Apache-2.0
"""BMv2's Thrift services for a switch in this process, without interfaces."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TMultiplexedProtocol import TMultiplexedProtocol
from thrift.transport import TSocket, TTransport

from softswitch.compiler.driver import Program, compile_file
from softswitch.engine.errors import NotFound
from softswitch.engine.local import LocalEngine
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.crcs import set_crc
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.process import PortState
from softswitch.p4runtime.schema import Schema
from softswitch.thrift.server import ThriftServer
from softswitch.thrift.structs import TYPES


class LocalSwitch:
    """A switch whose engine runs in this process; what was asked of its ports and queues is in `asked`."""

    device_id = 0

    def __init__(self, program: Program, config: str = "{}") -> None:
        self.engine = LocalEngine.open(program)
        self._context = Context(Schema(program.p4info, self.engine), self.engine, Digests(lambda _: None))
        self._config = config
        self._lock = threading.Lock()
        self.asked: list[tuple[object, ...]] = []

    def context(self) -> Context:
        return self._context

    def writing(self) -> AbstractContextManager[Any]:
        return self._lock

    def notifications(self) -> None:
        return None

    def ports(self) -> list[PortState]:
        return [PortState(n, f"eth{n}", up, True, True, 1500, *[0] * 11) for n, up in ((2, False), (1, True))]

    def config(self) -> str:
        return self._config

    def load(self, config: str) -> None:
        self.asked.append(("load", config))

    def swap(self) -> None:
        raise NotFound("no program was loaded")

    def add_port(self, number: int, interface: str) -> None:
        self.asked.append(("add", number, interface))

    def remove_port(self, number: int) -> None:
        self.asked.append(("remove", number))

    def limit_queue(self, port: int | None, *, depth: int | None = None, rate: int | None = None) -> None:
        self.asked.append(("queue", port, depth, rate))

    def set_crc(self, name: str, bits: int, polynomial: int, initial: int, final_xor: int, *, data_reflected: bool,
                remainder_reflected: bool) -> None:
        set_crc(self.engine, self._config, name, bits, polynomial, initial, final_xor, data_reflected=data_reflected,
                remainder_reflected=remainder_reflected)


@contextlib.contextmanager
def client(server: ThriftServer, service: str) -> Iterator[Any]:
    """A client of one service."""
    transport = TTransport.TBufferedTransport(TSocket.TSocket("127.0.0.1", server.port))
    transport.open()
    try:
        yield TYPES[service].Client(TMultiplexedProtocol(TBinaryProtocol(transport), service))
    finally:
        transport.close()


PROGRAM = Path(__file__).parent / "native" / "thrift.p4"


@functools.cache
def compiled() -> Program:
    """The program thrift.p4, which has every kind of object."""
    return compile_file(PROGRAM)


@contextlib.contextmanager
def served(**options: Any) -> Iterator[tuple[LocalSwitch, ThriftServer]]:
    """The program thrift.p4 in this process, with a Thrift server."""
    switch = LocalSwitch(compiled(), compiled().bmv2_json)
    with switch.engine, ThriftServer(switch, 0, **options) as server:
        yield switch, server
