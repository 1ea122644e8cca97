# SPDX-License-Identifier: Apache-2.0
"""Errors of softswitch: its compiler, its commands, and what its P4Runtime server refuses."""

from __future__ import annotations

import functools
import socket
from functools import partial
from pathlib import Path
from unittest import mock

import grpc
from finsy.proto import p4i, p4r

from cbuild import cc
from softswitch import thrift
from softswitch.compiler import device_config
from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.driver import compile_source
from softswitch.engine import errors
from softswitch.engine.transport import OverSocket
from softswitch.explain import entries, packets
from softswitch.p4runtime.crashes import Crashes
from softswitch.p4runtime.listening import ListenError, check
from softswitch.p4runtime.process import Settings, SwitchProcess
from softswitch.stf import script
from softswitch.thrift.errors import ThriftError
from softswitch.tools import install
from softswitch.trace import recording
from softswitch.trace.page.serving import PageError, parse_address
from softswitch.trace.program import TraceError
from support.handbook.scenes import SCENES, scene
from switch_support.client import DELETE, INSERT, MODIFY, details, primary
from switch_support.entries import EXACT, FIXED, SELECT, entry, exact, forward, ternary

COUNTER, PROFILE = 0x12000001, 0x11000001
"""The probe's counter, of 8 cells, and its action profile."""


@scene(CompileError)
def a_name_that_is_not_declared() -> None:
    compile_source("#include <core.p4>\n#include <v1model.p4>\n\nconst bit<9> PORTS = LAST + 1;\n", "prog.p4")


@scene(device_config.UnreadableConfigError)
def a_program_that_is_no_program() -> None:
    device_config.source(b'{"source" 1}')


@scene(cc.BuildError)
def no_compiler_is_there() -> None:
    with mock.patch.dict("os.environ", {"SOFTSWITCH_CC": "cc-that-is-not-there"}):
        cc.find_compiler()


@scene(ListenError)
def an_address_that_others_reach() -> None:
    check("0.0.0.0:9559", None, insecure=False)


@scene(ThriftError)
def thrift_is_not_installed() -> None:
    gone = {"softswitch.thrift.serving": None}
    missing = ModuleNotFoundError("No module named 'thrift'", name="thrift")
    with mock.patch.dict("sys.modules", gone), mock.patch("builtins.__import__", side_effect=missing):
        thrift.serve(mock.Mock(), 9090)


@scene(PageError)
def a_page_for_everybody() -> None:
    parse_address("0.0.0.0:8080")


@scene(TraceError)
def a_recording_that_is_damaged() -> None:
    Path("run.trace").write_bytes(b"nothing of the kind")
    list(recording.read(Path("run.trace")))


@scene(packets.PacketError)
def half_a_byte() -> None:
    packets.read("0102030")


@scene(entries.EntriesError)
def entries_that_are_no_json() -> None:
    Path("s1-runtime.json").write_text("table_entries: []\n")
    entries.load(mock.Mock(), mock.Mock(p4info=p4i.P4Info()), Path("s1-runtime.json"))


@scene(script.StfSyntaxError)
def a_packet_without_a_port() -> None:
    script.parse("add t hdr.key:1 a()\npacket one 0102\n", "mine.stf")


@scene(install.ForeignFileError)
def a_p4c_of_somebody_else() -> None:
    tools = Path("tools")
    tools.mkdir()
    (tools / "p4c").write_text("#!/bin/sh\n")
    install.install(tools)


@scene(install.UnsafeError)
def a_folder_that_all_may_write() -> None:
    tools = Path("tools")
    tools.mkdir()
    tools.chmod(0o777)
    install.install(tools)


# ---- P4Runtime -------------------------------------------------------------------------------------------------------


@functools.cache
def refusals() -> dict[int, str]:
    """The messages with which a server refuses these updates of the probe's pipeline, by gRPC code."""
    counter = p4r.CounterEntry(counter_id=COUNTER, index=p4r.Index(index=8), data=p4r.CounterData())
    row = entry(EXACT, exact(b"\5"), action=forward(3))
    shots = p4r.TableAction()
    shots.action_profile_action_set.action_profile_actions.add(action=forward(1).action, weight=17)
    clone = p4r.CloneSessionEntry(session_id=3, class_of_service=2)
    updates = [
        (INSERT, entry(EXACT, exact(b"\1"))),
        (MODIFY, row),
        (INSERT, row),
        (INSERT, row),
        (INSERT, entry(FIXED, ternary(b"\1", b"\1"), action=forward(1), priority=1)),
        (MODIFY, p4r.Entity(counter_entry=counter)),
        (INSERT, entry(SELECT, exact(b"\1"), action=shots)),
        (INSERT, p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(
            clone_session_entry=clone))),
    ]
    member = p4r.ActionProfileMember(action_profile_id=PROFILE, member_id=1, action=forward(1).action)
    used = [(INSERT, p4r.Entity(action_profile_member=member)),
            (INSERT, entry(SELECT, exact(b"\2"), action=p4r.TableAction(action_profile_member_id=1))),
            (DELETE, p4r.Entity(action_profile_member=member))]
    found: dict[int, str] = {}
    with primary() as (_, client, _stream):
        try:
            client.write(*updates, *used)
        except grpc.RpcError as error:
            for detail in details(error):
                found.setdefault(detail.canonical_code, detail.message)
    return found


for _kind in errors.ERRORS.values():
    if _kind is not errors.Internal:
        SCENES[_kind] = partial(lambda code: refusals()[code], _kind.code)


@scene(errors.Internal)
def an_executable_that_is_gone() -> None:
    SwitchProcess(Path("switch-that-is-not-there"), Settings())


@scene(errors.Unavailable)
def a_program_that_dies_again_and_again() -> None:
    crashes = Crashes(clock=lambda: 0.0)
    program = Path("switch")
    for _ in range(3):
        crashes.died(program, 0.2, "it was killed by SIGSEGV")
    crashes.check(program)


@scene(errors.EngineTimeout)
def a_process_that_stands_still() -> None:
    ours, theirs = socket.socketpair()
    transport = OverSocket(ours, on_event=None, on_end=None, timeout=0.1)
    try:
        transport.exchange(b"")
    finally:
        transport.close()
        theirs.close()
