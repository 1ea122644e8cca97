# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the controller's tests: a switch in memory, and a P4Runtime server that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
from finsy.proto import p4i, p4r, p4r_grpc, rpc_code, rpc_status

from netfold.controller.switch import tables
from netfold.controller.switch.codec import Cells, Count, Wanted
from netfold.controller.switch.entities import Entry, Multicast, State
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import PacketIn, Session, SwitchError
from netfold.controller.switch.tables import CONTRIBUTION
from netfold.fabric.folding.trees import FEW_CHILDREN
from netfold.wire import roce

T = TypeVar("T")
BOUND = 60.0
"""Seconds that no test may exceed; nothing here should take one."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, bounded."""

    async def bounded() -> T:
        async with asyncio.timeout(BOUND):
            return await work

    return asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds; `run` bounds it."""
    while not condition():
        await asyncio.sleep(0)


def signed(probe: bytes, port: int) -> bytes:
    """A probe for all neighbours as it leaves by a port (p4src/replica.p4)."""
    at = roce.ETHERNET_BYTES + roce.IPV4_BYTES
    frame = probe[:at] + (tables.PROBE_PORT + port).to_bytes(2, "big") + probe[at + 2 : -roce.ICRC_BYTES]
    return frame + roce.icrc(frame[roce.ETHERNET_BYTES :])


class MemorySwitch:
    """A switch that survives its sessions: `connect` gives a new session with what it holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: State = {}
        self.has_pipeline = False
        self.writes: list[list[Update]] = []
        self.counters: dict[str, dict[int, Count]] = {}
        self.sends: Callable[[int, bytes], None] = lambda port, frame: None
        """Called with each frame that it sends out of a port."""
        self.heard = 0
        """Ports at which neighbours' probes have come in since the last question, a bit for each."""
        self.slots: dict[int, SlotState] = {}
        self.refuse: Callable[[Update], bool] = lambda update: False
        self.unreachable = False
        self.gate: asyncio.Event | None = None
        """Where there is one, writes wait for it, before or after they are carried out."""
        self.applies_before_gate = False
        self.sessions: list[MemorySession] = []

    async def connect(self) -> MemorySession:
        if self.unreachable:
            raise SwitchError(f"{self.name}: nobody answers")
        self.sessions.append(MemorySession(self))
        return self.sessions[-1]

    def arrives(self, port: int, frame: bytes) -> None:
        """A frame for its CPU port."""
        if self.sessions:
            self.sessions[-1].packets.put_nowait(PacketIn(port, frame))

    def port(self, number: int, *, up: bool) -> None:
        """It tells that a port went down or came back."""
        session = self.sessions[-1]
        (session.ports_down.discard if up else session.ports_down.add)(number)
        session.on_ports()

    def break_session(self, why: str = "stream broke") -> None:
        """End the newest session, as a switch that restarts does."""
        self.sessions[-1].end.set_result(why)


class MemorySession:
    """Implements netfold.controller.switch.target.Client with P4Runtime's rules on duplicates."""

    def __init__(self, switch: MemorySwitch) -> None:
        self.switch = switch
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.packets: asyncio.Queue[PacketIn] = asyncio.Queue()
        self.packets_dropped = 0
        self.ports_down: set[int] = set()
        self.on_ports: Callable[[], None] = lambda: None

    async def packet_out(self, port: int, payload: bytes) -> None:
        self.switch.sends(port, payload)

    async def packet_out_to_neighbours(self, payload: bytes) -> None:
        group = self.switch.state.get(("multicast", (("group", tables.PROBE_GROUP),)))
        for port, _ in group.replicas if isinstance(group, Multicast) else ():
            self.switch.sends(port, signed(payload, port))

    async def heard(self) -> int:
        heard, self.switch.heard = self.switch.heard, 0
        return heard

    async def hear(self) -> None:
        pass

    async def ensure_pipeline(self) -> bool:
        pushed = not self.switch.has_pipeline
        if pushed:
            self.switch.has_pipeline, self.switch.state = True, {}
        return pushed

    async def read_state(self, tables: Iterable[str]) -> State:
        wanted = set(tables)
        return {k: e for k, e in self.switch.state.items() if not isinstance(e, Entry) or e.table in wanted}

    async def read_counters(self, wanted: Wanted) -> Callable[[], Cells]:
        cells = {name: {index: count for index, count in self.switch.counters.get(name, {}).items()
                        if some is None or index in some} for name, some in wanted.items()}
        return lambda: cells

    async def read_cell(self, name: str, index: int) -> int:
        return self.switch.counters.get(name, {}).get(index, Count(0, 0)).packets

    async def probe_all(self, slots: Iterable[int]) -> dict[int, SlotState]:
        return {slot: self.switch.slots.get(slot, SlotState(0, 0, False, False, 0)) for slot in slots}

    async def write(self, updates: list[Update]) -> None:
        if self.switch.gate is not None and not self.switch.applies_before_gate:
            await self.switch.gate.wait()
        self.switch.writes.append(updates)
        failed = []
        for update in updates:  # as BMv2: go on after an error
            key = update.entity.identity
            is_default = isinstance(update.entity, Entry) and update.entity.is_default
            held = is_default or key in self.switch.state
            if self.switch.refuse(update) or held != (update.verb != "insert"):
                failed.append(update)
            elif update.verb == "delete":
                del self.switch.state[key]
            else:
                self.switch.state[key] = update.entity
        if self.switch.gate is not None and self.switch.applies_before_gate:
            await self.switch.gate.wait()
        if failed:
            raise SwitchError(f"{self.switch.name}: Write: " + "; ".join(map(str, failed)))

    async def ended(self) -> str:
        return await asyncio.shield(self.end)

    async def close(self) -> None:
        if not self.end.done():
            self.end.set_result("closed")


class ScriptedServer(p4r_grpc.P4RuntimeServicer):
    """A P4Runtime server: arbitration by its own rule, and what the test puts into the fields."""

    def __init__(self) -> None:
        self.primary: int | None = None
        """Election id of another controller that is primary."""
        self.looks = False
        """True if the first election id of a stream is one that only looks."""
        self.cookie: int | None = None
        self.program = b""
        """The p4_device_config that it tells."""
        self.pushed: list[p4r.SetForwardingPipelineConfigRequest] = []
        self.written: list[p4r.WriteRequest] = []
        self.write_errors: list[p4r.Error] = []
        self.answers_writes = asyncio.Event()
        """Cleared: writes wait for it."""
        self.answers_writes.set()
        self.entities: list[p4r.Entity] = []
        self.to_send: asyncio.Queue[p4r.StreamMessageResponse | None] = asyncio.Queue()
        self.received: list[p4r.StreamMessageRequest] = []
        self.answers: Callable[[p4r.StreamMessageRequest], list[p4r.StreamMessageResponse]] = lambda request: []

    async def serve(self, address: str, tls: grpc.ServerCredentials | None = None) -> grpc.aio.Server:
        server = grpc.aio.server()
        p4r_grpc.add_P4RuntimeServicer_to_server(self, server)
        if tls is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, tls)
        await server.start()
        return server

    async def Capabilities(self, request: Any, context: Any) -> Any:
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    async def StreamChannel(self, requests: Any, context: Any) -> AsyncIterator[p4r.StreamMessageResponse]:
        request = await anext(aiter(requests))
        mine = request.arbitration.election_id
        answer = p4r.MasterArbitrationUpdate(device_id=request.arbitration.device_id, election_id=mine)
        if self.primary == mine.low:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "election id in use")
        if self.primary is not None and (self.primary > mine.low or self.looks):
            answer.election_id.low = self.primary
            answer.status.code, answer.status.message = rpc_code.ALREADY_EXISTS, "from afar"
        yield p4r.StreamMessageResponse(arbitration=answer)
        reader = asyncio.create_task(self._receive(requests))
        try:
            while (message := await self.to_send.get()) is not None:
                yield message
        finally:
            reader.cancel()

    async def _receive(self, requests: Any) -> None:
        async for request in requests:
            self.received.append(request)
            for answer in self.answers(request):
                await self.to_send.put(answer)

    async def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        if self.cookie is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set")
        answer = p4r.GetForwardingPipelineConfigResponse()
        answer.config.cookie.cookie, answer.config.p4_device_config = self.cookie or 0, self.program
        return answer

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:
        self.pushed.append(request)
        self.cookie, self.program = request.config.cookie.cookie, request.config.p4_device_config
        return p4r.SetForwardingPipelineConfigResponse()

    async def Write(self, request: Any, context: Any) -> Any:
        self.written.append(request)
        await self.answers_writes.wait()
        if self.write_errors:
            status = rpc_status.Status(code=rpc_code.UNKNOWN)
            for error in self.write_errors:
                status.details.add().Pack(error)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            await context.abort(grpc.StatusCode.UNKNOWN, "")
        return p4r.WriteResponse()

    async def Read(self, request: Any, context: Any) -> AsyncIterator[p4r.ReadResponse]:
        yield p4r.ReadResponse(entities=self.entities)


def tiny_p4info() -> p4i.P4Info:
    """One table with an exact and a longest-prefix key, its action, a contribution, one counter and packet headers."""
    info = p4i.P4Info()
    table = info.tables.add(size=8)
    table.preamble.id, table.preamble.name = 0x02000001, "In.t"
    table.match_fields.add(id=1, name="port", bitwidth=9, match_type=p4i.MatchField.EXACT)
    table.match_fields.add(id=2, name="dst", bitwidth=32, match_type=p4i.MatchField.LPM)
    table.action_refs.add(id=0x01000001)
    action = info.actions.add()
    action.preamble.id, action.preamble.name = 0x01000001, "In.go"
    action.params.add(id=1, name="where", bitwidth=16)
    contribution = info.actions.add()
    contribution.preamble.id, contribution.preamble.name = 0x01000002, CONTRIBUTION
    contribution.params.add(id=1, name="children", bitwidth=FEW_CHILDREN)
    counter = info.counters.add(size=4)
    counter.preamble.id, counter.preamble.name = 0x12000001, "In.seen"
    for name, field in (("packet_in", "ingress_port"), ("packet_out", "egress_port")):
        header = info.controller_packet_metadata.add()
        header.preamble.name = name
        header.metadata.add(id=1, name=field, bitwidth=9)
        header.metadata.add(id=2, name="kind", bitwidth=7)
    return info


PIPELINE = Pipeline(tiny_p4info(), b"program")
"""The pipeline of the scripted server's switch."""


@asynccontextmanager
async def session(
    folder: Path, server: ScriptedServer, election_id: int = 9, **others: Any
) -> AsyncIterator[Session]:
    """A session with the server on a unix socket; further arguments are of Session.open."""
    address = f"unix:{folder}/s.sock"
    running = await server.serve(address)
    try:
        async with await Session.open("leaf1", address, device_id=3, pipeline=PIPELINE, election_id=election_id,
                                      timeout=BOUND, **others) as opened:
            yield opened
    finally:
        await running.stop(None)
