# SPDX-License-Identifier: Apache-2.0
"""The P4Runtime service of one switch, on gRPC.

    server = Server(device_id=1, settings=Settings(ports=(Port(1, "eth1"),)), builder=Compiler())
    server.listen("127.0.0.1:9559")
    ...
    server.close()

Errors are reported as the specification demands (P4Runtime 12): a Write that fails in part is UNKNOWN, with one
p4.v1.Error for each update in grpc-status-details-bin; everything else is a plain gRPC status. When the native process
ends by itself, streams end with INTERNAL and the reason, and the switch has no pipeline: calls are FAILED_PRECONDITION
until one is pushed again. The server itself starts only the program of the command line again, which nobody pushes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc

from softswitch.engine.engine import read_idle_entry
from softswitch.engine.entities import Event, EventKind
from softswitch.engine.errors import (
    EngineError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unimplemented,
)
from softswitch.p4runtime import entities, listening, notices, packet_io, tables
from softswitch.p4runtime.admission import REQUEST_WITHIN, Admission, Deadlines
from softswitch.p4runtime.arbitration import Arbitration, Session
from softswitch.p4runtime.config import Configuration, Listener, Pipeline
from softswitch.p4runtime.listening import Tls
from softswitch.p4runtime.outbox import Outbox
from softswitch.p4runtime.primaries import Primaries, describe
from softswitch.p4runtime.process import PORT_MAX, Limit, Port, PortState, Settings
from softswitch.p4runtime.program import Builder
from softswitch.p4runtime.roles import Permission
from softswitch.p4runtime.statuses import abort, abort_updates
from softswitch.runtime.connections import ConnectionWatch

log = logging.getLogger(__name__)

PROGRAM_LOG = f"{__name__}.program"
"""The logger for output of programs: log_msg, failed assertions."""

API_VERSION = "1.4.1"
MESSAGE_MAX = 16 << 20
"""Bytes of the longest gRPC message: a pipeline, or a batch of some hundred thousand entries."""

MAX_STREAMS = 32
"""Most controllers at the same time; each needs a thread."""
GUEST_STREAMS = 8
"""Most streams of clients that may not be primary."""

RESTART_WITHIN = 1.0
"""Least seconds between two attempts to start the program of the command line again."""

READ_CHUNK = 512
"""Entities in one ReadResponse."""

_Set = p4r.SetForwardingPipelineConfigRequest


class Server(p4r_grpc.P4RuntimeServicer):
    """The P4Runtime server of one switch, which runs in a native process."""

    def __init__(
        self, *, device_id: int, settings: Settings, builder: Builder, primaries: Primaries | None = None,
        tell_ports: bool = True, default_role_only: bool = False,
    ) -> None:
        self.device_id = device_id
        self._builder = builder
        self._primaries = primaries or Primaries()
        self._arbitration = Arbitration(device_id, default_role_only=default_role_only)
        listener = Listener(self._on_event, self._on_digest, self._on_death)
        self._configuration = Configuration(settings, builder, listener)
        self._writing = threading.Lock()
        self._tell_ports = tell_ports
        """True if primaries receive notices of ports, which BMv2 does not send."""
        self._telling_ports = threading.Lock()
        self._own: p4r.ForwardingPipelineConfig | None = None
        """The program that `push` set; None once a controller has pushed one."""
        self.on_sample: Callable[[int, bytes], None] | None = None
        """Receives every digest of the data plane, configured by P4Runtime or not: its number in the engine, and its
        fields in byte form."""
        self._closed = threading.Event()
        self._watches: list[ConnectionWatch] = []
        self._outboxes: dict[Outbox, bool] = {}
        """The outboxes of all streams; True if their client may be primary."""
        self._deadlines = Deadlines()
        self._threads = ThreadPoolExecutor(MAX_STREAMS + 16, thread_name_prefix="softswitch-grpc")
        options = [
            ("grpc.max_receive_message_length", MESSAGE_MAX),
            ("grpc.max_send_message_length", MESSAGE_MAX),
            ("grpc.so_reuseport", 0),
            *listening.options(),
        ]
        self._admission = Admission(self._deadlines, lambda context: not self._may_be_primary(context))
        self._grpc = grpc.server(self._threads, options=options, interceptors=[self._admission])
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._grpc)

    # ---- starting and stopping ----------------------------------------------------------------------------

    def listen(self, *addresses: str, tls: Tls | None = None, insecure: bool = False) -> list[int]:
        """Serves on HOST:PORT or unix:PATH addresses; returns their ports (1 for unix). Raises ListenError, also for
        an address that other machines reach without mutual TLS, unless ``insecure``."""
        for address in addresses:
            listening.check(address, tls, insecure=insecure)
        bound = [listening.bind(self._grpc, address, tls) for address in addresses]
        self._grpc.start()
        self._watches.append(listening.watch(addresses, bound))
        return bound

    def close(self) -> None:
        """Ends all streams, the server and the native process."""
        self._closed.set()
        for watch in self._watches:
            watch.close()
        self._deadlines.close()
        for outbox in list(self._outboxes):
            outbox.close()
        self._grpc.stop(grace=0.5).wait(2.0)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._configuration.close()

    def push(self, config: p4r.ForwardingPipelineConfig) -> None:
        """Sets a pipeline without a controller, for a program on the command line. Raises EngineError."""
        with self._writing:
            self._configuration.apply(_Set.VERIFY_AND_COMMIT, config)
            self._own = config

    def build(self, device_config: bytes) -> p4r.ForwardingPipelineConfig:
        """Compiles a program, for `push`. Raises EngineError."""
        built = self._builder(device_config)
        return p4r.ForwardingPipelineConfig(p4info=built.p4info, p4_device_config=device_config)

    @property
    def writing(self) -> threading.Lock:
        """Held while a write is executed, so that others who write can come before or after it."""
        return self._writing

    def running(self) -> Pipeline:
        """The running pipeline. Raises EngineError where there is none."""
        return self._configuration.running()

    def ports(self) -> list[PortState]:
        """The ports of the running pipeline. Raises EngineError."""
        return self._configuration.running().process.ports()

    def limit_queue(self, port: int | None, *, depth: int | None = None, rate: int | None = None) -> None:
        """Limits the queue of a port, or of all (None), of this program and the next ones: frames that may wait, frames
        a second that leave (0: as many as the link takes). Raises NotFound, OutOfRange."""
        if port is not None and not 0 <= port <= PORT_MAX:
            raise NotFound(f"there is no port {port}: expected a number within 0..{PORT_MAX}")
        for what, value in ((Limit.DEPTH, depth), (Limit.RATE, rate)):
            if value is not None:
                self._limit(port, what, value)

    def _limit(self, port: int | None, what: Limit, value: int) -> None:
        def kept(settings: Settings) -> Settings:
            others = tuple(old for old in settings.limits if old[1] is not what or port not in (None, old[0]))
            return replace(settings, limits=(*others, (port, what, value)))

        self._configuration.change(kept, lambda process: process.limit(port, what, value))

    def add_port(self, number: int, interface: str) -> None:
        """Opens a port, for this program and the next ones. Raises InvalidArgument, AlreadyExists, NotFound,
        Unimplemented."""
        if not 0 <= number <= PORT_MAX:
            raise InvalidArgument(f"port {number}: expected a number within 0..{PORT_MAX}")
        port = Port(number, interface)
        self._configuration.change(lambda settings: replace(settings, ports=(*settings.ports, port)),
                                   lambda process: process.add_port(port))

    def remove_port(self, number: int) -> None:
        """Closes a port, for this program and the next ones. Raises NotFound."""
        if not 0 <= number <= PORT_MAX:
            raise NotFound(f"there is no port {number}: expected a number within 0..{PORT_MAX}")
        self._configuration.change(
            lambda settings: replace(settings, ports=tuple(p for p in settings.ports if p.number != number)),
            lambda process: process.remove_port(number))

    @property
    def pid(self) -> int:
        """The number of the native process. Raises EngineError where there is none."""
        return self._configuration.running().process.pid

    @property
    def guests(self) -> int:
        """Calls of clients that may not be primary that are being served."""
        return self._admission.guests

    # ---- from the data plane -------------------------------------------------------------------------------

    def _notify_primaries(self, message: p4r.StreamMessageResponse) -> None:
        for session in self._arbitration.primaries():
            if session.access.receives(message):
                session.send(message)

    def _on_event(self, pipeline: Pipeline, event: Event) -> None:
        try:
            self._report(pipeline, event)
        except Exception:  # an exception must not end the thread, which also reads replies
            log.exception("a report of the switch could not be passed on: %s", event.kind.name)

    def _report(self, pipeline: Pipeline, event: Event) -> None:
        if event.kind is EventKind.PACKET_IN:
            packet = packet_io.encode_packet_in(pipeline.context.schema.packet_in, event.data)
            self._notify_primaries(p4r.StreamMessageResponse(packet=packet))
        elif event.kind is EventKind.DIGEST:
            pipeline.context.digests.receive(event.id, event.data)
            if self.on_sample is not None:
                self.on_sample(event.id, event.data)
        elif event.kind is EventKind.IDLE:
            entry = read_idle_entry(event, pipeline.context.engine.info)
            table = pipeline.context.schema.table(entry.table.id)
            message = p4r.StreamMessageResponse()
            message.idle_timeout_notification.timestamp = time.time_ns()
            tables.encode_idle(pipeline.context, table, entry, message.idle_timeout_notification.table_entry.add())
            self._notify_primaries(message)
        elif event.kind is EventKind.LOST:
            lost, kind = int.from_bytes(event.data, "little"), EventKind(event.id)
            log.warning("%d reports of kind %s lost: nobody read them from the native process in time", lost, kind.name)
            if kind is EventKind.PACKET_IN:
                self._notify_primaries(notices.packet_ins_lost(lost))
        elif event.kind is EventKind.PORT:
            with self._telling_ports:
                up = pipeline.ports_up[event.id] = any(event.data)
                if self._tell_ports:
                    self._notify_primaries(notices.port_status(event.id, up=up))
        else:
            logging.getLogger(PROGRAM_LOG).info("%s", event.data.decode(errors="replace"))

    def _on_digest(self, message: p4r.DigestList) -> None:
        self._notify_primaries(p4r.StreamMessageResponse(digest=message))

    def _on_death(self, why: str) -> None:
        for outbox in list(self._outboxes):
            outbox.close(Internal(why))
        if self._own is not None:
            threading.Thread(target=self._restart, daemon=True, name="softswitch-restart").start()

    def _restart(self) -> None:
        """Starts the program of the command line again after its process has died, as soon as crashes.py allows, and
        until it runs."""
        wait = 0.0
        while not self._closed.wait(max(wait, self._configuration.wait_to_restart())):
            with self._writing:
                if self._own is None or self._configuration.runs():  # a controller was quicker
                    return
                try:
                    self._configuration.apply(_Set.VERIFY_AND_COMMIT, self._own)
                except EngineError as error:
                    wait = RESTART_WITHIN
                    log.critical("the program could not be started again: %s", error)
                    continue
            log.warning("the program was started again, with empty tables")
            return

    # ---- the service ---------------------------------------------------------------------------------------

    def Capabilities(
        self, request: p4r.CapabilitiesRequest, context: grpc.ServicerContext
    ) -> p4r.CapabilitiesResponse:
        """The version of the API that this server speaks."""
        return p4r.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(
        self, request: p4r.SetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.SetForwardingPipelineConfigResponse:
        """Loads, saves or starts a program."""
        try:
            self._check_write(request, context).check_push()
            with self._writing:
                self._configuration.apply(request.action, request.config)
                if request.action not in (_Set.VERIFY, _Set.VERIFY_AND_SAVE):
                    self._own = None
        except EngineError as error:
            abort(context, error)
        return p4r.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(
        self, request: p4r.GetForwardingPipelineConfigRequest, context: grpc.ServicerContext
    ) -> p4r.GetForwardingPipelineConfigResponse:
        """Returns the loaded program."""
        kinds = p4r.GetForwardingPipelineConfigRequest
        response = p4r.GetForwardingPipelineConfigResponse()
        try:
            self._arbitration.check_device(request.device_id)
            config = self._configuration.running().config
        except EngineError as error:
            abort(context, error)
        if config.HasField("cookie"):
            response.config.cookie.CopyFrom(config.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(config.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = config.p4_device_config
        return response

    def Write(self, request: p4r.WriteRequest, context: grpc.ServicerContext) -> p4r.WriteResponse:
        """Executes a batch of updates, each independently of the others."""
        try:
            self._check_write(request, context).check_write(request.updates)
            if request.atomicity != p4r.WriteRequest.CONTINUE_ON_ERROR:
                raise Unimplemented("atomicity: expected CONTINUE_ON_ERROR, the only one supported, got "
                                    f"{p4r.WriteRequest.Atomicity.Name(request.atomicity)}")
            with self._writing:
                results = entities.write(self._configuration.running().context, request.updates)
                self._configuration.running()  # the process ended meanwhile: report that rather than its consequences
        except EngineError as error:
            abort(context, error)
        if any(results):
            abort_updates(context, results)
        return p4r.WriteResponse()

    def _check_write(self, request: Any, context: grpc.ServicerContext) -> Permission:
        """The write permission of a request's role. Raises NotFound, and PermissionDenied for all clients but the
        primary. All clients know the primary's election id, so a client that may not be primary is recognised by its
        address."""
        self._arbitration.check_device(request.device_id)
        if not self._may_be_primary(context):
            raise PermissionDenied(f"{_client(context)} may not be primary, and so not write (--primary)")
        role = _role(request)
        self._arbitration.check_write(role, request.election_id)
        return self._arbitration.permission(role)

    def _may_be_primary(self, context: grpc.ServicerContext) -> bool:
        return self._primaries.allow(context.peer(), _authentication(context))

    def Read(self, request: p4r.ReadRequest, context: grpc.ServicerContext) -> Iterator[p4r.ReadResponse]:
        """Reads everything that is asked for, in several messages."""
        try:
            self._arbitration.check_device(request.device_id)
            permission = self._arbitration.permission(request.role)
            permission.check_read(request.entities)
            for part in entities.read_in_parts(self._configuration.running().context, request.entities):
                shown = [entity for entity in part if permission.shows(entity)]
                for at in range(0, len(shown), READ_CHUNK):
                    yield p4r.ReadResponse(entities=shown[at : at + READ_CHUNK])
        except EngineError as error:
            abort(context, error)

    # ---- the stream ----------------------------------------------------------------------------------------

    def StreamChannel(
        self, requests: Iterable[p4r.StreamMessageRequest], context: grpc.ServicerContext
    ) -> Iterator[p4r.StreamMessageResponse]:
        """The stream of a controller: arbitration, packets, digests."""
        outbox, may = Outbox(), self._may_be_primary(context)
        present = list(self._outboxes.values())
        if len(present) >= MAX_STREAMS:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} controllers are connected already")
        if not may and present.count(False) >= GUEST_STREAMS:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{GUEST_STREAMS} clients that may not be primary "
                          "(--primary) are connected already")
        session = Session(outbox.put, _client(context), may)
        self._outboxes[outbox] = may
        self._deadlines.set(context, REQUEST_WITHIN)
        context.add_callback(outbox.close)
        reader = threading.Thread(
            target=self._listen_to, args=(requests, session, outbox, context), daemon=True, name="softswitch-stream"
        )
        reader.start()
        try:
            yield from outbox
        finally:
            self._outboxes.pop(outbox, None)
            self._deadlines.clear(context)
            self._arbitration.leave(session)
        if outbox.failure is not None:
            abort(context, outbox.failure)

    def _listen_to(
        self, requests: Iterable[p4r.StreamMessageRequest], session: Session, outbox: Outbox, context: Any
    ) -> None:
        try:
            for request in requests:
                self._deadlines.clear(context)
                self._stream_message(request, session)
        except EngineError as error:
            outbox.close(error)
            return
        except Exception as error:  # grpc raises a bare Exception where the stream breaks
            log.debug("a controller's stream broke: %r", error)
        outbox.close()

    def _stream_message(self, request: p4r.StreamMessageRequest, session: Session) -> None:
        """Handles one message of a stream. Raises EngineError only for what must end the stream."""
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            self._arbitration.update(session, request.arbitration)
            self._notify_ports(session)
            return
        if session.role is None:
            raise FailedPrecondition("expected an arbitration update as the first message of a stream, got "
                                     f"{kind or 'an empty message'}")
        error = p4r.StreamMessageResponse()
        try:
            if kind == "packet":
                error.error.packet_out.packet_out.CopyFrom(request.packet)
                self._packet_out(session, request.packet)
            elif kind == "digest_ack":
                error.error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
                self._acknowledge(session, request.digest_ack)
            else:
                error.error.other.SetInParent()
                raise InvalidArgument("stream message: expected arbitration, packet or digest_ack, got "
                                      f"{kind or 'an empty one'}")
        except EngineError as refused:
            error.error.canonical_code, error.error.message = refused.code, str(refused)
            session.send(error)

    def _notify_ports(self, session: Session) -> None:
        """Notifies a new primary of the ports that are down; later it receives changes."""
        if not self._tell_ports or not self._arbitration.is_primary(session):
            return
        try:
            pipeline = self._configuration.running()
        except EngineError:
            return
        with self._telling_ports:
            for port, up in pipeline.ports_up.items():
                if not up:
                    session.send(notices.port_status(port, up=False))

    def _packet_out(self, session: Session, message: p4r.PacketOut) -> None:
        self._permission(session, "packet-out: only the primary controller sends packets").check_packet_out()
        context = self._configuration.running().context
        context.engine.packet_out(packet_io.decode_packet_out(context.schema.packet_out, message))

    def _acknowledge(self, session: Session, message: p4r.DigestListAck) -> None:
        permission = self._permission(session, "digest_ack: only the primary controller acknowledges lists")
        permission.check_object(message.digest_id, "digest")
        context = self._configuration.running().context
        context.schema.digest(message.digest_id)
        context.digests.acknowledge(message)

    def _permission(self, session: Session, rule: str) -> Permission:
        """The permission of a stream's role. Raises PermissionDenied for all but the primary's stream."""
        if not self._arbitration.is_primary(session):
            raise PermissionDenied(f"{rule}, and this stream is a backup's; become primary by a higher election id")
        return self._arbitration.permission(session.role or "")


def _role(request: Any) -> str:
    return request.role or (f"#{request.role_id}" if request.role_id else "")


def _client(context: grpc.ServicerContext) -> str:
    return describe(context.peer(), _authentication(context))


def _authentication(context: Any) -> Mapping[str, Sequence[bytes]]:
    return context.auth_context()  # type: ignore[no-any-return]  # its stub lacks the lists
