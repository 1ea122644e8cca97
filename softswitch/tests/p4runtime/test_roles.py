# SPDX-License-Identifier: Apache-2.0
"""Roles: what a config restricts, what other roles keep for themselves, and configs that are refused."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import finsy
import grpc
import pytest
from finsy.proto import p4r
from google.protobuf import text_format
from google.protobuf.struct_pb2 import Struct

from softswitch.compiler.driver import compile_source
from softswitch.p4runtime.arbitration import MAX_ROLES, Arbitration, Session
from softswitch.p4runtime.program import Compiler
from softswitch.p4runtime.roles import CONFIG_MAX, NAME_MAX, P4RoleConfig
from switch_support.client import INSERT, MODIFY, Client, Stream, code_of, primary, serving
from switch_support.entries import EXACT, LPM
from switch_support.p4 import basic
from switch_support.ports import wait_for
from switch_support.probe import Op, Probe
from switch_support.switch import probe_config

COUNTER_ID, DIGEST_ID, REGISTER_ID = 0x12000001, 0x17000001, 0x16000001
DENIED, NOT_FOUND = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND
COUNTER = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=COUNTER_ID, index=p4r.Index(index=0)))
REGISTER = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=REGISTER_ID, index=p4r.Index(index=0)))
REGISTER.register_entry.data.bitstring = b"\1"


def row(table: int, value: bytes) -> p4r.Entity:
    """An entry of the table with an exact key."""
    entity = p4r.Entity()
    entity.table_entry.table_id = table
    entity.table_entry.match.add(field_id=1).exact.value = value
    entity.table_entry.action.action.action_id = 0x01000003
    return entity


def clone() -> p4r.Entity:
    entity = p4r.Entity()
    entity.packet_replication_engine_entry.clone_session_entry.session_id = 3
    entity.packet_replication_engine_entry.clone_session_entry.replicas.add(egress_port=1, instance=1)
    return entity


def refused(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Code and text of a call's error."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return code_of(caught.value), str(caught.value.details())


def test_a_role_writes_what_its_config_names_and_nothing_else() -> None:
    """Each object by its own id, also where one update of a batch is not allowed; no multicast groups, no clone
    sessions, no program, no packets."""
    with primary() as (_, admin, _stream), Client(admin.address) as client:
        config = P4RoleConfig(exclusive_p4_ids=[EXACT], shared_p4_ids=[COUNTER_ID])
        stream = client.become_primary(5, role="tenant", config=config)
        client.write((INSERT, row(EXACT, b"\1")), (MODIFY, COUNTER))
        for entity in (row(LPM, b"\1"), REGISTER):
            code, text = refused(lambda: client.write((INSERT, row(EXACT, b"\2")), (MODIFY, entity)))  # noqa: B023
            assert (code, "the config of role 'tenant' does not name it" in text) == (DENIED, True)
        code, text = refused(lambda: client.write((INSERT, clone())))
        assert (code, "no P4 id" in text) == (DENIED, True)
        assert refused(lambda: client.push(probe_config()))[0] is DENIED
        stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(Probe(Op.FORWARD, b=510)))))
        error = stream.next().error
        assert (error.canonical_code, "receives_packet_ins" in error.message) == (DENIED.value[0], True)
        assert len(admin.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=EXACT)))) == 1


def test_a_role_reads_what_its_config_names() -> None:
    """By id it is told that it may not; a read of everything shows its own objects; a role that nobody has is not
    found."""
    with primary() as (_, admin, _stream), Client(admin.address) as client:
        admin.write((MODIFY, REGISTER))
        client.become_primary(5, role="tenant", config=P4RoleConfig(shared_p4_ids=[COUNTER_ID]))
        assert client.read(COUNTER)
        assert refused(lambda: client.read(REGISTER))[0] is DENIED
        everything = [p4r.Entity(counter_entry=p4r.CounterEntry()), p4r.Entity(register_entry=p4r.RegisterEntry())]
        assert {entity.WhichOneof("entity") for entity in client.read(*everything)} == {"counter_entry"}
        assert len(admin.read(*everything)) > len(client.read(*everything))
        client.role = "nobody"
        assert refused(lambda: client.read(COUNTER))[0] is NOT_FOUND


def test_a_switch_with_the_default_role_alone_refuses_all_others() -> None:
    """With a config or without, by name or number, also while the default role has no primary: nothing is written
    beside it. Who is not primary reads."""
    with serving(default_role_only=True) as (_, address), Client(address) as admin, Client(address) as guest:
        for config in (None, P4RoleConfig(shared_p4_ids=[COUNTER_ID], can_push_pipeline=True)):
            stream = guest.stream()
            stream.arbitrate(1 << 63, role="guest", config=config)
            assert "--default-role-only" in _end(stream)
        numbered = guest.stream()
        numbered.send(p4r.StreamMessageRequest(arbitration=p4r.MasterArbitrationUpdate(
            device_id=1, election_id=p4r.Uint128(low=9), role=p4r.Role(id=5))))
        assert "role '#5'" in _end(numbered)
        admin.become_primary()
        admin.push(probe_config())
        guest.role = "guest"
        assert refused(lambda: guest.write((MODIFY, COUNTER)))[0] is DENIED
        assert refused(lambda: guest.push(probe_config()))[0] is DENIED
        guest.role = ""
        assert guest.read(COUNTER)


def test_what_one_role_has_alone_no_other_named_role_writes() -> None:
    """Not a role without a config either; the default role may do everything; what is exclusive is free again when its
    role has left."""
    with primary() as (_, admin, _stream), Client(admin.address) as one, Client(admin.address) as other:
        stream = one.become_primary(1, role="one", config=P4RoleConfig(exclusive_p4_ids=[COUNTER_ID]))
        other.become_primary(1, role="other")
        code, text = refused(lambda: other.write((MODIFY, COUNTER)))
        assert (code, "only role 'one' may write it" in text) == (DENIED, True)
        other.write((MODIFY, REGISTER), (INSERT, clone()))
        admin.write((MODIFY, COUNTER))
        third = other.stream()
        third.arbitrate(1, role="third", config=P4RoleConfig(shared_p4_ids=[COUNTER_ID]))
        assert "would not be exclusive" in _end(third)
        stream.close()
        wait_for(lambda: _writes(other))


def _writes(client: Client) -> bool:
    """True if a client may write the counter now."""
    try:
        client.write((MODIFY, COUNTER))
    except grpc.RpcError as error:
        return code_of(error) is not DENIED
    return True


def _end(stream: Stream) -> str:
    """The error that a stream ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        stream.next()
    return str(caught.value.details())


def test_packets_and_digests_come_to_the_roles_that_take_them() -> None:
    """A filter on metadata, a role without packets, and a digest that only one role names."""
    with primary() as (_, admin, sender), Client(admin.address) as client:
        filtered = client.become_primary(1, role="filtered", config=P4RoleConfig(
            receives_packet_ins=True, packet_in_filter={"metadata_id": 1, "value": b"\0\7"}, shared_p4_ids=[DIGEST_ID]))
        blind = client.become_primary(1, role="blind", config=P4RoleConfig(shared_p4_ids=[COUNTER_ID]))
        digest = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=DIGEST_ID))
        digest.digest_entry.config.max_list_size = 1
        admin.write((INSERT, digest))
        for number in (1, 2):
            _send(sender, Probe(Op.FORWARD, b=510, c=number))
            assert sender.next().WhichOneof("update") == "packet"
        _send(sender, Probe(Op.DIGEST, a=5, b=1, c=1))
        # the probe has no packet_in metadata, so that no packet has the value that the filter asks for
        assert filtered.next().WhichOneof("update") == "digest"
        assert sender.next().WhichOneof("update") == "digest"
        ack = p4r.StreamMessageRequest(digest_ack=p4r.DigestListAck(digest_id=DIGEST_ID, list_id=1))
        blind.send(ack)
        assert blind.next().error.canonical_code == DENIED.value[0]


def _send(stream: Stream, probe: Probe) -> None:
    stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(probe))))


@pytest.mark.parametrize(("role", "config", "code", "says"), [
    ("tenant", Struct(), "UNIMPLEMENTED", "expected a stratum.P4RoleConfig"),
    ("", P4RoleConfig(), "INVALID_ARGUMENT", "the default role has none"),
    ("tenant", P4RoleConfig(packet_in_filter={"metadata_id": 1, "value": b"x"}), "INVALID_ARGUMENT",
     "packet_in_filter without receives_packet_ins"),
    ("tenant", P4RoleConfig(packet_in_filter={"metadata_id": 1}, receives_packet_ins=True), "INVALID_ARGUMENT",
     "packet_in_filter has no value"),
    ("tenant", P4RoleConfig(shared_p4_ids=range(1 << 30, (1 << 30) + CONFIG_MAX)), "INVALID_ARGUMENT", "at most"),
    ("#5", None, "INVALID_ARGUMENT", "no # as the first"),
    ("x" * (NAME_MAX + 1), None, "INVALID_ARGUMENT", "at most 256 characters"),
])
def test_bad_roles_end_the_stream(role: str, config: Any, code: str, says: str) -> None:
    """Formats that are not supported are named, and what is contradictory or too long."""
    with serving() as (_, address), Client(address) as client:
        stream = client.stream()
        stream.arbitrate(1, role=role, config=config)
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert (code_of(caught.value).name, says in str(caught.value.details())) == (code, True)


def test_roles_that_nobody_has_any_more_are_forgotten_in_the_end() -> None:
    """A client that makes up names without end costs no memory; the default role's highest election id stays."""
    arbitration = Arbitration(1)

    def visit(role: str, election: int) -> list[int]:
        codes: list[int] = []
        session = Session(lambda message: codes.append(message.arbitration.status.code))
        message = p4r.MasterArbitrationUpdate(device_id=1, role=p4r.Role(name=role))
        message.election_id.low = election
        arbitration.update(session, message)
        arbitration.leave(session)
        return codes

    kept = Session(lambda message: None)
    message = p4r.MasterArbitrationUpdate(device_id=1)
    message.election_id.low = 9
    arbitration.update(kept, message)
    for number in range(10 * MAX_ROLES):
        visit(f"role {number}", 5)
    assert len(arbitration.highest) <= MAX_ROLES + 1
    arbitration.leave(kept)
    assert visit("", 8) == [5]  # NOT_FOUND: 9 was higher


def test_finsy_is_restricted_by_the_config_of_its_role(tmp_path: Path) -> None:
    """finsy with a role and its config: its table it writes, another object it does not."""
    program = compile_source(basic(), "basic.p4")
    (tmp_path / "basic.p4").write_text(program.preprocessed)
    info = tmp_path / "basic.p4info.txtpb"
    info.write_text(text_format.MessageToString(program.p4info))
    table = next(t.preamble.id for t in program.p4info.tables if t.preamble.name == "I.dmac")

    async def story(address: str) -> None:
        options = finsy.SwitchOptions(p4info=info, p4blob=tmp_path / "basic.p4", device_id=1)
        async with finsy.Switch("admin", address, options):
            config = P4RoleConfig(exclusive_p4_ids=[table])
            tenant = finsy.SwitchOptions(p4info=info, device_id=1, role_name="tenant", role_config=config)
            async with finsy.Switch("tenant", address, tenant) as switch:
                entry = finsy.P4TableEntry("dmac", match=finsy.Match(dst=5), action=finsy.Action("forward", port=2))
                await switch.write([+entry])
                with pytest.raises(finsy.P4ClientError) as caught:
                    await switch.write([~finsy.P4CounterEntry("ports", index=0)])
                assert caught.value.is_pipeline_missing is False
                assert "does not name it" in str(caught.value)

    with serving(builder=Compiler()) as (_, address):
        asyncio.run(asyncio.wait_for(story(address), 60))


SHELL = """
import sys
import p4runtime_sh.shell as sh
sh.global_options["verbose"] = False
sh.setup(device_id=1, grpc_addr=sys.argv[1], election_id=(0, 1), role_name="other")
entry = sh.TableEntry("I.dmac")(action="I.forward")
entry.match["h.ethernet.dst"] = "00:00:00:00:00:05"
entry.action["port"] = "2"
try:
    entry.insert()
except Exception as error:
    assert "only role 'tenant' may write it" in str(error), error
else:
    raise AssertionError("wrote what another role has alone")
sh.MulticastGroupEntry(5).add(1, 1).insert()
sh.teardown()
print("all done")
"""


@pytest.mark.needs("p4runtime-shell")
def test_p4runtime_shell_in_a_role_of_its_own(tmp_path: Path) -> None:
    """Without a config it writes what no other role has for itself alone."""
    program = compile_source(basic(), "basic.p4")
    config = p4r.ForwardingPipelineConfig(p4info=program.p4info, p4_device_config=program.preprocessed.encode())
    table = next(t.preamble.id for t in program.p4info.tables if t.preamble.name == "I.dmac")
    (tmp_path / "script.py").write_text(SHELL)
    with serving(builder=Compiler()) as (_, address), Client(address) as admin, Client(address) as tenant:
        admin.become_primary(1)
        admin.push(config)
        tenant.become_primary(1, role="tenant", config=P4RoleConfig(exclusive_p4_ids=[table]))
        done = subprocess.run([os.environ["P4RUNTIME_SHELL_PYTHON"], tmp_path / "script.py", address],
                              capture_output=True, text=True, timeout=60)
    assert "all done" in done.stdout, done.stdout + done.stderr
