# SPDX-License-Identifier: Apache-2.0
"""A P4Runtime client with raw messages over gRPC; every call has a deadline."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_status
from google.protobuf.message import Message

from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.program import Builder
from softswitch.p4runtime.server import Server
from switch_support.switch import probe_builder, probe_config

TIMEOUT = 30.0
_Set = p4r.SetForwardingPipelineConfigRequest
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


class Stream:
    """The stream of one controller."""

    def __init__(self, stub: p4r_grpc.P4RuntimeStub) -> None:
        self._out: queue.SimpleQueue[p4r.StreamMessageRequest | None] = queue.SimpleQueue()
        self._in: queue.SimpleQueue[p4r.StreamMessageResponse | grpc.RpcError | None] = queue.SimpleQueue()
        self._call: Any = stub.StreamChannel(iter(self._out.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._in.put(message)
            self._in.put(None)
        except grpc.RpcError as error:
            self._in.put(error)

    def send(self, message: p4r.StreamMessageRequest) -> None:
        self._out.put(message)

    def arbitrate(self, election: int, *, device: int = 1, role: str = "", config: Message | None = None) -> None:
        message = p4r.StreamMessageRequest()
        message.arbitration.device_id = device
        message.arbitration.election_id.low = election
        if role:
            message.arbitration.role.name = role
        if config is not None:
            message.arbitration.role.config.Pack(config)
        self.send(message)

    def next(self) -> p4r.StreamMessageResponse:
        """The next message. Raises grpc.RpcError where the stream ended with an error; fails where nothing comes."""
        try:
            got = self._in.get(timeout=TIMEOUT)
        except queue.Empty:
            raise AssertionError("no message on the stream") from None
        if isinstance(got, grpc.RpcError):
            raise got
        assert got is not None, "the stream ended"
        return got

    def status(self) -> tuple[int, int]:
        """(status code, primary's election id) of the next message, an arbitration update."""
        update = self.next().arbitration
        return update.status.code, update.election_id.low

    def close(self) -> None:
        self._out.put(None)
        self._call.cancel()


class Client:
    """A connection of one controller."""

    def __init__(self, address: str, *, device: int = 1, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]
        self._channel = (grpc.insecure_channel(address, options=options) if credentials is None
                         else grpc.secure_channel(address, credentials, options=options))
        self.stub = p4r_grpc.P4RuntimeStub(self._channel)
        self.address = address
        self.device = device
        self.election = 0
        self.role = ""
        self._streams: list[Stream] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.close()
        self._channel.close()

    def stream(self) -> Stream:
        self._streams.append(Stream(self.stub))
        return self._streams[-1]

    def become_primary(self, election: int = 1, *, role: str = "", config: Message | None = None) -> Stream:
        stream = self.stream()
        stream.arbitrate(election, role=role, config=config)
        assert stream.status() == (0, election)
        self.election, self.role = election, role
        return stream

    def push(
        self,
        config: p4r.ForwardingPipelineConfig,
        action: _Set.Action.ValueType = _Set.VERIFY_AND_COMMIT,
    ) -> None:
        request = _Set(device_id=self.device, action=action, config=config, role=self.role)
        request.election_id.low = self.election
        self.stub.SetForwardingPipelineConfig(request, timeout=60)

    def write(self, *updates: tuple[p4r.Update.Type.ValueType, p4r.Entity]) -> None:
        """Write updates.  Raises grpc.RpcError where one fails."""
        request = p4r.WriteRequest(device_id=self.device, role=self.role)
        request.election_id.low = self.election
        for kind, entity in updates:
            request.updates.add(type=kind, entity=entity)
        self.stub.Write(request, timeout=TIMEOUT)

    def codes(self, *updates: tuple[p4r.Update.Type.ValueType, p4r.Entity]) -> list[int]:
        """Write updates and return the code of each, all 0 where the write succeeded."""
        try:
            self.write(*updates)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNKNOWN:
                raise
            return [detail.canonical_code for detail in details(error)]
        return [0] * len(updates)

    def read(self, *entities: p4r.Entity) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self.device, entities=entities, role=self.role)
        return [entity for response in self.stub.Read(request, timeout=TIMEOUT) for entity in response.entities]


def details(error: grpc.RpcError) -> list[p4r.Error]:
    """The p4.v1.Error of each update."""
    metadata: Any = error.trailing_metadata()
    (blob,) = [value for key, value in metadata if key == "grpc-status-details-bin"]
    found = []
    for any_ in rpc_status.Status.FromString(blob).details:
        detail = p4r.Error()
        assert any_.Unpack(detail)
        found.append(detail)
    return found


def code_of(error: BaseException) -> grpc.StatusCode:
    assert isinstance(error, grpc.RpcError)
    return error.code()


@contextmanager
def serving(
    *, settings: Settings | None = None, builder: Builder = probe_builder, tell_ports: bool = True,
    default_role_only: bool = False,
) -> Iterator[tuple[Server, str]]:
    """Start a server without switch ports on a free TCP port: (server, address)."""
    settings = settings or Settings(cpu_port=510)
    server = Server(device_id=1, settings=settings, builder=builder, tell_ports=tell_ports,
                    default_role_only=default_role_only)
    try:
        (port,) = server.listen("127.0.0.1:0")
        yield server, f"127.0.0.1:{port}"
    finally:
        server.close()


@contextmanager
def primary(
    *, settings: Settings | None = None, builder: Builder = probe_builder, tell_ports: bool = True
) -> Iterator[tuple[Server, Client, Stream]]:
    """A server with the probe as its pipeline, and the controller that has pushed it."""
    served = serving(settings=settings, builder=builder, tell_ports=tell_ports)
    with served as (server, address), Client(address) as client:
        stream = client.become_primary()
        client.push(probe_config())
        yield server, client, stream
