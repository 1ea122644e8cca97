# SPDX-License-Identifier: Apache-2.0
"""`netfold bench allreduce`: its options, its arithmetic, and a small run of all of it."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from netfold.bench.commands import allreduce
from netfold.bench.commands.allreduce import AllreduceTurn
from netfold.bench.options.sums import AllreduceOptions
from netfold.cli.app import app
from netfold.host.operation.conversion import in_float32, round_to
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection.peers import Peers
from netfold.testing import MemoryFabric, MemoryMesh
from netfold.topo.processes import allreduce_rank, reduction_data
from netfold.topo.processes.allreduce_rank import RankSetup
from support import needs
from support.sandboxes.topo import in_sandbox

COMMANDS: Final = get_command(app).commands["bench"].commands  # type: ignore[attr-defined]

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))



def test_sizes_go_from_begin_to_end_by_the_factor() -> None:
    """Options mean the same as -b, -e and -f of nccl-tests."""
    assert AllreduceOptions().sizes == (1 << 20, 4 << 20, 16 << 20)
    assert AllreduceOptions(begin="100", end="2k", factor=5).sizes == (100, 500)


@pytest.mark.parametrize(("given", "sizes"), [
    ({"factor": None}, (1024, 4096)), ({"factor": None, "increment": "1536"}, (1024, 2560, 4096)),
    ({"factor": 1, "increment": "3K"}, (1024, 4096)), ({"factor": 2, "increment": "3K"}, (1024, 2048, 4096)),
    ({"factor": None, "increment": "1001", "datatype": "double"}, (1024, 2024, 3024, 4024)),
])
def test_sizes_go_up_by_an_increment_where_no_factor_is_given(given: dict[str, Any], sizes: tuple[int, ...]) -> None:
    """-i means the same as nccl-tests': a factor above 1 goes before it; sizes are whole elements."""
    assert AllreduceOptions(begin="1K", end="4K", **given).sizes == sizes


@pytest.mark.parametrize(("option", "value", "says"), [
    ("begin", "x", "-b x: expected 4 bytes or more"),
    ("end", "4", "the end not below the beginning"),
    ("factor", 1, "-f 1: expected 2 or more"),
    ("increment", "2", "-i 2: expected 4 bytes or more"),
    ("datatype", "float32", "-d float32: expected one of float, half, bfloat16, double, int32, int64, uint8"),
    ("operation", "average", "-o average: expected one of sum, prod, min, max, avg"),
    ("ranks", 1, "--ranks 1: expected 2 or more"),
    ("topo", "leafspine,2", "--topo leafspine,2: unknown topology"),
    ("topo", "dual,leafspine,2,2,4", "--topo dual,leafspine,2,2,4: expected a fabric of one plane"),
    ("rate", "fast", "--rate fast: expected a rate"),
    ("switch", "ovs", "--switch ovs: expected one of softswitch, bmv2"),
    ("loss", 1.0, "--loss 1: expected 0 or more, and less than 1"),
    ("rounds", 0, "--rounds 0: expected 1 or more"),
    ("timeout", 0.0, "--timeout 0: expected more than 0, and a finite number"),
    ("ranks_per_host", 0, "--ranks-per-host 0: expected 1 or more"),
    ("lane_bits", 24, "--lane-bits 24: expected one of 32, 16, 8"),
    ("path_mtu", 1500, "--path-mtu 1500: expected one of 1024, 4096"),
    ("algorithms", "innet,rign", "--algorithms rign: expected some of innet, "),
    ("algorithms", "innet@bridge", "--algorithms innet@bridge: expected some of "),
    ("algorithms", ",", "expected at least one"),
])
def test_words_that_cannot_be_are_refused_by_name(option: str, value: object, says: str) -> None:
    """An option with a wrong value is refused, by its name, before anything is started."""
    with pytest.raises(ValueError, match=says):
        AllreduceOptions(**{option: value})


def test_what_programs_alone_set_is_no_option() -> None:
    """The command has the structure's options, its own first, and no more."""
    names = [option.name for option in COMMANDS["allreduce"].params]
    assert names[:2] == ["begin", "end"]
    assert names[-2:] == ["rounds", "rows"]
    assert not {"credits", "sizes"} & {*names}


def test_ranks_and_the_fabric_follow_from_each_other() -> None:
    """Ranks alone have a host each on two leaves and two spines; another fabric has as many ranks as hosts."""
    assert AllreduceOptions(ranks=8).topo == "leafspine,2,2,8"
    mesh = AllreduceOptions(topo="mesh,2,4", loss=0.5, path_mtu=1024)
    assert (mesh.ranks, mesh.fabric().path_mtu, mesh.fabric().links[0].loss) == (8, 1024, 0.5)
    with pytest.raises(ValueError, match="--ranks 4: expected as many as mesh,2,4 has hosts: 8"):
        AllreduceOptions(topo="mesh,2,4", ranks=4)
    shared = AllreduceOptions(ranks=8, ranks_per_host=2)
    assert (shared.topo, len(shared.fabric().hosts)) == ("leafspine,2,2,4", 4)
    assert AllreduceOptions(topo="mesh,2,4", ranks_per_host=2).ranks == 16


@pytest.mark.parametrize(("datatype", "operation", "says"), [
    ("int32", "avg", "-d int32 -o avg: .*an average of integers is no integer"),
    ("float", "max", "--lane-bits 16: expected 32 for -d float -o max"),
    ("int32", "sum", "--lane-bits 16: expected 32 for -d int32 -o sum"),
])
def test_reductions_that_cannot_be_are_refused_by_name(datatype: str, operation: str, says: str) -> None:
    """What -d and -o do not allow together, or in narrow lanes, is refused before anything is started."""
    with pytest.raises(ValueError, match=says):
        AllreduceOptions(datatype=datatype, operation=operation, lane_bits=16)


@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("op", ["sum", "product", "min", "max", "average"])
def test_reductions_of_all_types_are_checked(op: Any, element: str) -> None:
    """The library's own reduction over messages is right by the check of each type, and a changed one is wrong."""
    if op == "average" and "int" in element:
        return
    kind, world = Reduction(op, element), 5

    def mine(mesh: MemoryMesh) -> np.ndarray[Any, Any]:
        source = reduction_data.data(3, mesh.rank, 500, kind)
        out = np.empty_like(source)
        request = AllreduceRequest(source, out, kind)
        carried = in_float32(request) if kind.half else request
        Peers(mesh, algorithm="ring").allreduce(carried)
        if carried is not request:
            round_to(request, carried.out)
        return out

    for out in MemoryFabric(world).run(mine):
        assert reduction_data.count_wrong(out, world, 3, kind) == 0
        out[7] = out[8] = 0x4300 if element == "bfloat16" else 128  # the former's bits are 128
        assert reduction_data.count_wrong(out, world, 3, kind) == 2


def test_a_line_is_read_as_nccl_tests_own() -> None:
    """A line begins with nccl-tests' columns: size, count, type, redop, root, time, algbw, busbw and #wrong."""
    spec = AllreduceOptions(datatype="half", operation="avg", algorithms="innet")
    timing = allreduce_rank.Timing(2e-3, 0.0, 0, 3, "", 0.5, True)
    row = allreduce.row_of(spec, "innet", 1 << 20, [AllreduceTurn([timing] * 4, 0.0, 0.0)])
    assert allreduce.line_of(row, [row]).split()[:10] == [
        "1048576", "524288", "half", "avg", "-1", "2000.0", "0.524", "0.786", "12", "innet"]
    assert row.link_fraction == pytest.approx(2 * (1 << 20) * 8 / 2e-3 / 1e9)  # lanes are as wide as float32


def test_the_link_is_charged_what_an_algorithm_must_move() -> None:
    """A link must carry M where switches fold, less in narrow lanes, and 2 (N-1)/N M otherwise."""
    assert allreduce.least_bytes("innet", 8, 800, 32) == 800
    assert allreduce.least_bytes("innet", 8, 800, 16) == 400
    assert allreduce.least_bytes("gloo", 8, 800, 16) == 1400


def test_a_ring_of_machines_is_charged_for_machines() -> None:
    """Of 100 kB, 8 ranks on 4 hosts must move 1.5 times as many bytes between hosts by "hierarchical", 1.75 by ring."""
    timing = allreduce_rank.Timing(1e-3, 0.0, 0, 0, "", 0.5, False)
    options = AllreduceOptions(ranks=8, ranks_per_host=2, algorithms="ring,hierarchical")
    fractions = [allreduce.row_of(options, name, 100_000, [AllreduceTurn([timing] * 8, 0.0, 0.0)]).link_fraction
                 for name in options.ways]
    assert fractions == [pytest.approx(1.4), pytest.approx(1.2)]


@pytest.mark.parametrize(("topo", "parts"), [
    ("leafspine,2,1,4", (0.8, 1.2)), ("leafspine,2,1,4,uplinks=1000mbit", (0.8, 1.2)),
    ("leafspine,2,1,4,uplinks=100mbit", (0.0, 1.2)), ("threetier,2,1,1,1,4", (0.8, 1.2)), ("mesh,2,2", (0.0, 1.2)),
])
def test_links_are_the_limit_where_all_have_one_rate(topo: str, parts: tuple[float, float]) -> None:
    """No part of a link's rate is told where links differ: the slow ones may be the limit; the bridge has one rate."""
    options = AllreduceOptions(topo=topo, rate="1gbit", algorithms="innet,ring@bridge")
    turns = [AllreduceTurn([allreduce_rank.Timing(1e-3, 0.0, 0, 0, "", 0.5, folded)] * 4, 0.0, 0.0)
             for folded in (True, False)]
    rows = [allreduce.row_of(options, name, 100_000, [turn]) for name, turn in zip(options.ways, turns, strict=True)]
    assert [row.link_fraction for row in rows] == pytest.approx(parts)
    assert [row.limited_by for row in rows] == ["link" if part > 0.9 else "neither" for part in parts]


@pytest.mark.parametrize(("folded", "part"), [(True, 0.8), (False, 1.2)])
def test_what_the_chooser_took_decides_what_the_link_must_carry(folded: bool, part: float) -> None:
    """100 kB of 4 ranks in a millisecond are 0.8 Gb/s where switches have folded them, and 1.2 where they have not."""
    spec = AllreduceOptions(ranks=4, rate="1gbit", algorithms="auto")
    timing = allreduce_rank.Timing(1e-3, 0.0, 0, 0, "", 0.5, folded)
    row = allreduce.row_of(spec, "auto", 100_000, [AllreduceTurn([timing] * 4, 0.0, 0.0)])
    assert row.link_fraction == pytest.approx(part)


@pytest.mark.parametrize(("name", "folded", "bits"), [
    ("innet", [True, True], 16), ("auto", [True, True], 16), ("auto", [False, False], 32), ("auto", [True, False], 32),
    ("ring", [False, False], 32),
])
def test_a_row_tells_the_lanes_of_what_switches_folded(name: str, folded: list[bool], bits: int) -> None:
    """Where the chooser took an algorithm between the hosts, in any round, the row has whole elements, as all such
    rows."""
    spec = AllreduceOptions(ranks=4, lane_bits=16, algorithms=name)
    rounds = [AllreduceTurn([allreduce_rank.Timing(1e-3, 0.0, 0, 0, "", 0.5, took)] * 4, 0.0, 0.0) for took in folded]
    assert allreduce.row_of(spec, name, 100_000, rounds).lane_bits == bits


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_wrong_sums_are_counted(bits: int) -> None:
    """Elements beyond the error bound of the lanes and NaN are wrong; sums within it are right."""
    parts = [reduction_data.data(5, number, 1000) for number in range(3)]
    out = np.sum(parts, axis=0, dtype=np.float32)
    assert reduction_data.count_wrong(out, 3, 5, lane_bits=bits) == 0
    out[10] += 2 * reduction_data.bound(3, bits, max(float(np.abs(part).max()) for part in parts))
    out[20] = np.nan
    assert reduction_data.count_wrong(out, 3, 5, lane_bits=bits) == 2


def test_what_folds_shares_a_communicator() -> None:
    """Folding by name and the chooser fold over the same trees; what goes between the hosts has a mesh of its own."""
    both = RankSetup(4, ["innet", "auto"])
    assert allreduce_rank.kind_of("auto", both) == allreduce_rank.kind_of("innet", both)
    beside = RankSetup(4, ["auto", "ring"])
    assert allreduce_rank.kind_of("auto", beside) != allreduce_rank.kind_of("ring", beside)
    assert allreduce_rank.kind_of("auto", RankSetup(4, ["auto"], controller=False)) == "plain"


@pytest.mark.parametrize(("algorithms", "needs_torch"), [(["gloo"], True), (["innet", "ring"], False)])
def test_ranks_of_gloo_share_one_import_of_torch(algorithms: list[str], needs_torch: bool) -> None:
    """Their program, and no other's, imports torch at its top: what is there a fork server imports for all ranks."""
    spec = importlib.util.find_spec(allreduce_rank.program(algorithms)[-1])
    assert spec is not None
    assert spec.origin is not None
    tops = [top for top in ast.parse(Path(spec.origin).read_text()).body if isinstance(top, ast.Import)]
    assert ("torch.distributed" in {alias.name for top in tops for alias in top.names}) == needs_torch


@pytest.mark.parametrize("there", [True, False])
def test_without_torch_all_but_gloo_is_measured_and_that_is_said(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gloo is left out, in words, where torch is not installed; what does not ask for it is measured as it is."""
    monkeypatch.setattr(allreduce, "find_spec", lambda name: object() if there else None)
    asked = AllreduceOptions(algorithms="innet,gloo,ring")
    assert allreduce.measurable(asked).ways == (("innet", "gloo", "ring") if there else ("innet", "ring"))
    assert ("torch is not installed (pip install torch): no figures of gloo" in capsys.readouterr().err) != there
    without = AllreduceOptions(algorithms="innet,ring")
    assert allreduce.measurable(without) == without
    assert not capsys.readouterr().err


def test_what_cannot_carry_the_reduction_is_left_out_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Algorithms that have no such reduction are left out, in words; where none is left, that is an error."""
    doubles = AllreduceOptions(algorithms="innet,ring", datatype="double")
    assert allreduce.measurable(doubles).ways == ("ring",)
    assert "switches do not fold a sum of float64: no figures of innet" in capsys.readouterr().err
    averages = AllreduceOptions(algorithms="innet,gloo", operation="avg")
    assert allreduce.measurable(averages).ways == ("innet",)
    assert "no figures" in capsys.readouterr().err
    shared = AllreduceOptions(algorithms="roce,ring", ranks_per_host=2)
    assert allreduce.measurable(shared).ways == ("ring",)
    assert "need an address for each rank: no figures of roce" in capsys.readouterr().err
    with pytest.raises(ValueError, match="none of them can be measured here"):
        allreduce.measurable(AllreduceOptions(algorithms="innet", operation="prod"))


@pytest.mark.timeout(150)
@pytest.mark.usefixtures("torch_in_forks")
@in_sandbox(timeout=140)
def test_a_small_run_measures_every_algorithm(tmp_path: Path) -> None:
    """Every algorithm has a row as documented, on the engine that it belongs to, with right sums."""
    names = ["innet", "roce", "ring", "ring@bridge", "gloo"]
    out = tmp_path / "rows.json"
    done = CliRunner().invoke(app, [
        "bench", "allreduce", "-b", "64K", "-e", "256K", "-n", "1", "--rounds", "1", "--ranks", "4", "--rate",
        "200mbit", "--algorithms", ",".join(names), "--rows", str(out),
    ])
    assert done.exit_code == 0, done.output
    without = needs.missing("torch") is not None
    assert ("torch is not installed (pip install torch): no figures of gloo" in done.stderr) == without
    if without:
        names.remove("gloo")
    rows = json.loads(out.read_text())
    assert [(row["algorithm"], row["nbytes"]) for row in rows] == [(n, b) for b in (65536, 262144) for n in names]
    for row in rows:
        assert row["engine"] == ("bridge" if "bridge" in row["algorithm"] or row["algorithm"] == "gloo"
                                 else "softswitch")
        assert row["wrong"] == 0
        assert row["ranks"] == 4
        assert 0 < row["seconds_best"] <= row["seconds"] <= row["seconds_worst"]
        assert row["algbw_bytes_per_s"] == pytest.approx(row["nbytes"] / row["seconds"])
        assert row["cpu_seconds"] > 0
        assert 0 <= row["machine_busy"] <= 1  # counted in ticks of 10 ms, and a small allreduce may end within one
        assert (row["switch_cpu_seconds"] > 0) == (row["engine"] == "softswitch")
    assert "fold in the network" in rows[0]["path"]
    assert len([line for line in done.stdout.splitlines() if not line.startswith("#")]) == len(rows)
