# SPDX-License-Identifier: Apache-2.0
"""Errors of fabric files, planners, the controller and the calls to it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from pathlib import Path

import msgspec
from finsy.proto import p4r, rpc_code

from netfold.controller import client
from netfold.controller.controller import Controller
from netfold.controller.health.drains import Drains, UnknownName
from netfold.controller.jobs import ticket
from netfold.controller.serving import StartError
from netfold.controller.switch import pipeline
from netfold.controller.switch.election import Candidacy, Elections, Superseded
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import NotPrimary, SwitchError
from netfold.controller.web.answers import Answers, BadRequest, Sources
from netfold.fabric import file as fabric_file
from netfold.fabric.folding import pools, slots, trees
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError
from netfold.fabric.placement import placement
from netfold.fabric.routing import paths
from netfold.fabric.routing.path_graph import PathError
from netfold.rpc import certificates, rpc, tokens
from netfold.wire.operator import Status
from netfold.wire.plan import Secret
from support.control.controller import MemorySwitch, ScriptedServer, session
from support.control.jobs import rig
from support.handbook.scenes import scene

RUN = Path("/run/netfold")
"""Where the switches of a fabric listen that nobody starts."""


@scene(FabricError)
def a_link_names_a_switch_that_is_not_there() -> None:
    file = Path("lab.toml")
    fabric_file.save(leafspine(2, 2, 4, rundir=RUN), file)
    file.write_text(file.read_text().replace('"leaf1:1"', '"leaf9:1"', 1))
    fabric_file.load(file)


@scene(trees.NoTree)
def a_hosts_link_is_down() -> None:
    graph = leafspine(2, 2, 4, rundir=RUN).graph()
    graph.remove_edges_from([*graph.edges("h3", keys=True)])
    trees.plan(graph, ["h1", "h2", "h3", "h4"])


def admit(sizes: slots.Sizes, jobs: int) -> None:
    """Admits so many jobs of all hosts of a small fabric, whose switches have 4096 slots each."""
    fabric = leafspine(2, 1, 4, rundir=RUN)
    hosts = [host.name for host in fabric.hosts]
    planned = trees.plan(fabric.graph(), hosts)
    allocator = slots.Allocator([switch.name for switch in fabric.switches], sizes, random.Random(1), slots=4096)
    for _ in range(jobs):
        allocator.admit(planned, [[rank] for rank in range(len(hosts))])


@scene(pools.Exhausted)
def the_switches_slots_are_taken() -> None:
    admit(slots.sizes_of("softswitch", 1024), 99)


@scene(slots.OverQuota)
def a_job_wants_more_slots_than_it_may_have() -> None:
    admit(dataclasses.replace(slots.sizes_of("softswitch", 1024), quota=10), 1)


@scene(PathError)
def flows_of_different_sizes_are_cut_equally() -> None:
    paths.equal_split([1 << 20, 1 << 21], [1, 1])


@scene(placement.PlacementError)
def more_machines_than_switches() -> None:
    placement.place(leafspine(1, 1, 2, rundir=RUN).graph(), {"m1": 1, "m2": 1, "m3": 1})


async def started(fabric_name: str, unreachable: str) -> None:
    """Starts a controller of a small fabric of which one switch does not answer."""
    fabric = msgspec.structs.replace(leafspine(2, 1, 2, rundir=Path.cwd()), name=fabric_name, fabric_key_file="key")
    switches = {switch.name: MemorySwitch(switch.name) for switch in fabric.switches}
    switches[unreachable].unreachable = True
    controller = Controller(fabric, connect=lambda s: switches[s.name].connect(), start_timeout=0.2)
    try:
        await controller.start()
    finally:
        await controller.stop()


@scene(StartError)
def a_switch_does_not_come_up() -> None:
    asyncio.run(started("lab", "leaf2"))


@scene(ticket.TicketError)
def a_ticket_of_another_fabric() -> None:
    ticket.unseal(b"k" * 32, Secret("A" * 64))


@scene(BadRequest)
def a_question_without_the_switch() -> None:
    async def status() -> Status:
        raise AssertionError

    Answers(Sources(leafspine(1, 0, 2, rundir=RUN), status)).get("/slots.json", {}, lambda work: None)


@scene(NotPrimary)
def another_client_is_primary() -> None:
    async def connect() -> None:
        server = ScriptedServer()
        server.primary = 50
        async with session(Path.cwd(), server):
            pass

    asyncio.run(connect())


@scene(SwitchError)
def a_switch_refuses_an_entry() -> None:
    async def write() -> None:
        server = ScriptedServer()
        server.write_errors = [p4r.Error(canonical_code=rpc_code.RESOURCE_EXHAUSTED, message="the table is full")]
        entry = Entry("In.t", (("port", 5), ("dst", (0x0A000000, 8))), "In.go", (("where", 300),))
        async with session(Path.cwd(), server) as switch:
            await switch.write([Update("insert", entry)])

    asyncio.run(write())


@scene(Superseded)
def a_later_controller_takes_a_switch() -> None:
    key = b"the fabric's key, which has to have some bytes"
    candidacy, later = Candidacy(Elections(key, 1, lambda: 1000)), Elections(key, 1, lambda: 2000)
    candidacy.lost(later.above(candidacy.claim(0)), "leaf1: another client is primary")


@scene(pipeline.PipelineError)
def a_program_that_does_not_compile() -> None:
    program = Path("prog.p4")
    program.write_text("#include <core.p4>\n#include <v1model.p4>\n\nheader ethernet_t { bit<48> dst }\n")
    pipeline.build("softswitch", program)


@scene(UnknownName)
def a_switch_that_is_not_there_is_drained() -> None:
    Drains(leafspine(2, 2, 4, rundir=RUN)).canonical("spine9")


@scene(tokens.TokenError)
def a_token_that_others_may_read() -> None:
    file = Path("operator.token")
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    tokens.read(file, "fabric.operator_token_file")


@scene(certificates.TlsError)
def a_certificate_that_is_none() -> None:
    Path("ca.pem").write_text("nothing of the kind\n")
    certificates.Certificates("NETFOLD_CA", ca="ca.pem").client()


@scene(rpc.Unreachable)
def no_controller_runs() -> None:
    asyncio.run(client.status("unix:netfold.sock", timeout=0.5, token=""))


@scene(rpc.CallRefused)
def slots_of_a_switch_that_is_not_there() -> None:
    async def slots_of() -> None:
        async with rig(Path.cwd()) as running:
            await client.slots(running.fabric.jobs, "leaf9", token="")

    asyncio.run(slots_of())
