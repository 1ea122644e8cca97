# SPDX-License-Identifier: Apache-2.0
"""The Thrift services of a switch that a P4Runtime server runs (`serve` of this package starts them)."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from finsy.proto import p4r

from softswitch.engine.errors import EngineError, NotFound
from softswitch.p4runtime.config import Pipeline
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.crcs import set_crc
from softswitch.p4runtime.process import PortState
from softswitch.p4runtime.server import Server
from softswitch.thrift.errors import ThriftError
from softswitch.thrift.notifications import Notifications
from softswitch.thrift.server import ThriftServer

log = logging.getLogger(__name__)


@contextlib.contextmanager
def serving(server: Server, port: int, *, notifications: str | None = None) -> Iterator[ThriftServer]:
    """A context with the server that `serve` returns. If the socket for digests cannot be created, this is logged;
    everything else works."""
    published = _publish(server.device_id, notifications)
    switch = ServedSwitch(server, published)
    server.on_sample = switch.learned
    try:
        with ThriftServer(switch, port) as thrift:
            yield thrift
    finally:
        server.on_sample = None
        if published is not None:
            published.close()


def _publish(device_id: int, address: str | None) -> Notifications | None:
    try:
        published = Notifications(device_id, address)
    except ValueError as error:
        raise ThriftError(str(error)) from None
    try:
        published.start()
    except OSError as error:
        log.warning("%s", error)
        published.close()
        return None
    return published


class ServedSwitch:
    """The switch of a P4Runtime server, as the Thrift services see it (switch.py has the methods)."""

    def __init__(self, server: Server, published: Notifications | None) -> None:
        self._server, self._published = server, published
        self.device_id = server.device_id
        self._lock, self._compiling = threading.Lock(), threading.Lock()
        self._learning_from: Pipeline | None = None
        self._loaded: p4r.ForwardingPipelineConfig | None = None

    def context(self) -> Context:
        """The engine and schema of the running program."""
        return self._server.running().context

    def writing(self) -> AbstractContextManager[Any]:
        """The lock of P4Runtime's writes."""
        return self._server.writing

    def notifications(self) -> Notifications | None:
        """Where the program's digests are published."""
        if self._published is not None:
            with contextlib.suppress(EngineError):  # no program, no digests
                self._describe(self._published, self._server.running())
        return self._published

    def _describe(self, published: Notifications, pipeline: Pipeline) -> None:
        """Tells the publisher of the digests of a program that it does not know yet."""
        with self._lock:
            if self._learning_from is pipeline:
                return
            lists = {entry["name"]: entry["id"] for entry in json.loads(pipeline.built.json).get("learn_lists", [])}
            published.describe({digest.index: lists.get(digest.name, digest.index)
                                for digest in pipeline.context.engine.info.digests})
            self._learning_from = pipeline

    def learned(self, index: int, sample: bytes) -> None:
        """Takes a digest from the data plane."""
        published = self.notifications()
        if published is not None:
            published.learned(index, sample)

    def ports(self) -> list[PortState]:
        """The ports."""
        return self._server.ports()

    def config(self) -> str:
        """The running program as BMv2's JSON."""
        return self._server.running().built.json

    def load(self, config: str) -> None:
        """Compiles a program for `swap`; one at a time, since each takes its memory and processor."""
        with self._compiling:
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
        """Sets the parameters of a custom CRC. Raises NotFound, and InvalidArgument for another width."""
        pipeline = self._server.running()
        set_crc(pipeline.context.engine, pipeline.built.json, name, bits, polynomial, initial, final_xor,
                data_reflected=data_reflected, remainder_reflected=remainder_reflected)
        pipeline.context.crcs[name] = bits, polynomial, initial, final_xor, data_reflected, remainder_reflected
