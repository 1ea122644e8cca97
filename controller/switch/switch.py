# SPDX-License-Identifier: Apache-2.0
"""One P4Runtime session with one switch: arbitration, pipeline, writes, reads, packets.

    session = await Session.open("leaf1", "127.0.0.1:50051", device_id=1, pipeline=pipeline, election_id=7, timeout=10)
    await session.ensure_pipeline()
    await session.write(diff(await session.read_state(MANAGED), desired))
    reason = await session.ended()

A session ends when its stream does; `target` opens the next one.  gRPC and the messages are finsy's;
its high-level Switch is not used, because it keeps reconnecting by itself and hides when a switch is really up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

import grpc
from finsy.p4client import P4RpcStatus
from finsy.proto import p4r, p4r_grpc, rpc_code
from google.protobuf.struct_pb2 import Struct

from netfold.controller.switch import arbitration, channel, probe, reach
from netfold.controller.switch.arbitration import EOF
from netfold.controller.switch.codec import Cells, CodecError, Wanted
from netfold.controller.switch.entities import Conflict, State
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.tables import CONTRIBUTION
from netfold.fabric.folding.pools import SLOTS
from netfold.fabric.graph import CPU_PORT

PUSH_TIMEOUT: Final = 180.0
"""Seconds for a pipeline push: softswitch compiles the program, with cold caches and beside others."""
RPC_TIMEOUT: Final = 30.0
PROBES: Final = 32
"""Probes of slots under way at once: half of what BMv2's queue to the CPU port holds.  Reading many takes half of
them."""
PROBE_TIMEOUT: Final = 0.5
"""Seconds for the answer to a probe before it is sent again."""
PROBE_TRIES: Final = 4
PACKETS: Final = 1024
"""Packet-ins that wait for a reader; further ones are dropped and counted."""

_VERBS: Final = {"insert": p4r.Update.INSERT, "modify": p4r.Update.MODIFY, "delete": p4r.Update.DELETE}


class SwitchError(Exception):
    """A request to a switch failed; the message names switch, address and operation and has the switch's answer.

    Remedy: the message has the switch, its P4Runtime address and the reason: check that it is running, and read its
    log.  The controller retries by itself, and plans around the switch meanwhile.
    """


class NotPrimary(SwitchError):
    """Another client is the switch's primary, or was with a higher election id.

    other    that election id
    present  whether that client is still connected; if not, the switch is free for a higher id

    Remedy: another program controls the switch: end it, or give it another role.  If permitted, the controller takes a
    higher election id, and logs it.
    """

    def __init__(self, message: str, other: int, *, present: bool = True) -> None:
        super().__init__(message)
        self.other = other
        self.present = present


@dataclass(frozen=True)
class PacketIn:
    """A packet that the switch sent to its CPU port.

    arrived  when it came here, in seconds of the monotonic clock
    """

    port: int
    payload: bytes
    arrived: float = field(default_factory=time.monotonic, compare=False)


class Session:
    """A P4Runtime session, from arbitration to the end of the stream.

    Call `open` to make one; `close` may be called at any time, and twice.

    election_id  to arbitrate with; 0: the switch is asked for the highest one so far, by an id that `looking` makes,
                 and `claim` makes one above it
    others       election ids of strangers that were primary since the program was pushed last, 0 for one that is known
                 by what it did alone; sessions add to it.
                 After one the program is pushed anew, which alone clears everything: default actions, registers, meters
    trusts       whether an id is of another controller of this fabric, which leaves the program as it is
    """

    def __init__(
        self, name: str, address: str, device_id: int, pipeline: Pipeline, election_id: int,
        credentials: grpc.ChannelCredentials | None = None, others: set[int] | None = None,
        trusts: Callable[[int], bool] = lambda other: False,
    ) -> None:
        self._others = set() if others is None else others
        self._trusts = trusts
        self.name = name
        self.address = address
        self.packets: asyncio.Queue[PacketIn] = asyncio.Queue(PACKETS)
        self.packets_dropped = 0
        self.ports_down: set[int] = set()
        self.on_ports: Callable[[], None] = lambda: None
        self.on_taken: Callable[[NotPrimary], None] = lambda error: None
        """Called when another client has become primary, before the session ends for that."""
        self._device_id = device_id
        self._pipeline = pipeline
        self._codec = pipeline.codec
        self._children = self._codec.bits(CONTRIBUTION, "children")
        self._election_number = election_id
        self._election = arbitration.message_of(election_id)
        self._channel = channel.opened(address, credentials)
        self._stub: Any = p4r_grpc.P4RuntimeStub(self._channel)
        self._read_raw: Any = self._channel.unary_stream("/p4.v1.P4Runtime/Read", bytes, bytes)
        """Reads responses as bytes, to be decoded elsewhere."""
        self._counters_asked: tuple[Wanted, bytes] | None = None
        """The counters that were read last, and the request for them."""
        self._stream: Any = None
        self._reader: asyncio.Task[str] | None = None
        self._probes: defaultdict[int, list[asyncio.Future[SlotState]]] = defaultdict(list)
        self._heard = 0
        """Ports at which neighbours' probes have come in, by answers that nobody has taken yet, a bit for each."""
        self._answer: asyncio.Future[None] | None = None
        """The answer to be awaited next."""
        self._sending = asyncio.Lock()
        self._probing = asyncio.Semaphore(PROBES)

    @classmethod
    async def open(
        cls, name: str, address: str, *, device_id: int, pipeline: Pipeline, election_id: int, timeout: float,
        credentials: grpc.ChannelCredentials | None = None, others: set[int] | None = None,
        looking: Callable[[], int] = lambda: 1, claim: Callable[[int], int] = lambda highest: highest + 1,
        trusts: Callable[[int], bool] = lambda other: False,
    ) -> Session:
        """Connect, with TLS where there are credentials, and become primary within ``timeout`` seconds.  Raises
        SwitchError."""
        session = cls(name, address, device_id, pipeline, election_id, credentials, others, trusts)
        try:
            async with asyncio.timeout(timeout):
                await reach.until_listening(address)
                await session._arbitrate(looking, claim)
        except TimeoutError:
            await session.close()
            raise SwitchError(
                f"{name}: no P4Runtime server answers at {address} within {timeout:g} s. Is the switch running, does "
                f"it listen there (--grpc-server-addr), is its device id {device_id}? {channel.hint(credentials)}"
            ) from None
        except SwitchError:
            await session.close()
            raise
        return session

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close stream and channel."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close(None)

    async def ended(self) -> str:
        """Wait for the end of the session and return its reason."""
        if self._reader is None:
            return "never opened"
        await asyncio.wait([self._reader])
        return "closed" if self._reader.cancelled() else self._reader.result()

    # ---- the stream ----------------------------------------------------------------------------------------------

    async def _arbitrate(self, looking: Callable[[], int], claim: Callable[[int], int]) -> None:
        while True:
            self._stream = self._stub.StreamChannel(wait_for_ready=True)
            try:
                if not self._election_number:
                    self._election_number = await arbitration.look(
                        self._stream, self._device_id, looking(), claim
                    )
                    self._election = arbitration.message_of(self._election_number)
                answer = await arbitration.bid(self._stream, self._device_id, self._election_number)
            except grpc.aio.AioRpcError as error:
                # a server that is just starting, or whose last controller is just going, may break the first stream
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    await asyncio.sleep(0.05)
                    continue
                refused = self._error("arbitration", error)
                if error.code() is grpc.StatusCode.INVALID_ARGUMENT:  # another connection has the same election id
                    self._others.add(0)
                    raise NotPrimary(str(refused), self._election_number) from error
                raise refused from error
            except asyncio.InvalidStateError:  # the stream ended between write and read
                await asyncio.sleep(0.05)
                continue
            except ConnectionError as error:
                raise SwitchError(f"{self.name} ({self.address}): {error}") from error
            break
        self._require_primary(answer)
        self._reader = asyncio.create_task(self._read_stream(), name=f"p4runtime stream of {self.name}")

    def _require_primary(self, update: p4r.MasterArbitrationUpdate) -> None:
        if update.status.code != rpc_code.OK:
            other = arbitration.number_of(update.election_id)
            if update.status.code == rpc_code.ALREADY_EXISTS and 0 < other < self._election_number:
                return  # said before the switch knew our id, which is higher: BMv2 tells of observers so
            if not self._trusts(other):
                self._others.add(other)
            present = update.status.code != rpc_code.NOT_FOUND
            raise NotPrimary(
                f"{self.name} ({self.address}): another client {'is' if present else 'was'} primary, with election id "
                f"{other}; ours is {self._election_number}; the switch says: "
                f"{update.status.message or 'nothing more'}", other, present=present
            )

    async def _read_stream(self) -> str:
        while True:
            try:
                message = await self._stream.read()
            except grpc.aio.AioRpcError as error:
                return f"the connection to its P4Runtime server broke ({error.code().name}: {error.details()})"
            if message is EOF:
                return "the switch closed the stream"
            if message.HasField("arbitration"):
                try:
                    self._require_primary(message.arbitration)
                except NotPrimary as error:
                    self.on_taken(error)
                    return str(error)
            elif message.HasField("packet"):
                try:
                    self._on_packet(self._codec.packet_in(message.packet), message.packet.payload)
                except ValueError as error:
                    return f"packet-in: {error}"
            elif message.HasField("other"):
                self._on_notice(message.other)

    def _on_packet(self, fields: dict[str, int], payload: bytes) -> None:
        if fields.get("kind") == probe.PROBE:
            slot, found = probe.answer(payload, self._children)
            for waiting in self._probes[slot]:
                if not waiting.done():
                    waiting.set_result(found)
            return
        if fields.get("kind") == probe.HEARD:
            self._heard |= int.from_bytes(payload[:len(probe.HEARD_QUESTION)], "big")
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(None)
            return
        try:
            self.packets.put_nowait(PacketIn(fields.get("ingress_port", 0), payload))
        except asyncio.QueueFull:
            self.packets_dropped += 1

    def _on_notice(self, message: Any) -> None:
        """Process a notice of a port's state or of lost packet-ins.  softswitch sends them (p4runtime/notices.py), BMv2
        does not."""
        notice = Struct()
        if not message.Unpack(notice):
            return  # another target's message
        said = dict(notice.items())
        port, lost = said.get("port"), said.get("packet_ins_lost")
        if isinstance(port, float) and "up" in said:
            (self.ports_down.discard if said["up"] else self.ports_down.add)(int(port))
            self.on_ports()
        elif isinstance(lost, float):
            self.packets_dropped += int(lost)

    async def packet_out(self, port: int, payload: bytes) -> None:
        """Send a packet out of a port.  Raises SwitchError."""
        await self._packet_out(payload, {"egress_port": port}, f"packet-out to port {port}")

    async def packet_out_to_neighbours(self, payload: bytes) -> None:
        """Send a probe of links out of all ports to other switches.  Raises SwitchError."""
        await self._packet_out(payload, {"kind": probe.NEIGHBOURS}, "packet-out to all neighbours")

    async def heard(self) -> int:
        """The ports at which neighbours' probes have come in since the last call, a bit for each.  Waits for the answer
        of the switch as long as it takes; one that comes later counts with the next.  Raises SwitchError."""
        answer = self._answer = asyncio.get_running_loop().create_future()
        await self._packet_out(probe.HEARD_QUESTION, {"kind": probe.HEARD}, "question for neighbours")
        await answer
        heard, self._heard = self._heard, 0
        return heard

    async def _packet_out(self, payload: bytes, fields: dict[str, int], what: str) -> None:
        packet = self._codec.packet_out(payload, fields)
        # shielded, since gRPC ends the stream where a write is cancelled, which waits while a server takes nothing
        writing = asyncio.ensure_future(self._send(p4r.StreamMessageRequest(packet=packet)))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            with self._errors(what):
                await asyncio.shield(writing)
        except asyncio.InvalidStateError as error:
            raise SwitchError(f"{self.name} ({self.address}): {what}: the stream is down") from error

    async def _send(self, message: p4r.StreamMessageRequest) -> None:
        async with self._sending:  # gRPC takes one message at a time
            await self._stream.write(message)

    # ---- slots ---------------------------------------------------------------------------------------------------

    async def probe(self, slot: int) -> SlotState:
        """The state of a slot, read now.  Raises SwitchError if there is no answer within PROBE_TRIES * PROBE_TIMEOUT
        seconds."""
        if not 0 <= slot < SLOTS:
            raise ValueError(f"{self.name}: slot: expected 0..{SLOTS - 1}, got {slot}")
        waiting: asyncio.Future[SlotState] = asyncio.get_running_loop().create_future()
        self._probes[slot].append(waiting)
        try:
            async with self._probing:
                for _ in range(PROBE_TRIES):
                    if not waiting.done():
                        await self._packet_out(probe.question(slot, self._children), {"kind": probe.PROBE},
                                               f"probe of slot {slot}")
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PROBE_TIMEOUT):
                            return await asyncio.shield(waiting)
        finally:
            self._probes[slot].remove(waiting)
        raise SwitchError(f"{self.name} ({self.address}): probe of slot {slot}: no answer to {PROBE_TRIES} packets "
                          f"within {PROBE_TRIES * PROBE_TIMEOUT:g} s. Is its CPU port {CPU_PORT}, as by --cpu-port "
                          f"{CPU_PORT}?")

    async def probe_all(self, slots: Iterable[int]) -> dict[int, SlotState]:
        """The states of many slots, as by `probe`; the first slot without an answer ends all.  Raises SwitchError."""
        left, found = iter(slots), dict[int, SlotState]()

        async def some() -> None:
            found.update([(slot, await self.probe(slot)) for slot in left])

        tasks = [asyncio.create_task(some()) for _ in range(PROBES // 2)]
        try:
            await asyncio.gather(*tasks)
            return found
        finally:
            for task in tasks:
                task.cancel()

    # ---- requests ------------------------------------------------------------------------------------------------

    async def ensure_pipeline(self) -> bool:
        """Push the pipeline unless the switch runs it already, and no stranger was primary.  Returns True after a push,
        which empties the switch."""
        if not self._others and await self.runs_pipeline():
            return False
        await self._push()
        self._others.clear()
        return True

    async def runs_pipeline(self) -> bool:
        """True if the switch runs this pipeline, by its cookie and, if the switch tells it, the program itself: a
        client that took the switch may have pushed another one with the same cookie.  Raises SwitchError."""
        request = p4r.GetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            response_type=p4r.GetForwardingPipelineConfigRequest.DEVICE_CONFIG_AND_COOKIE,
        )
        with self._errors("GetForwardingPipelineConfig"):
            try:
                answer = await self._stub.GetForwardingPipelineConfig(request, timeout=RPC_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                # simple_switch_grpc: 'No forwarding pipeline config set for this device.'
                if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                    raise
                return False
        config = answer.config
        return (config.cookie.cookie == self._pipeline.cookie
                and config.p4_device_config in (b"", self._pipeline.device_config))

    async def _push(self) -> None:
        push = p4r.SetForwardingPipelineConfigRequest(
            device_id=self._device_id,
            election_id=self._election,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=p4r.ForwardingPipelineConfig(
                p4info=self._pipeline.p4info,
                p4_device_config=self._pipeline.device_config,
                cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=self._pipeline.cookie),
            ),
        )
        with self._errors("SetForwardingPipelineConfig"):
            await self._stub.SetForwardingPipelineConfig(push, timeout=PUSH_TIMEOUT)

    async def write(self, updates: Sequence[Update]) -> None:
        """Apply updates in order, by one request.  Raises SwitchError, which names every update that failed."""
        try:
            messages = [p4r.Update(type=_VERBS[u.verb], entity=self._codec.encode(u.entity)) for u in updates]
        except CodecError as error:
            raise SwitchError(f"{self.name}: {error}") from error
        request = p4r.WriteRequest(device_id=self._device_id, election_id=self._election, updates=messages)
        with self._errors("Write", updates):
            await self._stub.Write(request, timeout=RPC_TIMEOUT)

    async def read_state(self, tables: Iterable[str]) -> State:
        """The entries of those of ``tables`` that the program has, all multicast groups and all clone sessions.  Raises
        SwitchError, also for those that this controller never writes: a stranger has left them, and so the next
        session pushes the program anew."""
        wanted = [self._codec.read_table(table) for table in tables if self._codec.has_table(table)]
        wanted += [self._codec.read_multicast(), self._codec.read_clones()]
        request = p4r.ReadRequest(device_id=self._device_id, entities=wanted)
        answers: list[bytes] = []
        with self._errors("Read"):
            async for answer in self._read_raw(request.SerializeToString(), timeout=RPC_TIMEOUT):
                answers.append(answer)
        try:
            return await asyncio.to_thread(self._codec.held, answers)
        except (CodecError, Conflict) as error:
            self._others.add(0)
            raise SwitchError(f"{self.name} ({self.address}): read back what this controller never writes: {error}"
                              ) from error

    async def hear(self) -> None:
        """Wait until all that the switch has said so far is here, which is at the latest when it answers.  Raises
        SwitchError."""
        with self._errors("Capabilities"):
            await self._stub.Capabilities(p4r.CapabilitiesRequest(), timeout=RPC_TIMEOUT)

    async def read_counters(self, wanted: Wanted) -> Callable[[], Cells]:
        """Read cells of indirect counters that the program has, by one request.  Returns what decodes the answer, which
        takes some milliseconds: to be called on another thread, raises SwitchError.  Raises SwitchError."""
        if self._counters_asked is None or self._counters_asked[0] is not wanted:
            request = p4r.ReadRequest(device_id=self._device_id, entities=self._codec.read_cells(wanted))
            self._counters_asked = wanted, request.SerializeToString()
        answers: list[bytes] = []
        with self._errors("Read"):
            async for answer in self._read_raw(self._counters_asked[1], timeout=RPC_TIMEOUT):
                answers.append(answer)

        def decode() -> Cells:
            try:
                return self._codec.cells(answers)
            except CodecError as error:
                raise SwitchError(f"{self.name} ({self.address}): {error}") from error

        return decode

    async def read_cell(self, name: str, index: int) -> int:
        """The packets in one cell of an indirect counter.  Raises SwitchError."""
        entities = await self._read([self._codec.read_counter(name, index)])
        return sum(entity.counter_entry.data.packet_count for entity in entities)

    async def _read(self, wanted: list[p4r.Entity]) -> list[p4r.Entity]:
        request = p4r.ReadRequest(device_id=self._device_id, entities=wanted)
        found: list[p4r.Entity] = []
        with self._errors("Read"):
            async for answer in self._stub.Read(request, timeout=RPC_TIMEOUT):
                found += answer.entities
        return found

    @contextlib.contextmanager
    def _errors(self, operation: str, updates: Sequence[Update] = ()) -> Iterator[None]:
        """Turn gRPC's errors into SwitchError, also for calls after `close` and one that it cut off: gRPC raises
        UsageError for the first, and CancelledError for the other, which would look as if the waiting task had been
        cancelled."""
        closed = f"{self.name} ({self.address}): {operation}: the session was closed meanwhile"
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._error(operation, error, updates) from error
        except grpc.aio.UsageError:
            raise SwitchError(closed) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise SwitchError(closed) from None

    def _error(
        self, operation: str, error: grpc.aio.AioRpcError, updates: Sequence[Update] = ()
    ) -> SwitchError:
        """The error with the switch's message; that of a failed Write has an error for each update in its details."""
        text = f"{self.name} ({self.address}): {operation}: {error.code().name}: {error.details() or 'no details'}"
        if "assign device" in (error.details() or ""):
            # simple_switch_grpc with another --device-id: 'Error when trying to assign device'
            text += f"; its device id may be another one than the fabric's, {self._device_id}"
        with contextlib.suppress(Exception):  # details that do not parse leave the plain text
            for index, detail in P4RpcStatus.from_rpc_error(error).details.items():
                what = updates[index] if index < len(updates) else f"item {index}"
                text += f"\n  {what}: {detail.canonical_code.name} {detail.message}"
        return SwitchError(text)
