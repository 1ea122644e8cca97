# SPDX-License-Identifier: Apache-2.0
"""P4Runtime messages with bytes spoiled, and bytes that are none: each gets a status, and the switch forwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import p4r
from google.protobuf.message import DecodeError

from softswitch.engine.errors import EngineError, InvalidArgument
from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.program import Built
from switch_support import fuzz
from switch_support.client import TIMEOUT, Client, Stream, serving
from switch_support.entries import ENTRIES
from switch_support.probe import Op, Probe
from switch_support.switch import SANITIZE, probe_config, probe_executable, probe_p4info

HIGHEST = p4r.Uint128(high=2**64 - 1, low=2**64 - 1)
"""The election id of the primary, which no spoiled message outbids."""


NO_MESSAGE = "Exception deserializing request!"
"""gRPC's own error for bytes that are not the call's message."""


@pytest.fixture(scope="module")
def bench() -> Iterator[tuple[str, Stream]]:
    """The address of a switch that runs the probe, with sanitizers where there are any, and its primary's stream."""
    sanitize = True
    try:
        probe_executable(flags=SANITIZE)
    except EngineError:
        sanitize = False

    def builder(device_config: bytes) -> Built:
        if device_config != probe_config().p4_device_config:
            raise InvalidArgument("this is not the probe")
        return Built(probe_executable(flags=SANITIZE if sanitize else ()), probe_p4info())

    with serving(settings=Settings(cpu_port=510), builder=builder) as (_, where), Client(where) as client:
        stream = client.stream()
        message = p4r.StreamMessageRequest()
        message.arbitration.device_id = 1
        message.arbitration.election_id.CopyFrom(HIGHEST)
        stream.send(message)
        assert stream.status()[0] == 0
        push = p4r.SetForwardingPipelineConfigRequest
        client.stub.SetForwardingPipelineConfig(push(
            device_id=1, election_id=HIGHEST, action=push.VERIFY_AND_COMMIT, config=probe_config()), timeout=TIMEOUT)
        yield where, stream


def good() -> dict[str, list[bytes]]:
    """Valid requests of each call."""
    write = p4r.WriteRequest(device_id=1, election_id=HIGHEST)
    for entity in ENTRIES:
        write.updates.add(type=p4r.Update.MODIFY, entity=entity)
    push = p4r.SetForwardingPipelineConfigRequest
    arbitration = p4r.StreamMessageRequest()
    arbitration.arbitration.device_id, arbitration.arbitration.election_id.low = 1, 1
    packet = p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(Probe(Op.FORWARD, b=1))))
    ack = p4r.StreamMessageRequest(digest_ack=p4r.DigestListAck(digest_id=0x17000001, list_id=1))
    return {
        "Write": [write.SerializeToString()],
        "Read": [p4r.ReadRequest(device_id=1, entities=ENTRIES).SerializeToString(),
                 p4r.ReadRequest(device_id=1, entities=[p4r.Entity(table_entry=p4r.TableEntry())]).SerializeToString()],
        "SetForwardingPipelineConfig": [
            push(device_id=1, election_id=HIGHEST, action=action, config=probe_config()).SerializeToString()
            for action in (push.VERIFY, push.VERIFY_AND_COMMIT, push.RECONCILE_AND_COMMIT)],
        "GetForwardingPipelineConfig": [p4r.GetForwardingPipelineConfigRequest(device_id=1).SerializeToString()],
        "Capabilities": [b""],
        "StreamChannel": [message.SerializeToString() for message in (arbitration, packet, ack)],
    }


def status_of(channel: grpc.Channel, call: str, messages: list[bytes]) -> tuple[grpc.StatusCode, str]:
    """Calls with bytes as they are; the status that the server ends the call with, in time, and its text."""
    method = f"/p4.v1.P4Runtime/{call}"
    try:
        if call == "StreamChannel":
            answers: Any = channel.stream_stream(method)(iter(messages), timeout=TIMEOUT)
            for _ in answers:
                pass
        elif call == "Read":
            answers = channel.unary_stream(method)(messages[0], timeout=TIMEOUT)
            for _ in answers:
                pass
        else:
            channel.unary_unary(method)(messages[0], timeout=TIMEOUT)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def forwards(stream: Stream, number: int) -> bool:
    """True if a packet that goes out to the CPU port comes in."""
    stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(Probe(Op.FORWARD, b=510, c=number)))))
    while (answer := stream.next()).WhichOneof("update") != "packet":
        assert answer.WhichOneof("update") != "error", answer
    return answer.packet.payload[4:8] == number.to_bytes(4, "big")


@pytest.mark.fuzz
def test_every_message_gets_a_status_and_the_switch_forwards(
    bench: tuple[str, Stream], fuzzing: fuzz.Fuzz
) -> None:
    """All calls of the service, with valid messages spoiled and with bytes that are none."""
    address, stream = bench
    calls, seen = good(), Counter[str]()
    with grpc.insecure_channel(address) as channel:
        for draw in fuzzing.inputs(400):
            call = draw.choice(list(calls))
            messages = [spoiled(draw, calls[call]) for _ in range(draw.choice([1, 1, 4]))]
            code, said = status_of(channel, call, messages)
            seen[f"{code.name}{': no message' if said == NO_MESSAGE else ''}"] += 1
            where = f"input {fuzzing.tried}: {call} of {[m.hex() for m in messages]}"
            assert code not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE), f"{said}; {where}"
            assert code is not grpc.StatusCode.INTERNAL or said == NO_MESSAGE, f"{said}; {where}"
            assert "Exception" not in said or said == NO_MESSAGE, f"{said}; {where}"
            if fuzzing.tried % 100 == 0:
                assert forwards(stream, fuzzing.tried), where
    print(f"fuzz: {dict(seen)}")
    assert forwards(stream, 7)
    assert seen["OK"]
    assert len(seen) > 3


def spoiled(draw: random.Random, messages: list[bytes]) -> bytes:
    """A valid message with bytes changed, mostly such that a message is left; seldom no message at all."""
    if draw.random() < 0.05:
        return draw.randbytes(draw.choice([1, 10, 1000]))
    message = draw.choice(messages)
    for _ in range(20):
        spoiled = fuzz.spoil(draw, message)
        try:
            p4r.WriteRequest.FromString(spoiled)  # the form of messages is the same for all
        except DecodeError:
            continue
        return spoiled
    return message
