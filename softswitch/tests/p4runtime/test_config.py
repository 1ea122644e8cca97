# SPDX-License-Identifier: Apache-2.0
"""Pushing pipelines: what VERIFY refuses, what COMMIT replaces, what RECONCILE keeps; real programs from source."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import finsy
import grpc
import pytest
from finsy.proto import p4r
from google.protobuf import text_format

from cbuild import cc
from softswitch.compiler import confined
from softswitch.compiler.driver import Program, compile_source
from softswitch.engine.errors import Internal
from softswitch.p4runtime import config as pipeline_config
from softswitch.p4runtime import crashes, entities
from softswitch.p4runtime.process import SwitchProcess
from softswitch.p4runtime.program import Built, Compiler
from softswitch.p4runtime.server import Server
from softswitch.thrift.serving import ServedSwitch
from switch_support.client import DELETE, INSERT, MODIFY, TIMEOUT, Client, Stream, code_of, serving
from switch_support.p4 import basic
from switch_support.switch import probe_builder, probe_config, probe_p4info

Set = p4r.SetForwardingPipelineConfigRequest
QUICK = ("-O0",)
"""For a cache that has no runtime: what runs there need not be fast."""


def config(program: Program, cookie: int = 0) -> p4r.ForwardingPipelineConfig:
    made = p4r.ForwardingPipelineConfig(p4info=program.p4info, p4_device_config=program.preprocessed.encode())
    if cookie:
        made.cookie.cookie = cookie
    return made


@pytest.fixture(scope="module")
def plain() -> Program:
    return compile_source(basic(), "basic.p4")


@pytest.fixture
def bench(plain: Program) -> Iterator[tuple[Server, Client, Stream]]:
    with serving(builder=Compiler()) as (server, address), Client(address) as client:
        stream = client.become_primary()
        client.push(config(plain, cookie=7))
        yield server, client, stream


def _ids(program: Program) -> dict[str, int]:
    info = program.p4info
    named: list[Any] = [*info.tables, *info.actions, *info.counters, *info.registers]
    return {thing.preamble.name.split(".")[-1]: thing.preamble.id for thing in named}


def row(program: Program, mac: int, port: int) -> p4r.Entity:
    ids = _ids(program)
    entry = p4r.TableEntry(table_id=ids["dmac"])
    match = entry.match.add(field_id=1)
    if program.p4info.tables[0].match_fields[0].match_type == 2:
        match.exact.value = bytes([mac])
    entry.action.action.action_id = ids["forward"]
    entry.action.action.params.add(param_id=1, value=bytes([port]))
    return p4r.Entity(table_entry=entry)


def state(client: Client) -> list[p4r.Entity]:
    """All that a controller can put into the switch."""
    pre = p4r.PacketReplicationEngineEntry(multicast_group_entry=p4r.MulticastGroupEntry())
    return client.read(
        p4r.Entity(table_entry=p4r.TableEntry()),
        p4r.Entity(counter_entry=p4r.CounterEntry()),
        p4r.Entity(register_entry=p4r.RegisterEntry()),
        p4r.Entity(packet_replication_engine_entry=pre),
    )


def fill(client: Client, program: Program) -> None:
    ids = _ids(program)
    group = p4r.Entity()
    group.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 5
    group.packet_replication_engine_entry.multicast_group_entry.replicas.add(egress_port=1, instance=2)
    counter = p4r.CounterEntry(counter_id=ids["ports"], index=p4r.Index(index=3))
    counter.data.packet_count = 9
    register = p4r.RegisterEntry(register_id=ids["seen"], index=p4r.Index(index=2))
    register.data.bitstring = b"\x2a"
    client.write(
        (INSERT, row(program, 1, 2)),
        (INSERT, row(program, 3, 4)),
        (INSERT, group),
        (MODIFY, p4r.Entity(counter_entry=counter)),
        (MODIFY, p4r.Entity(register_entry=register)),
    )


def refused(client: Client, wrong: p4r.ForwardingPipelineConfig, action: Set.Action.ValueType) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        client.push(wrong, action)
    return caught.value


BAD = {
    "not P4": (b"this is no P4", "pushed.p4:1:1"),
    "a type error": (
        basic().replace("s.egress_spec = port;", "s.egress_spec = h.ethernet.dst;").encode(),
        "egress_spec",
    ),
    "empty": (b"", "empty"),
    "not text": (b"\xff\xfe{}", "UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_program_is_refused_and_the_running_one_goes_on(
    bench: tuple[Server, Client, Stream], plain: Program, name: str
) -> None:
    """INVALID_ARGUMENT with the compiler's message, whatever is to be done with it; entries, counts and process
    stay."""
    server, client, _ = bench
    fill(client, plain)
    before, pid = state(client), server.pid
    text, said = BAD[name]
    wrong = p4r.ForwardingPipelineConfig(p4info=plain.p4info, p4_device_config=text)
    for action in (Set.VERIFY, Set.VERIFY_AND_SAVE, Set.VERIFY_AND_COMMIT, Set.RECONCILE_AND_COMMIT):
        error = refused(client, wrong, action)
        assert code_of(error) is grpc.StatusCode.INVALID_ARGUMENT
        assert said in str(error.details())
        assert (state(client), server.pid) == (before, pid)


def test_p4info_of_another_program_is_refused(bench: tuple[Server, Client, Stream], plain: Program) -> None:
    """BMv2 takes it silently; we name the first differences."""
    _, client, _ = bench
    other = compile_source(basic(key="ternary"), "other.p4")
    mixed = p4r.ForwardingPipelineConfig(p4info=other.p4info, p4_device_config=plain.preprocessed.encode())
    error = refused(client, mixed, Set.VERIFY)
    assert code_of(error) is grpc.StatusCode.INVALID_ARGUMENT
    assert "I.dmac" in str(error.details())
    assert code_of(refused(client, p4r.ForwardingPipelineConfig(), Set.VERIFY)) is grpc.StatusCode.INVALID_ARGUMENT


def test_commit_starts_afresh_and_get_gives_back_what_was_pushed(
    bench: tuple[Server, Client, Stream], plain: Program
) -> None:
    """VERIFY_AND_COMMIT wipes; the cookie, p4info and program read back as asked."""
    _, client, _ = bench
    empty = state(client)
    fill(client, plain)
    assert state(client) != empty
    client.push(config(plain, cookie=8))
    assert state(client) == empty
    get = p4r.GetForwardingPipelineConfigRequest
    for kind, wanted in {
        get.ALL: config(plain, cookie=8),
        get.COOKIE_ONLY: p4r.ForwardingPipelineConfig(cookie=config(plain, cookie=8).cookie),
        get.P4INFO_AND_COOKIE: p4r.ForwardingPipelineConfig(
            p4info=plain.p4info, cookie=config(plain, cookie=8).cookie
        ),
    }.items():
        request = get(device_id=1, response_type=kind)
        assert client.stub.GetForwardingPipelineConfig(request, timeout=TIMEOUT).config == wanted


def test_a_saved_pipeline_waits_for_its_commit(bench: tuple[Server, Client, Stream], plain: Program) -> None:
    """VERIFY_AND_SAVE changes nothing yet; COMMIT does; a second COMMIT has nothing to do."""
    _, client, _ = bench
    other = compile_source(basic(key="ternary"), "other.p4")
    fill(client, plain)
    before = state(client)
    client.push(config(other), Set.VERIFY)
    client.push(config(other), Set.VERIFY_AND_SAVE)
    assert state(client) == before
    client.push(p4r.ForwardingPipelineConfig(), Set.COMMIT)
    assert state(client) != before
    assert code_of(refused(client, p4r.ForwardingPipelineConfig(), Set.COMMIT)) is grpc.StatusCode.FAILED_PRECONDITION


def test_reconcile_keeps_state_for_the_same_and_for_a_changed_program(
    bench: tuple[Server, Client, Stream], plain: Program
) -> None:
    """The same program simply goes on; one with the same objects gets entries, counts, registers and groups."""
    server, client, _ = bench
    fill(client, plain)
    before, pid = state(client), server.pid
    client.push(config(plain), Set.RECONCILE_AND_COMMIT)
    assert (state(client), server.pid) == (before, pid)
    changed = compile_source(basic(egress="h.ethernet.src = 1;"), "basic.p4")
    client.push(config(changed), Set.RECONCILE_AND_COMMIT)
    assert state(client) == before
    assert server.pid != pid


def test_reconcile_keeps_what_controllers_made_of_initial_entries(bench: tuple[Server, Client, Stream]) -> None:
    """The changed program's initial entries give way: one was modified, one deleted, and neither comes back."""
    _, client, _ = bench
    first, changed = (
        compile_source(source.replace("size = 4096;", "entries = { 1: forward(1); 2: forward(2); }"), "i.p4")
        for source in (basic(), basic(egress="h.ethernet.src = 1;"))
    )
    client.push(config(first))
    client.write((MODIFY, row(first, 1, 7)), (DELETE, row(first, 2, 2)), (INSERT, row(first, 3, 4)))
    before = state(client)
    client.push(config(changed), Set.RECONCILE_AND_COMMIT)
    assert state(client) == before


def test_reconcile_keeps_the_parameters_of_custom_crcs(bench: tuple[Server, Client, Stream]) -> None:
    """The changed program hashes as the old one did; one without the calculation is refused."""
    server, client, _ = bench
    stirred = basic().replace("ports.count((bit<32>) s.ingress_port);", """
        bit<32> crc;
        hash(crc, HashAlgorithm.crc32_custom, 32w0, { 8w65 }, 33w0x100000000);
        seen.write(0, crc);""")
    client.push(config(compile_source(stirred, "crc.p4")))
    ServedSwitch(server, None).set_crc("calc", 32, 0x04C11DB7, 0, 0, data_reflected=False, remainder_reflected=False)

    def hashed() -> int:
        engine = server.running().context.engine
        engine.write_register(engine.register("I.seen"), 0, [0])
        engine.packet_out(b"\0\0" + bytes(14))
        return engine.read_register(engine.register("I.seen"))[0]

    before = hashed()
    assert before not in (0, zlib.crc32(b"A"))
    client.push(config(compile_source(stirred.replace("seen.write(0, n + 1)", "seen.write(0, n + 2)"), "crc.p4")),
                Set.RECONCILE_AND_COMMIT)
    assert hashed() == before
    plain = stirred.replace("crc32_custom", "crc32")
    error = refused(client, config(compile_source(plain, "crc.p4")), Set.RECONCILE_AND_COMMIT)
    assert code_of(error) is grpc.StatusCode.FAILED_PRECONDITION


def test_reconcile_is_refused_where_state_has_no_place(bench: tuple[Server, Client, Stream], plain: Program) -> None:
    """Exact entries cannot become ternary ones; everything stays as it was."""
    server, client, _ = bench
    fill(client, plain)
    before, pid = state(client), server.pid
    other = compile_source(basic(key="ternary"), "other.p4")
    assert code_of(refused(client, config(other), Set.RECONCILE_AND_COMMIT)) is grpc.StatusCode.FAILED_PRECONDITION
    assert (state(client), server.pid) == (before, pid)


def test_reconcile_drops_tables_and_value_sets_that_nobody_wrote(
    bench: tuple[Server, Client, Stream], plain: Program
) -> None:
    """They hold no state; with a default action, its metadata or a member that a controller wrote, the request is
    refused."""
    _, client, _ = bench
    more = compile_source(basic().replace("table dmac {", """
        action to(bit<9> port) { s.egress_spec = port; }
        table more { key = { h.ethernet.src: exact; } actions = { to; } default_action = to(5); }
        table dmac {""").replace("dmac.apply();", "more.apply(); dmac.apply();").replace("state start {", """
        value_set<bit<16>>(4) types;
        state start {""").replace("transition accept;", """
        transition select(h.ethernet.type) { types: accept; default: accept; }"""), "more.p4")
    client.push(config(more))
    client.write((INSERT, row(more, 1, 2)))
    default = p4r.Entity(table_entry=p4r.TableEntry(table_id=_ids(more)["more"], is_default_action=True))
    values = p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=more.p4info.value_sets[0].preamble.id))
    for entity, param, metadata in ((default, b"\6", b""), (default, b"\5", b"noted"), (values, b"", b"")):
        written = p4r.Entity()
        written.CopyFrom(entity)
        if entity is default:
            written.table_entry.action.action.action_id = _ids(more)["to"]
            written.table_entry.action.action.params.add(param_id=1, value=param)
            written.table_entry.metadata = metadata
        else:
            written.value_set_entry.members.add().match.add(field_id=1).exact.value = b"\1"
        client.write((MODIFY, written))
        error = refused(client, config(plain), Set.RECONCILE_AND_COMMIT)
        assert code_of(error) is grpc.StatusCode.FAILED_PRECONDITION
        client.write((MODIFY, entity))  # as it was
    client.push(config(plain), Set.RECONCILE_AND_COMMIT)
    assert client.read(p4r.Entity(table_entry=p4r.TableEntry())) == [row(plain, 1, 2)]


def test_a_program_whose_process_does_not_start_leaves_the_running_one_and_all_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The push alone fails: the old process lives, and its controllers hear nothing of a death."""
    monkeypatch.setattr(crashes, "WAITS", (0.0,))
    built = [probe_builder(b""), Built(Path("/bin/false"), probe_p4info())]
    with serving(builder=lambda _: built[0]) as (server, address), Client(address) as client:
        primary, backup = client.become_primary(5), client.stream()
        backup.arbitrate(1)
        assert backup.status() == (6, 5)
        client.push(probe_config())
        pid = server.pid
        built.pop(0)
        for action in (Set.VERIFY_AND_COMMIT, Set.RECONCILE_AND_COMMIT) * 2:
            error = refused(client, probe_config(), action)
            assert code_of(error) is grpc.StatusCode.INTERNAL
            assert "did not start" in str(error.details())
        assert server.pid == pid
        for stream in (primary, backup):
            stream.send(p4r.StreamMessageRequest())
            assert stream.next().HasField("error")


def test_a_program_that_dies_before_it_takes_over_leaves_the_running_one_and_all_streams(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While state is carried over there are two processes, and a death of the new one is none of the switch's."""
    monkeypatch.setattr(crashes, "WAITS", (0.0,))
    made: list[SwitchProcess] = []
    heard = threading.Event()

    class Noted(SwitchProcess):
        def __init__(self, *args: Any, on_death: Any, **named: Any) -> None:
            def told(why: str) -> None:
                on_death(why)
                heard.set()

            super().__init__(*args, on_death=told, **named)
            made.append(self)

    def dies(*_: object) -> None:
        os.kill(made[-1].pid, signal.SIGKILL)
        assert heard.wait(TIMEOUT)
        raise Internal(str(made[-1].death))

    monkeypatch.setattr(pipeline_config, "SwitchProcess", Noted)
    monkeypatch.setattr(entities, "write", dies)
    first = probe_builder(b"")
    built = [first, dataclasses.replace(first, executable=Path(shutil.copy(first.executable, tmp_path / "other")))]
    with serving(builder=lambda _: built[0]) as (server, address), Client(address) as client:
        primary = client.become_primary(5)
        client.push(probe_config())
        pid = server.pid
        built.pop(0)
        error = refused(client, probe_config(), Set.RECONCILE_AND_COMMIT)
        assert "signal 9, SIGKILL" in str(error.details())
        assert server.pid == pid
        primary.send(p4r.StreamMessageRequest())
        assert primary.next().HasField("error")


def test_finsy_drives_a_switch_from_source(plain: Program, tmp_path: Path) -> None:
    """A real controller: pipeline, entries, groups, counters, packet-out, packet-in with its metadata."""
    (tmp_path / "basic.p4").write_text(plain.preprocessed)
    (tmp_path / "basic.p4info.txtpb").write_text(text_format.MessageToString(plain.p4info))
    options = finsy.SwitchOptions(p4info=tmp_path / "basic.p4info.txtpb", p4blob=tmp_path / "basic.p4", device_id=1)

    async def control(address: str) -> None:
        switch: Any  # finsy's annotations do not survive a strict checker
        async with finsy.Switch("sw1", address, options) as switch:
            assert switch.is_primary

            def wanted() -> finsy.P4TableEntry:
                return finsy.P4TableEntry("dmac", match=finsy.Match(dst=5), action=finsy.Action("forward", port=2))

            await switch.write([+wanted(), +finsy.P4MulticastGroupEntry(3, replicas=[1, (2, 7)])])
            (found,) = [entry async for entry in switch.read(finsy.P4TableEntry("dmac"))]
            assert found.match == {"dst": 5}
            with pytest.raises(finsy.P4ClientError) as caught:
                await switch.write([+wanted()])
            assert caught.value.details[0].canonical_code == finsy.GRPCStatusCode.ALREADY_EXISTS
            (group,) = [entry async for entry in switch.read(finsy.P4MulticastGroupEntry())]
            assert group.multicast_group_id == 3
            coming = asyncio.create_task(anext(switch.read_packets()))
            await asyncio.sleep(0)  # it listens from its first step on
            await switch.write([finsy.P4PacketOut(b"\5" * 20, egress_port=510, pad=9)])
            packet = await asyncio.wait_for(coming, TIMEOUT)
            assert packet.payload == b"\5" * 20
            assert (packet["ingress_port"], packet["reason"]) == (510, 9)
            counts = [entry async for entry in switch.read(finsy.P4CounterEntry("ports"))]
            assert len(counts) == 16

    with serving(builder=Compiler()) as (_, address):
        asyncio.run(asyncio.wait_for(control(address), 2 * TIMEOUT))


@pytest.mark.parametrize(("text", "code", "says"), [
    ("#include \"A FILE\"\n", grpc.StatusCode.INVALID_ARGUMENT, "may include core.p4 and v1model.p4 alone"),
    ("header h_t { bit<2147483648> x; }", grpc.StatusCode.INVALID_ARGUMENT, "at most 65536 bits"),
    (" " * (5 << 20) + "x", grpc.StatusCode.RESOURCE_EXHAUSTED, "may have 4194304"),
])
def test_a_hostile_program_leaves_the_running_one_as_it_is(
    bench: tuple[Server, Client, Stream], plain: Program, tmp_path: Path, text: str, code: grpc.StatusCode, says: str
) -> None:
    """The error says why, shows nothing of the machine's files, and the process is the one from before."""
    server, client, _ = bench
    (tmp_path / "file").write_text("open sesame\n")
    text = text.replace("A FILE", str(tmp_path / "file"))
    client.write((INSERT, row(plain, 5, 2)))
    pid = server.pid
    with pytest.raises(grpc.RpcError) as refused:
        client.push(p4r.ForwardingPipelineConfig(p4info=plain.p4info, p4_device_config=text.encode()))

    assert code_of(refused.value) is code
    assert says in str(refused.value)
    assert "sesame" not in str(refused.value)
    assert server.pid == pid
    assert client.read(p4r.Entity(table_entry=p4r.TableEntry()))


def test_a_program_is_built_again_for_another_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines that share a home share the cache, and -march=native makes code that others cannot run."""
    compiler = Compiler()
    here = compiler.key(b"program")
    monkeypatch.setattr(cc, "cpu", lambda: "another")
    assert compiler.key(b"program") != here


@pytest.mark.slow
def test_of_switches_that_start_together_one_compiles_a_program(
    plain: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it, and take what it has made from the cache."""
    compile_program, lock = confined.compile_program, cc.lock
    compiled, asked = [], threading.Semaphore(0)

    def counted(config: bytes, *, trace: bool) -> confined.CompiledProgram:
        compiled.append(config)
        for _ in range(2):  # both switches are there
            assert asked.acquire(timeout=TIMEOUT), "the other switch has not asked for the lock"
        return compile_program(config, trace=trace)

    def told(path: Path, timeout: float = cc.LOCK_TIMEOUT) -> contextlib.AbstractContextManager[None]:
        if path.name.startswith("program-"):
            asked.release()
        return lock(path, timeout)

    monkeypatch.setattr(confined, "compile_program", counted)
    monkeypatch.setattr(cc, "lock", told)
    with ThreadPoolExecutor(2) as switches:
        compilers = [Compiler(flags=QUICK, cache_dir=tmp_path) for _ in range(2)]
        builds = [switches.submit(compiler, plain.preprocessed.encode()) for compiler in compilers]
        first, second = (build.result(4 * TIMEOUT) for build in builds)
    assert compiled == [plain.preprocessed.encode()]
    assert (first.executable, first.p4info) == (second.executable, second.p4info)


@pytest.mark.slow
def test_a_cache_that_cannot_be_locked_does_not_keep_a_program_from_running(
    plain: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each switch compiles for itself then."""
    lock = cc.lock

    def refused(path: Path, timeout: float = cc.LOCK_TIMEOUT) -> contextlib.AbstractContextManager[None]:
        if path.name.startswith("program-"):
            raise PermissionError(13, "not ours", str(path))
        return lock(path, timeout)

    monkeypatch.setattr(cc, "lock", refused)
    assert Compiler(flags=QUICK, cache_dir=tmp_path)(plain.preprocessed.encode()).executable.is_file()
