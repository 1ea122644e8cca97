# SPDX-License-Identifier: Apache-2.0
"""Recordings of our own form, PyTorch's execution traces, and Chakra's are read into one form, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.cli.timelines import merge
from netfold.host.tracing.timeline import Timeline
from netfold.sim.whatif import traces
from netfold.sim.whatif.chakra import nodes, recordings
from netfold.sim.whatif.program import Await, Compute, Issue, Operation, StepEnd, TraceError, program_of
from netfold.sim.whatif.pytorch import ENGINE, recording
from netfold.wire.training_trace import FORMAT, RankTrace, TracedCall, TracedEvent, TracedGroup, TracedStep, TracedWait
from support import needs

M = 1 << 20


def varint(value: int) -> bytes:
    """A number as protobuf has it."""
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def protobuf(graph: list[dict[str, Any]]) -> bytes:
    """A trace of Chakra in its binary form, with doubles and fixed numbers, which readers skip, in between."""
    attribute = {bool: 27, int: 9, str: 29}
    kinds = {"COMP_NODE": 4, "COMM_SEND_NODE": 5, "COMM_RECV_NODE": 6, "COMM_COLL_NODE": 7}
    messages = [field(1, "0.0.4")]
    for node in graph:
        messages.append(
            field(1, node["id"]) + field(2, "name") + field(3, kinds[node["type"]])
            + field(5, b"".join(map(varint, node.get("after", ())))) + field(7, node.get("micros", 0))
            + b"".join(field(10, field(1, name) + field(attribute[type(value)], int(value) if type(value) is bool
                                                        else value))
                       for name, value in node.get("attr", {}).items())
            + varint(20 << 3 | 1) + bytes(8) + varint(21 << 3 | 5) + bytes(4))
    return b"".join(varint(len(message)) + message for message in messages)


def jsonized(graph: list[dict[str, Any]]) -> bytes:
    """The same by chakra_jsonizer, whose numbers of 64 bits are strings, and which leaves out zeros."""
    values = {bool: "boolVal", int: "int64Val", str: "stringVal"}
    parts = [json.dumps({"version": "0.0.4"}, indent=2)]
    for node in graph:
        parts.append(json.dumps({
            **({"id": str(node["id"])} if node["id"] else {}), "name": "name", "type": node["type"],
            "dataDeps": [str(one) for one in node.get("after", ())], "durationMicros": str(node.get("micros", 0)),
            "attr": [{"name": name, values[type(value)]: value if type(value) is bool else str(value)}
                     for name, value in node.get("attr", {}).items()]}, indent=2))
    return "".join(parts).encode()


GRAPH: list[dict[str, Any]] = [
    {"id": 0, "type": "COMP_NODE", "micros": 1000, "attr": {"is_cpu_op": False}},
    {"id": 1, "type": "COMM_COLL_NODE", "after": [0], "attr": {"comm_type": 0, "comm_size": M, "pg_name": "0"}},
    {"id": 2, "type": "COMP_NODE", "after": [0], "micros": 2000, "attr": {"is_cpu_op": False}},
    {"id": 3, "type": "COMP_NODE", "after": [1, 2], "micros": 999, "attr": {"is_cpu_op": True}},
    {"id": 4, "type": "COMP_NODE", "after": [3], "micros": 3000, "attr": {"is_cpu_op": False}},
    {"id": 5, "type": "COMM_COLL_NODE", "after": [4], "attr": {"comm_type": 2, "comm_size": M, "pg_name": "0"}},
]
"""An allreduce beside computing, what needs both, through a node of the processor, and an all-gather at the end."""


@pytest.mark.parametrize("form", [protobuf, jsonized])
def test_a_graph_of_chakra_computes_calls_and_waits_for_what_it_depends_on(form: Any, tmp_path: Path) -> None:
    """Both forms: the accelerator's time counts, the processor's does not, and dependencies through it are kept."""
    for rank in range(2):
        (tmp_path / f"trace.{rank}.et").write_bytes(form(GRAPH))
    program = program_of(traces.read([tmp_path]))
    assert program.operations == (Operation("all_reduce", (0, 1), M, "float32"),
                                  Operation("all_gather", (0, 1), 2 * M, "float32"))
    assert program.ranks[0] == program.ranks[1]
    seconds = [round(action.seconds, 9) if isinstance(action, Compute) else action for action in program.ranks[0]]
    assert seconds == [StepEnd(), 0.001, Issue(0), 0.002, Await(0), 0.003, Issue(1), Await(1), StepEnd()]


def test_one_trace_of_chakra_stands_for_so_many_ranks() -> None:
    """As --ranks says; without an accelerator's nodes those of the processor count."""
    graph = [{**node, "attr": {**node["attr"], "is_cpu_op": True}} for node in GRAPH]
    program = program_of(recordings([nodes(protobuf(graph))], 4))
    assert program.operations[0].members == (0, 1, 2, 3)
    assert sum(action.seconds for action in program.ranks[3] if isinstance(action, Compute)) == pytest.approx(0.006999)


@pytest.mark.parametrize(("graphs", "recorded"), [(0, 1), (2, 0), (1, 1)])
def test_a_number_of_ranks_goes_with_one_trace_of_chakra_alone(graphs: int, recorded: int, tmp_path: Path) -> None:
    """All other recordings say how many there are, and a number beside them would have no effect."""
    for number in range(graphs):
        (tmp_path / f"trace.{number}.et").write_bytes(protobuf(GRAPH))
    for rank in range(recorded):
        (tmp_path / f"t.rank{rank}.json").write_bytes(msgspec.json.encode(
            RankTrace(FORMAT, rank, 2, "gloo", [TracedGroup("0", (0, 1))], [TracedStep(0, 0)])))
    with pytest.raises(TraceError, match=f"--ranks 4: .* one .* of Chakra, got {graphs} of these and {recorded}"):
        traces.read([tmp_path], 4)


def test_messages_and_groups_of_chakra_have_the_ranks_that_name_them() -> None:
    """A group has those in whose traces its name stands; a message goes to the rank that it names."""
    pair = {"id": 1, "type": "COMM_COLL_NODE", "attr": {"comm_type": 0, "comm_size": 8, "pg_name": "pair"}}
    send = {"id": 2, "type": "COMM_SEND_NODE", "attr": {"comm_size": 5, "comm_dst": 2}}
    receive = {"id": 2, "type": "COMM_RECV_NODE", "attr": {"comm_size": 5, "comm_src": 0}}
    program = program_of(recordings([nodes(jsonized(graph)) for graph in
                                     ([pair, send], [{**pair, "id": 9}], [receive])], None))
    assert {operation.members for operation in program.operations if operation.kind == "all_reduce"} == {(0, 1)}
    assert {operation.members for operation in program.operations if operation.kind == "send"} == {(0, 2)}


@pytest.mark.parametrize(("data", "why"), [
    (b"\x05abc", "a message of 5 bytes"), (b"\xff" * 11, "more than 64 bits"), (b"", "0 nodes"),
    (protobuf([*GRAPH, GRAPH[0]]), "7 nodes, 6 different"), (b'{"id": [}', "JSONDecodeError"),
    (b'{"id": 1, "type": {}}', "TypeError"), (varint(1) + b"\x00" + varint(2) + b"\x0f\x00", "KeyError")])
def test_damaged_graphs_are_refused(data: bytes, why: str, tmp_path: Path) -> None:
    """With the file, and what is wrong with it."""
    (tmp_path / "trace.0.et").write_bytes(data)
    with pytest.raises(TraceError, match=rf"trace\.0\.et: .*{why}"):
        traces.read([tmp_path])


def test_graphs_that_make_no_sense_are_refused() -> None:
    """A circle, an unknown collective, a message to nobody."""
    for node, why in (({"id": 1, "type": "COMP_NODE", "after": [1]}, "wait for each other"),
                      ({"id": 1, "type": "COMM_COLL_NODE", "attr": {"comm_type": 77}}, "collective of type 77"),
                      ({"id": 1, "type": "COMM_SEND_NODE", "attr": {"comm_dst": 7}}, "to or from rank 7")):
        with pytest.raises(TraceError, match=why):
            recordings([nodes(protobuf([node]))], 2)


def test_any_byte_of_a_binary_trace_may_be_wrong() -> None:
    """A trace with one byte changed is read, or refused as damaged; nothing else happens."""
    whole, refused = protobuf(GRAPH), 0
    for place in range(len(whole)):
        for flip in (1, 128, 255):
            data = whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1:]
            try:
                program_of(recordings([nodes(data)], 2))
            except TraceError:
                refused += 1
            except msgspec.ValidationError as error:
                raise AssertionError(f"byte {place} ^ {flip}: {error}") from error
    assert 100 < refused < 3 * len(whole)


def test_a_recording_is_found_by_its_name_its_files_or_their_folder(tmp_path: Path) -> None:
    """And what is no recording, or none at all, is refused with its name."""
    steps: list[TracedEvent] = [
        TracedStep(0, 0), TracedCall(0.1, 0.1, 1, "barrier", 0, 0, "", False), TracedStep(0.5, 0.5)]
    for rank in range(2):
        (tmp_path / f"t.rank{rank}.json").write_bytes(msgspec.json.encode(
            RankTrace(FORMAT, rank, 2, "gloo", [TracedGroup("0", (0, 1))], steps)))
    by_name = traces.read([tmp_path / "t.json"])
    assert [trace.rank for trace in by_name] == [0, 1]
    assert traces.seconds_of_a_step(by_name) == pytest.approx(0.5)
    assert by_name == traces.read([tmp_path]) == traces.read([tmp_path / f"t.rank{rank}.json" for rank in range(2)])
    (tmp_path / "t.rank1.json").write_text(f'{{"format": "{FORMAT}", "rank": -1}}')
    with pytest.raises(TraceError, match=r"t\.rank1\.json: .*rank"):
        traces.read([tmp_path])
    with pytest.raises(FileNotFoundError):
        traces.read([tmp_path / "none.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(TraceError, match="0 files"):
        traces.read([tmp_path / "empty"])


def test_timelines_beside_recordings_are_left_out_and_named(tmp_path: Path) -> None:
    """Those of ranks and a merged one, in a folder or among files; alone they are no recordings, and no profiles."""
    step = RankTrace(FORMAT, 0, 1, "gloo", [], [TracedStep(0, 0), TracedStep(1, 1)])
    (tmp_path / "trace.rank0.json").write_bytes(msgspec.json.encode(step))
    lines = [tmp_path / f"trace.run.rank{rank}.json" for rank in range(4)]
    for rank, path in enumerate(lines):
        timeline = Timeline("run", rank, 4, path)
        timeline.add("operations", "allreduce", 0, 1)
        timeline.write()
    lines.insert(0, tmp_path / "all.json")
    lines[0].write_bytes(msgspec.json.encode(merge(lines[1:])))
    for given in ([tmp_path], [tmp_path / "trace.rank0.json", *lines]):
        said: list[str] = []
        assert traces.read(given, say=said.append) == [step]
        assert said == [f"left out {', '.join(map(str, lines[:4]))} and 1 more: timelines (NETFOLD_TIMELINE)"]
    with pytest.raises(TraceError, match=r"all\.json: timelines \(NETFOLD_TIMELINE\), which do not say what a program"):
        traces.read(lines[:1])


@pytest.fixture
def group() -> Iterator[None]:
    """A gloo group of one rank."""
    dist = pytest.importorskip("torch.distributed", reason=needs.reason("torch"))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_pytorchs_execution_trace_is_read_with_its_profile(group: None, tmp_path: Path) -> None:
    """What torch itself writes of two steps of DistributedDataParallel and an allreduce: kinds, bytes, and waits."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

    model = DistributedDataParallel(torch.nn.Linear(64, 64, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "et0.json"))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        dist.all_reduce(torch.ones(10, dtype=torch.float64))
        optimizer.step()

    for _ in range(2):  # after the first one torch makes its buckets anew
        step()
    with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer, record_shapes=True) as profiler:
        for _ in range(3):
            step()
    profiler.export_chrome_trace(str(tmp_path / "kineto0.json"))
    (trace,) = traces.read([tmp_path])
    calls = [(event.kind, event.nbytes, event.dtype, event.asynchronous) for event in trace.events
             if isinstance(event, TracedCall)]
    assert calls == [("all_reduce", 64 * 64 * 4, "float32", True), ("all_reduce", 80, "float64", False)] * 2
    kinds = [type(event) for event in trace.events]
    assert kinds == [TracedStep, *[TracedCall, TracedWait, TracedCall, TracedWait, TracedStep] * 2]
    assert (trace.rank, trace.world, trace.backend) == (0, 1, "gloo")
    program = program_of([trace])
    assert 0 < sum(action.seconds for action in program.ranks[0] if isinstance(action, Compute)) <= (
        trace.events[-1].begin)
    (tmp_path / "kineto0.json").unlink()
    with pytest.raises(TraceError, match=r"expected both of each, since the former have no times"):
        traces.read([tmp_path])


def pytorch_trace(groups: list[dict[str, Any]], communication: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An execution trace of one asynchronous all-gather by NCCL and its profile, as torch writes them."""
    schema = ("c10d::_allgather_base_(Tensor output_tensor, Tensor input_tensor, __torch__.ProcessGroup process_group, "
              "bool async_op=True, int timeout=-1) -> (Tensor, __torch__.Work)")
    whole, mine = [1, 2, 0, 64, 2, "cuda:0"], [3, 4, 0, 32, 2, "cuda:0"]
    trace = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [
        {"id": 3, "name": "## process_group:init ##", "ctrl_deps": 2, "inputs": {"values": [json.dumps(groups)]},
         "attrs": []},
        {"id": 8, "name": "c10d::_allgather_base_", "ctrl_deps": 2, "inputs": {
            "values": [whole, mine, "<Object>", True, -1],
            "types": ["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)", "Object", "Bool", "Int"]},
         "attrs": [{"name": "rf_id", "value": 5}, {"name": "op_schema", "value": schema}]},
        {"id": 9, "name": "record_param_comms", "ctrl_deps": 8, "inputs": {"values": communication}, "attrs": []}]}
    spans = [("aten::mm", 1_000_000, 200_000, 1), ("c10d::_allgather_base_", 1_300_000, 10, 5),
             ("aten::mm", 1_400_000, 100_000, 6)]
    events = [{"ph": "X", "cat": "cpu_op", "pid": 7, "tid": 1, "name": name, "ts": begin, "dur": length,
               "args": {"Record function id": number}} for name, begin, length, number in spans]
    return trace, {"distributedInfo": {"rank": 1, "world_size": 4, "backend": "nccl"}, "traceEvents": events}


def test_nccls_calls_are_of_the_groups_that_its_nodes_name(tmp_path: Path) -> None:
    """By the name in record_param_comms; without one, several groups cannot be told apart."""
    groups: list[dict[str, Any]] = [{"pg_name": "0", "ranks": []}, {"pg_name": "7", "ranks": [1, 3]}]
    for communication, found in (([[1, 2, 0, 64, 2, "cuda:0"], 3, ["7", "shard"], 0, "_allgather_base"], (1, 3)),
                                 ([[1, 2, 0, 64, 2, "cuda:0"], 3, ["0", "default_pg"]], (0, 1, 2, 3)), ([], None)):
        for name, tree in zip(("et.json", "kineto.json"), pytorch_trace(groups, communication), strict=True):
            (tmp_path / name).write_text(json.dumps(tree))
        if found is None:
            with pytest.raises(TraceError, match="2 process groups, which does not say whose a call is"):
                traces.read([tmp_path])
            continue
        (trace,) = traces.read([tmp_path])
        (call,) = (event for event in trace.events if isinstance(event, TracedCall))
        assert (call.kind, call.nbytes, call.dtype, call.asynchronous) == ("all_gather", 128, "bfloat16", True)
        assert trace.groups[call.group].ranks == found
        assert trace.events[-1].begin == pytest.approx(0.5)


def test_processes_of_one_number_are_told_apart_by_the_order_of_their_files(tmp_path: Path) -> None:
    """In containers each rank may be process 1: no recording is lost, and names in another order than that of ranks, a
    profile too few, or two of one rank are refused with the files."""
    def write(rank: int, name: int) -> None:
        trace, profile = pytorch_trace([{"pg_name": "0", "ranks": []}], [])
        trace["nodes"][1]["inputs"]["values"][0][3] = 64 + rank
        profile["distributedInfo"]["rank"] = rank
        (tmp_path / f"et{rank}.json").write_text(json.dumps(trace))
        (tmp_path / f"kineto{name}.json").write_text(json.dumps(profile))

    for rank in range(11):
        write(rank, rank)
    read = traces.read([tmp_path])
    calls = [event for trace in read for event in trace.events if isinstance(event, TracedCall)]
    assert [(trace.rank, call.nbytes) for trace, call in zip(read, calls, strict=True)] == [
        (rank, 2 * (64 + rank)) for rank in range(11)]
    (tmp_path / "kineto10.json").unlink()
    with pytest.raises(TraceError, match=r"et10\.json, .*: 11 execution traces and 10 profiles of process 7"):
        traces.read([tmp_path])
    write(9, 10)
    write(10, 9)
    with pytest.raises(TraceError, match=r"et9\.json, .*kineto10\.json: .*of ranks \[0, .*8, 10, 9\]"):
        traces.read([tmp_path])
    for name in (9, 10):
        write(9, name)
    with pytest.raises(TraceError, match=r"of ranks \[0, .*8, 9, 9\]"):
        traces.read([tmp_path])


class Counted(str):
    """A text that counts the characters that are copied out of it, and the questions how it begins."""

    copied = asked = 0

    def __getitem__(self, key: Any) -> str:
        Counted.copied += len(found := super().__getitem__(key))
        return found

    def rstrip(self, *given: Any) -> str:
        Counted.copied += len(found := super().rstrip(*given))
        return found

    def startswith(self, *given: Any) -> bool:
        Counted.asked += 1
        return super().startswith(*given)


def test_a_node_of_chakra_is_read_without_a_copy_of_what_follows() -> None:
    """So that the work grows as the file, not as its square: blanks before, between and behind nodes are passed over
    where they stand."""
    class Data(bytes):
        def decode(self, *given: Any) -> str:
            return Counted(super().decode(*given))

    Counted.copied = 0
    graph = [{"id": number, "type": "COMP_NODE"} for number in range(100)]
    data = Data(b"\n " + jsonized(graph).replace(b"}{", b"} \r\n{") + b"\n\n")
    assert [node.number for node in nodes(data)] == [*range(100)]
    assert Counted.copied <= len(data)


def test_a_call_of_pytorch_is_read_without_a_look_at_all_operators() -> None:
    """Each of 60 asynchronous calls is waited for from the end of its own step's backward pass on, and each operator is
    asked a few times what it is, however many calls there are."""
    Counted.asked = 0
    trace, profile = pytorch_trace([{"pg_name": "0", "ranks": []}], [])
    call = trace["nodes"].pop(1)
    profile["traceEvents"] = []
    for step in range(21):
        spans = [("c10d::_allgather_base_", 1, 1)] * 3 + [(f"{ENGINE}: one", 3, 2), (f"{ENGINE}: two", 6, 2)]
        for name, begin, length in [*spans, ("aten::mm", 8, 1), ("Optimizer.step#SGD.step", 9, 1)]:
            number = len(profile["traceEvents"])
            profile["traceEvents"].append({
                "ph": "X", "cat": "cpu_op", "pid": 7, "tid": 1, "name": Counted(name), "ts": (10 * step + begin) * 1e6,
                "dur": length * 1e6, "args": {"Record function id": number}})
            trace["nodes"] += [{**call, "attrs": [{"name": "rf_id", "value": number}, call["attrs"][1]]}] * (
                name == spans[0][0])
    waits = [event for event in recording(trace, profile).events if isinstance(event, TracedWait)]
    assert [wait.begin for wait in waits] == [10.0 * step + 8 for step in range(20) for _ in range(3)]
    assert Counted.asked <= 3 * len(profile["traceEvents"])


@pytest.mark.parametrize("part", ["distributedInfo", "traceEvents", "nodes"])
def test_what_an_execution_trace_lacks_is_told(part: str, tmp_path: Path) -> None:
    """As what torch writes, without record_shapes or without process groups."""
    trees = pytorch_trace([{"pg_name": "0", "ranks": []}], [])
    for tree in trees:
        if part in tree:
            tree[part] = [{"name": "c10d::barrier", "pid": 7, "cat": "cpu_op"}] if part != "distributedInfo" else {}
    for name, tree in zip(("et.json", "kineto.json"), trees, strict=True):
        (tmp_path / name).write_text(json.dumps(tree))
    with pytest.raises(TraceError, match=r"an execution trace of PyTorch and its profile|has no operators"):
        traces.read([tmp_path])
