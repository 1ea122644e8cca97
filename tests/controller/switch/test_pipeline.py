# SPDX-License-Identifier: Apache-2.0
"""The switch program as the controller loads it: both compilers build it, and its names and numbers are ours."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import msgspec
import pytest

from netfold.bmv2_json import lighten
from netfold.controller.operations import status
from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, path_tables, pipeline, probe, tables
from netfold.controller.switch.codec import Codec, CodecError
from netfold.controller.switch.entities import Entity, Entry
from netfold.controller.switch.pipeline import Pipeline, PipelineError
from netfold.fabric.folding import pools, slots, trees
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import CPU_PORT
from support.p4.program import p4_defines
from switch_support.p4 import basic


def test_a_missing_p4c_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without p4c on PATH the error names it, and the way without."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PipelineError, match="p4c-bm2-ss is not on PATH"):
        pipeline.build("bmv2")


def test_a_controller_that_is_installed_elsewhere_knows_the_program_of_a_switch(tmp_path: Path) -> None:
    """By its cookie, which another one that takes over compares: the program's text names no folder."""
    other = shutil.copytree(pipeline.program().parent, tmp_path / "p4src") / "netfold.p4"
    assert pipeline.build("softswitch", other).cookie == pipeline.build("softswitch").cookie


MARKED = "SwitchEgress.congestion.congestion_marked"
"""Counter by port of packets that were marked, for an operator's own tools: the controller does not read it."""


def everything() -> list[Entity]:
    """Entries of every kind that the controller makes."""
    fabric = leafspine(2, 3, 4, loss=0.01, duplicate=0.01)
    hosts = tuple(msgspec.structs.replace(host, rdma=True) for host in fabric.hosts)
    fabric = msgspec.structs.replace(fabric, hosts=hosts)
    planned = trees.plan(fabric.graph(), ["h1", "h2", "h3"])
    allocator = slots.Allocator([s.name for s in fabric.switches], slots.sizes_of("softswitch", 1024), random.Random(1))
    streams = allocator.admit(planned, [range(3)])
    nics = allocator.admit(planned, [range(3)], rc=(1, 2))
    ends = {place: slots.RcEnd(17, 18, 1 << 40, 5) for place in (1, 2)}
    streams += [dataclasses.replace(stream, rc=ends) for stream in nics]
    steering, graph = Steering(fabric), fabric.graph()
    steering.modes["leaf2"] = "spray"
    graph.remove_edge("leaf2", "spine1")
    parts = [steering.base(graph),
             tables.fixed_entries(fabric),
             *(fold_tables.fold_entries(fabric, fabric.hosts[:3], stream) for stream in streams)]
    return [entity for entities in tables.merge(parts).values() for entity in entities]


def check_names(built: Pipeline) -> None:
    """All entries, tables and counters are the program's."""
    codec = Codec(built.p4info)
    made = everything()
    assert {e.table for e in made if isinstance(e, Entry)} == set(tables.MANAGED)
    for entity in made:
        assert codec.decode(codec.encode(entity)) == entity
    for counter in (*status.COUNTERS, MARKED):
        codec.read_counter(counter)
    for table in tables.MANAGED:
        codec.read_table(table)
    assert codec.packet_out(b"", {"egress_port": 1}).metadata[0].value == b"\1"


def test_every_entry_fits_the_program() -> None:
    """The names, widths and parameters in controller/switch/tables.py are those of p4src, as softswitch compiles it."""
    check_names(pipeline.build("softswitch", faults=True))


@pytest.mark.slow
@pytest.mark.needs("p4c")
def test_every_entry_fits_the_program_of_p4c() -> None:
    """The same, as p4c compiles it."""
    check_names(pipeline.build("bmv2", faults=True))


@pytest.mark.slow
def test_only_a_fabric_with_a_faulty_link_gets_a_program_with_faults() -> None:
    """Without them the program lacks their tables and counters, and what is asked of those is left out."""
    whole, faulty = leafspine(1, 0, 2), leafspine(1, 0, 2, loss=0.01)
    assert (whole.faulty, faulty.faulty) == (False, True)
    fault, codec = f"{tables.FAULT_OUT}.fault", Codec(pipeline.of_fabric(whole).p4info)
    assert not codec.has_table(fault)
    with pytest.raises(CodecError, match="lost"):
        codec.read_counter(tables.fault_counter(tables.FAULT_IN, "lost"))
    assert all(codec.has_table(table) for table in tables.MANAGED if not table.endswith(".fault"))
    assert Codec(pipeline.of_fabric(faulty).p4info).has_table(fault)


def test_numbers_are_the_programs() -> None:
    """Constants that stand in p4src/sizes.p4 and in Python are equal."""
    p4 = p4_defines()
    assert p4["SLOTS"] == pools.SLOTS
    assert p4["PARENT"] == fold_tables.PARENT
    assert p4["ANSWERS"] == fold_tables.ANSWERS
    assert p4["FLOWS"] == p4["CONNECTIONS"] == slots.FLOWS, "who has a flow has an entry"
    assert p4["CPU_PORT"] == CPU_PORT
    assert p4["NO_PORT"] == path_tables.NO_PORT == (1 << p4["PORT_BITS"]) - 1
    assert 1 << p4["PORT_BITS"] > CPU_PORT
    assert p4["CPU_FRAME"] == 0, "packet-outs of frames do not name a kind, which is 0 then"
    assert (p4["CPU_PROBE"], p4["CPU_NEIGHBOURS"], p4["CPU_HEARD"]) == (probe.PROBE, probe.NEIGHBOURS, probe.HEARD)
    assert 8 * len(probe.HEARD_QUESTION) == 1 << p4["PORT_BITS"]
    assert p4["PROBE_GROUP"] == tables.PROBE_GROUP > slots.MAX_GROUP
    assert p4["PROBE_PORT"] == tables.PROBE_PORT
    assert tables.PROBE_PORT % (1 << p4["PORT_BITS"]) == 0
    assert p4["MAX_CHILDREN"] == trees.FEW_CHILDREN


def test_a_broken_program_shows_the_compilers_words(tmp_path: Path) -> None:
    """softswitch's error comes through, with the file."""
    broken = tmp_path / "broken.p4"
    broken.write_text("control C( {}")
    with pytest.raises(PipelineError, match=r"softswitch cannot compile .*broken\.p4"):
        pipeline.build("softswitch", broken)
    with pytest.raises(PipelineError, match=r"nowhere\.p4"):
        pipeline.build("softswitch", tmp_path / "nowhere.p4")


@pytest.mark.needs("p4c")
def test_p4c_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second build comes from the cache, until a pass over the JSON changes; a broken program shows p4c's words."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = tmp_path / "small.p4"
    small.write_text(basic())
    first = pipeline.build("bmv2", small)
    tells_its_version = tmp_path / "bin" / pipeline.P4C
    tells_its_version.parent.mkdir()
    tells_its_version.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {shutil.which(pipeline.P4C)} "$1"\nexit 1\n')
    tells_its_version.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tells_its_version.parent), prepend=":")
        assert pipeline.build("bmv2", small) == first
    passes = shutil.copytree(Path(lighten.__file__).parent, tmp_path / "passes")
    (passes / "masks.py").write_text("# changed")
    monkeypatch.setattr(lighten, "__file__", str(passes / "lighten.py"))
    assert pipeline.build("bmv2", small) == first
    assert len(list(tmp_path.rglob("small-*.json"))) == 2
    broken = tmp_path / "broken.p4"
    broken.write_text("control C( {}")
    with pytest.raises(PipelineError, match=r"broken\.p4.*exit status(.|\n)*syntax error"):
        pipeline.build("bmv2", broken)
