# SPDX-License-Identifier: Apache-2.0
"""Controllers of a switch: arbitration, who may write, packets and notifications on their streams."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r
from google.protobuf.struct_pb2 import Struct

from softswitch.engine.errors import FailedPrecondition, Unavailable
from softswitch.p4runtime import crashes
from softswitch.p4runtime import server as server_module
from softswitch.p4runtime.listening import ListenError
from softswitch.p4runtime.process import Port, Settings
from softswitch.p4runtime.program import Built, build_executable
from softswitch.p4runtime.server import Server
from switch_support.client import INSERT, MODIFY, TIMEOUT, Client, Stream, code_of, primary, serving
from switch_support.namespace import in_own_network, sh
from switch_support.ports import wait_for
from switch_support.probe import Op, Probe
from switch_support.switch import PROBE, probe_builder, probe_config, probe_p4info

OK, INVALID, NOT_FOUND, EXISTS, DENIED = 0, 3, 5, 6, 7
COUNTER = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=0)))


def test_the_highest_election_id_is_primary_and_all_are_told() -> None:
    """A higher id takes over, the old primary learns it; a lower one is a backup; when the primary leaves, none is."""
    with serving() as (_, address), Client(address) as client:
        first, second, third = client.stream(), client.stream(), client.stream()
        first.arbitrate(5)
        assert first.status() == (OK, 5)
        second.arbitrate(9)
        assert second.status() == (OK, 9)
        assert first.status() == (EXISTS, 9)
        third.arbitrate(3)
        assert third.status() == (EXISTS, 9)
        second.close()
        assert first.status()[0] == NOT_FOUND
        assert third.status()[0] == NOT_FOUND
        first.arbitrate(10)
        assert first.status() == (OK, 10)
        assert third.status() == (EXISTS, 10)


def test_roles_have_primaries_of_their_own() -> None:
    """Equal election ids in different roles do not collide."""
    with serving() as (_, address), Client(address) as client:
        one, two = client.stream(), client.stream()
        one.arbitrate(1)
        two.arbitrate(1, role="telemetry")
        assert one.status() == two.status() == (OK, 1)


@pytest.mark.parametrize(
    ("election", "device", "code"),
    [(5, 1, grpc.StatusCode.INVALID_ARGUMENT), (6, 2, grpc.StatusCode.NOT_FOUND)],
    ids=["id in use", "other device"],
)
def test_bad_arbitration_ends_the_stream(election: int, device: int, code: grpc.StatusCode) -> None:
    """An election id in use is INVALID_ARGUMENT, another device NOT_FOUND."""
    with serving() as (_, address), Client(address) as client:
        first, second = client.stream(), client.stream()
        first.arbitrate(5)
        assert first.status() == (OK, 5)
        second.arbitrate(election, device=device)
        with pytest.raises(grpc.RpcError) as caught:
            second.next()
        assert code_of(caught.value) is code


def test_a_stream_starts_with_arbitration() -> None:
    """A first message other than arbitration is FAILED_PRECONDITION."""
    with serving() as (_, address), Client(address) as client:
        stream = client.stream()
        stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=b"x")))
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert code_of(caught.value) is grpc.StatusCode.FAILED_PRECONDITION


def test_only_the_primary_writes_and_anyone_reads() -> None:
    """Another election id, or none, is PERMISSION_DENIED for writes and pushes."""
    with primary() as (_, client, _stream):
        update = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=0)))
        for wrong in (0, 2):
            client.election = wrong
            with pytest.raises(grpc.RpcError) as caught:
                client.write((MODIFY, update))
            assert code_of(caught.value) is grpc.StatusCode.PERMISSION_DENIED
            with pytest.raises(grpc.RpcError) as caught:
                client.push(probe_config())
            assert code_of(caught.value) is grpc.StatusCode.PERMISSION_DENIED
            assert client.read(update)
        client.device = 7
        with pytest.raises(grpc.RpcError) as caught:
            client.read(update)
        assert code_of(caught.value) is grpc.StatusCode.NOT_FOUND


def test_without_pipeline_calls_say_so() -> None:
    """Read and write before a push are FAILED_PRECONDITION."""
    with serving() as (_, address), Client(address) as client:
        client.become_primary()
        for call in (lambda: client.read(COUNTER), lambda: client.write((MODIFY, COUNTER))):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert code_of(caught.value) is grpc.StatusCode.FAILED_PRECONDITION


def _packet_out(stream: Stream, frame: bytes) -> None:
    stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=frame)))


def test_packets_go_out_and_come_in() -> None:
    """A packet-out runs through the pipeline; what leaves through the CPU port comes to the primary alone."""
    with primary() as (_, client, stream):
        backup = client.stream()
        backup.arbitrate(0)
        assert backup.status() == (EXISTS, 1)
        for i in range(100):
            _packet_out(stream, bytes(Probe(Op.FORWARD, b=510, c=i)))
        assert [int.from_bytes(stream.next().packet.payload[4:8], "big") for _ in range(100)] == list(range(100))
        _packet_out(backup, bytes(Probe(Op.FORWARD, b=510)))
        refused = backup.next().error
        assert refused.canonical_code == grpc.StatusCode.PERMISSION_DENIED.value[0]


def test_a_bad_packet_out_gets_a_stream_error() -> None:
    """The stream continues after an error message that contains the packet."""
    with primary() as (_, _client, stream):
        bad = p4r.PacketOut(payload=b"x", metadata=[p4r.PacketMetadata(metadata_id=9, value=b"\1")])
        stream.send(p4r.StreamMessageRequest(packet=bad))
        error = stream.next().error
        assert error.canonical_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert error.packet_out.packet_out == bad
        _packet_out(stream, bytes(Probe(Op.FORWARD, b=510)))
        assert stream.next().WhichOneof("update") == "packet"


def test_digests_are_gathered_and_repeated_only_after_their_acknowledgement() -> None:
    """A list comes when it is full; a value waits for the acknowledgement of the list that had it."""
    config = p4r.DigestEntry.Config(max_timeout_ns=0, max_list_size=2, ack_timeout_ns=10**12)
    entity = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=0x17000001, config=config))
    with primary() as (_, client, stream):
        client.write((INSERT, entity))
        assert client.read(p4r.Entity(digest_entry=p4r.DigestEntry())) == [entity]
        for value in (1, 1, 2, 2, 1):
            _packet_out(stream, bytes(Probe(Op.DIGEST, a=5, b=value, c=value)))
        digest = stream.next().digest
        values = [tuple(m.bitstring for m in data.struct.members) for data in digest.data]
        assert values == [(b"\1", b"\1"), (b"\2", b"\2")]
        ack = p4r.DigestListAck(digest_id=digest.digest_id, list_id=digest.list_id)
        stream.send(p4r.StreamMessageRequest(digest_ack=ack))
        for value in (1, 3):
            _packet_out(stream, bytes(Probe(Op.DIGEST, a=5, b=value, c=value)))
        assert len(stream.next().digest.data) == 2
        stream.send(p4r.StreamMessageRequest(digest_ack=ack))
        assert stream.next().error.canonical_code == NOT_FOUND
        ack.digest_id += 1
        stream.send(p4r.StreamMessageRequest(digest_ack=ack))
        assert stream.next().error.canonical_code == INVALID


def test_only_the_primary_acknowledges_digest_lists() -> None:
    """An acknowledgement of a backup is PERMISSION_DENIED, and the list's values are not reported again."""
    config = p4r.DigestEntry.Config(max_list_size=1, ack_timeout_ns=10**15)
    with primary() as (_, client, stream):
        client.write((INSERT, p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=0x17000001, config=config))))
        _packet_out(stream, bytes(Probe(Op.DIGEST, a=5, b=1, c=1)))
        digest = stream.next().digest
        backup = client.stream()
        backup.arbitrate(0)
        assert backup.status()[0] == EXISTS
        ack = p4r.DigestListAck(digest_id=digest.digest_id, list_id=digest.list_id)
        backup.send(p4r.StreamMessageRequest(digest_ack=ack))
        error = backup.next().error
        assert (error.canonical_code, error.digest_list_ack.digest_list_ack) == (DENIED, ack)
        for value in (1, 2):
            _packet_out(stream, bytes(Probe(Op.DIGEST, a=5, b=value, c=value)))
        assert stream.next().digest.data[0].struct.members[0].bitstring == b"\2"


def test_a_digest_list_that_does_not_fill_comes_when_its_time_is_up() -> None:
    """A list that is not full is sent after max_timeout_ns."""
    config = p4r.DigestEntry.Config(max_timeout_ns=20_000_000, max_list_size=100)
    with primary() as (_, client, stream):
        client.write((INSERT, p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=0x17000001, config=config))))
        _packet_out(stream, bytes(Probe(Op.DIGEST, a=5, b=1, c=1)))
        assert len(stream.next().digest.data) == 1


def test_idle_entries_are_reported_with_their_match() -> None:
    """An entry with an idle timeout that no packet hits is named to the primary."""
    row = p4r.TableEntry(table_id=0x02000001, idle_timeout_ns=30_000_000, controller_metadata=42)
    row.match.add(field_id=1).exact.value = b"\x05"
    row.action.action.action_id = 0x01000003
    with primary() as (_, client, stream):
        client.write((INSERT, p4r.Entity(table_entry=row)))
        before = time.time_ns()
        notification = stream.next().idle_timeout_notification
        (found,) = notification.table_entry
        assert abs(notification.timestamp - before) < 3600e9
        assert found.time_since_last_hit.elapsed_ns >= 30_000_000
        found.ClearField("time_since_last_hit")
        assert found == row


# ---- the server and its process --------------------------------------------------------------------------------


def test_an_address_in_use_is_named() -> None:
    """Two servers cannot share a port."""
    with serving() as (_, address):
        other = Server(device_id=1, settings=Settings(), builder=lambda _: Built(PROBE, probe_p4info()))
        with pytest.raises(ListenError, match=address):
            other.listen(address)
        other.close()


def test_it_listens_on_unix_sockets(tmp_path: Path) -> None:
    """unix:PATH reaches a switch inside a network namespace from outside."""
    with serving() as (server, _):
        server.close()
    server = Server(device_id=1, settings=Settings(), builder=lambda _: Built(PROBE, probe_p4info()))
    server.listen(f"unix:{tmp_path}/switch.sock")
    with Client(f"unix:{tmp_path}/switch.sock") as client:
        assert client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=TIMEOUT).p4runtime_api_version
    server.close()


def test_the_death_of_the_native_process_is_told_and_a_push_repairs_it() -> None:
    """Streams end with INTERNAL and the signal's name, and the switch has no pipeline and no cookie, until a new push
    starts a new process."""
    with primary() as (server, client, stream):
        os.kill(server.pid, signal.SIGSEGV)
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert code_of(caught.value) is grpc.StatusCode.INTERNAL
        assert "SIGSEGV" in str(caught.value.details())
        client.become_primary(2)
        for call in (lambda: client.read(COUNTER), lambda: client.write((MODIFY, COUNTER)), lambda: _cookie(client)):
            with pytest.raises(grpc.RpcError) as again:
                call()
            assert code_of(again.value) is grpc.StatusCode.FAILED_PRECONDITION
            assert "SIGSEGV" in str(again.value.details())
        client.push(probe_config())
        assert client.read(COUNTER)


def _cookie(client: Client) -> int:
    kind = p4r.GetForwardingPipelineConfigRequest
    request = kind(device_id=1, response_type=kind.COOKIE_ONLY)
    return client.stub.GetForwardingPipelineConfig(request, timeout=TIMEOUT).config.cookie.cookie


def test_a_program_that_keeps_dying_may_start_again_ever_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first death costs no wait; after the second, a push of the same program is UNAVAILABLE for a while, and names
    the deaths."""
    monkeypatch.setattr(crashes, "QUICK", 1000.0)
    monkeypatch.setattr(crashes, "WAITS", (0.0, 1000.0))
    with primary() as (server, client, stream):
        for election in (2, 3):
            os.kill(server.pid, signal.SIGKILL)
            with pytest.raises(grpc.RpcError):
                stream.next()
            stream = client.become_primary(election)
            if election == 2:
                client.push(probe_config())
        with pytest.raises(grpc.RpcError) as caught:
            client.push(probe_config())
        assert code_of(caught.value) is grpc.StatusCode.UNAVAILABLE
        assert "died 2 times" in str(caught.value.details())
        assert "SIGKILL" in str(caught.value.details())
        later = time.monotonic() + 1000
        monkeypatch.setattr(server._configuration.crashes, "clock", lambda: later)
        client.push(probe_config())
        assert client.read(COUNTER)


def test_a_process_that_hangs_is_named_and_ended() -> None:
    """A stopped process answers no call; within some seconds the stream ends with its state, and a push repairs it."""
    with primary() as (server, client, stream):
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(grpc.RpcError) as caught:
            client.read(COUNTER)
        assert code_of(caught.value) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.FAILED_PRECONDITION)
        with pytest.raises(grpc.RpcError) as ended:
            stream.next()
        assert "no sign of life for 3 s; its state is T (stopped by a signal)" in str(ended.value.details())
        client.become_primary(2)
        client.push(probe_config())
        assert client.read(COUNTER)
        assert server.pid != pid


def test_the_program_of_the_command_line_is_started_again_by_the_server() -> None:
    """Nobody else would push it: after a death it runs again, with empty tables; one that a controller has pushed is
    left to the controller."""
    with serving() as (server, address), Client(address) as client:
        server.push(probe_config())
        stream = client.become_primary()
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(grpc.RpcError):
            stream.next()
        wait_for(lambda: _pid(server) not in (None, pid))
        client.become_primary(2)
        assert client.read(COUNTER)


def test_the_server_tries_until_the_program_of_the_command_line_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps its process from starting, as a missing interface, may be over the next time."""
    monkeypatch.setattr(crashes, "WAITS", (0.0,))
    monkeypatch.setattr(server_module, "RESTART_WITHIN", 0.0)
    builds = iter([probe_builder(b""), Built(Path("/bin/false"), probe_p4info()), Unavailable("not now")])

    def build(_: bytes) -> Built:
        built = next(builds, probe_builder(b""))
        if isinstance(built, Exception):
            raise built
        return built

    with serving(builder=build) as (server, _):
        server.push(probe_config())
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: _pid(server) not in (None, pid))


def _pid(server: Server) -> int | None:
    try:
        return server.pid
    except FailedPrecondition:
        return None


def test_a_crash_in_the_pipeline_names_port_and_packet(tmp_path: Path) -> None:
    """A program that crashes on a frame leaves the frame's bytes in the error."""
    text = PROBE.read_text().replace("case DROP:", "case DROP: *(volatile int *)8 = 1;")
    executable = build_executable(text)
    with primary(builder=lambda _: Built(executable, probe_p4info())) as (_, client, stream):
        _packet_out(stream, bytes(Probe(Op.DROP, b=1)))
        with pytest.raises(grpc.RpcError) as caught:
            _until_the_end(stream)
        assert "SIGSEGV" in str(caught.value.details())
        assert "port 510, frame of 8 bytes: 0200000100000000" in str(caught.value.details())
        with pytest.raises(grpc.RpcError):
            client.read(COUNTER)


def _until_the_end(stream: Stream) -> None:
    """The packet-out's own error may or may not come before the stream ends."""
    while stream.next().error.canonical_code == grpc.StatusCode.INTERNAL.value[0]:
        pass


def test_closing_the_server_ends_the_process() -> None:
    """The native process ends with the server."""
    with primary() as (server, _client, _stream):
        pid = server.pid
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


@in_own_network
def test_primaries_are_notified_of_ports() -> None:
    """Primaries hear of all ports when a program starts and of changes; new primaries of ports that are down."""
    sh("ip link add s1 type veth peer name far")
    sh("ip link set s1 up; ip link set far up")
    wait_for(lambda: b"state UP" in subprocess.run(["ip", "link", "show", "s1"], capture_output=True).stdout)

    def status(stream: Stream) -> dict[str, object]:
        told = Struct()
        assert stream.next().other.Unpack(told)
        return dict(told)

    with primary(settings=Settings(ports=(Port(1, "s1"),))) as (_, client, stream):
        assert status(stream) == {"port": 1, "up": True}
        sh("ip link set far down")  # the cable: no carrier
        assert status(stream) == {"port": 1, "up": False}
        later = client.stream()
        later.arbitrate(9)
        assert later.status() == (OK, 9)
        assert status(later) == {"port": 1, "up": False}
        sh("ip link set far up")
        assert status(later) == {"port": 1, "up": True}
    with primary(settings=Settings(ports=(Port(1, "s1"),)), tell_ports=False) as (_, client, stream):
        sh("ip link set far down")
        later = client.stream()
        later.arbitrate(9)
        assert later.status() == (OK, 9)
        assert stream.status()[1] == 9, "the next message, where BMv2 sends no notices"
