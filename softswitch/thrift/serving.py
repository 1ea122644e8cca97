# SPDX-License-Identifier: Apache-2.0
"""The Thrift services of a switch that a P4Runtime server runs.

    thrift = serve(server, 9090, describe)
    ...
    thrift.close()                          # before server.close()
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from finsy.proto import p4r

from softswitch.engine.errors import NotFound
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.process import PortState
from softswitch.p4runtime.server import Server
from softswitch.thrift.server import ThriftServer


def serve(server: Server, port: int, describe: Callable[[bytes], str]) -> ThriftServer:
    """Serves BMv2's Thrift services for a switch on 127.0.0.1:`port`. Raises ThriftError.

    describe  makes BMv2's JSON of a p4_device_config; raises EngineError. It is called once for a program, when
              somebody asks for it first.
    """
    return ThriftServer(ServedSwitch(server, describe), port)


class ServedSwitch:
    """The switch of a P4Runtime server, as the Thrift services see it (switch.py has the methods)."""

    def __init__(self, server: Server, describe: Callable[[bytes], str]) -> None:
        self._server, self._describe = server, describe
        self.device_id = server.device_id
        self._lock = threading.Lock()
        self._described: tuple[bytes, str] = (b"", "")
        self._loaded: p4r.ForwardingPipelineConfig | None = None

    def context(self) -> Context:
        """The engine and schema of the running program."""
        return self._server.running().context

    def writing(self) -> AbstractContextManager[Any]:
        """The lock of P4Runtime's writes."""
        return self._server.writing

    def ports(self) -> list[PortState]:
        """The ports."""
        return self._server.ports()

    def config(self) -> str:
        """The running program as BMv2's JSON."""
        text = self._server.running().config.p4_device_config
        with self._lock:
            if self._described[0] != text:
                self._described = text, self._describe(text)
            return self._described[1]

    def load(self, config: str) -> None:
        """Compiles a program for `swap`."""
        loaded = self._server.build(config.encode())
        with self._lock:
            self._loaded = loaded

    def swap(self) -> None:
        """Replaces the running program by the loaded one. Raises NotFound where none was loaded."""
        with self._lock:
            loaded, self._loaded = self._loaded, None
        if loaded is None:
            raise NotFound("no program was loaded: load_new_config_file comes first")
        self._server.push(loaded)

    def add_port(self, number: int, interface: str) -> None:
        """Opens a port."""
        self._server.add_port(number, interface)

    def remove_port(self, number: int) -> None:
        """Closes a port."""
        self._server.remove_port(number)

    def limit_queue(self, port: int | None, *, depth: int | None = None, rate: int | None = None) -> None:
        """Bounds the queue of a port, or of all."""
        self._server.limit_queue(port, depth=depth, rate=rate)

    def set_crc(self, name: str, bits: int, polynomial: int, initial: int, final_xor: int, *, data_reflected: bool,
                remainder_reflected: bool) -> None:
        """Sets the parameters of a custom CRC."""
        raise NotFound(f"the program has no custom CRC {name}")
