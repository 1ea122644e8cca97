# SPDX-License-Identifier: Apache-2.0
"""Reads Chakra's execution traces (mlcommons/chakra, schema/protobuf/et_def.proto) as recordings.

There are two forms: protobuf messages with their lengths before them, and the JSON objects that chakra_jsonizer makes
of these, one after another.

A trace is a graph of one rank's nodes.  Here its computing runs in an order that the graph allows, lowest number first,
and waits for the collectives that it depends on.  If nodes of an accelerator compute, those of the processor count for
nothing, since they run ahead of it.  The whole trace is one step.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netfold.sim.whatif.program import TraceError
from netfold.wire.training_trace import (
    FORMAT,
    Kind,
    RankTrace,
    TracedCall,
    TracedEvent,
    TracedGroup,
    TracedStep,
    TracedWait,
)

COMPUTING, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes."""
TYPES: Final = {"COMP_NODE": COMPUTING, "COMM_SEND_NODE": SEND, "COMM_RECV_NODE": RECEIVE, "COMM_COLL_NODE": COLLECTIVE}
KINDS: Final[Mapping[int, Kind]] = {0: "all_reduce", 1: "reduce", 2: "all_gather", 3: "gather", 4: "scatter",
                                    5: "broadcast", 6: "all_to_all", 7: "reduce_scatter", 8: "reduce_scatter",
                                    9: "barrier"}
_NOT_BLANK: Final = re.compile(r"\S")
DTYPE: Final = "float32"
"""The traces have no dtypes."""


@dataclass(frozen=True)
class ChakraNode:
    """A node of a trace; ``after`` are the numbers of those that it depends on."""

    number: int
    kind: int
    seconds: float
    after: tuple[int, ...]
    attributes: Mapping[str, Any]


def nodes(data: bytes) -> list[ChakraNode]:
    """The nodes of a file of either form.  Raises TraceError."""
    try:
        found = [*(_of_json(data) if data.lstrip()[:1] == b"{" else _of_protobuf(data))]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise TraceError(f"a trace of Chakra: {type(error).__name__} {error}: expected messages of et_def.proto with "
                         "their lengths, or chakra_jsonizer's JSON") from error
    if not found or len({node.number for node in found}) != len(found):
        raise TraceError(f"a trace of Chakra with {len(found)} nodes, {len({node.number for node in found})} "
                         "different: expected one or more, each once")
    return found


def recordings(files: Sequence[Sequence[ChakraNode]], ranks: int | None) -> list[RankTrace]:
    """The recordings of all ranks, in order, or of one where ``ranks`` says how many there are.

    A group has the ranks in whose traces its name stands; without a name, all.
    """
    world = ranks or len(files)
    users: dict[str, list[int]] = {}
    for rank, file in enumerate(files):
        for name in dict.fromkeys(_group(node) for node in file if node.kind >= SEND):
            users.setdefault(name, []).append(rank)
    alone = len(files) == 1
    return [_recording(file, rank, world, {name: TracedGroup(name, tuple(range(world) if alone or not name else who))
                                           for name, who in users.items()})
            for rank, file in enumerate(files)]


def _recording(file: Sequence[ChakraNode], rank: int, world: int, groups: Mapping[str, TracedGroup]) -> RankTrace:
    known = {node.number: node for node in file}
    device = any(node.kind == COMPUTING and node.attributes.get("is_cpu_op") is False for node in file)
    events: list[TracedEvent] = [TracedStep(0, 0)]
    names = [name for name in groups if rank in groups[name].ranks]
    pending: dict[int, frozenset[int]] = {}  # node -> the calls that who depends on it has to wait for
    waited: set[int] = set()
    now = 0.0
    for node in _ordered(known):
        calls = frozenset().union(*(pending[before] for before in node.after if before in pending))
        counts = node.kind == COMPUTING and not (device and node.attributes.get("is_cpu_op") is True)
        if node.kind in (SEND, RECEIVE, COLLECTIVE) or (counts and node.seconds):
            events += [TracedWait(now, now, number) for number in sorted(calls - waited)]
            waited |= calls
            calls = frozenset()
        if node.kind in (SEND, RECEIVE, COLLECTIVE):
            group = groups[_group(node)]
            kind, nbytes, peer = _call(node, group)
            events.append(TracedCall(now, now, node.number, kind, names.index(group.name), nbytes, DTYPE, True, peer))
            calls = frozenset([node.number])
        elif counts:
            now += node.seconds
        pending[node.number] = calls
    left = [event.number for event in events if isinstance(event, TracedCall) and event.number not in waited]
    events += [TracedWait(now, now, number) for number in left]
    return RankTrace(FORMAT, rank, world, "", [groups[name] for name in names], [*events, TracedStep(now, now)])


def _ordered(known: Mapping[int, ChakraNode]) -> Iterator[ChakraNode]:
    """The nodes, each after those that it depends on, lowest number first.  Raises TraceError for a circle."""
    left = {number: sum(before in known for before in set(node.after)) for number, node in known.items()}
    behind: dict[int, list[int]] = {}
    for number, node in known.items():
        for before in set(node.after):
            behind.setdefault(before, []).append(number)
    ready = [number for number, count in left.items() if not count]
    heapq.heapify(ready)
    done = 0
    while ready:
        number = heapq.heappop(ready)
        done += 1
        yield known[number]
        for follower in behind.get(number, ()):
            left[follower] -= 1
            if not left[follower]:
                heapq.heappush(ready, follower)
    if done < len(known):
        raise TraceError(f"a trace of Chakra in which {len(known) - done} nodes wait for each other: expected a graph "
                         "without circles")


def _call(node: ChakraNode, group: TracedGroup) -> tuple[Kind, int, int]:
    """The call of a node, the bytes of the whole buffer, and the root or peer.  ``comm_size`` is one rank's input."""
    size, number = int(node.attributes.get("comm_size", 0)), len(group.ranks)
    if node.kind != COLLECTIVE:
        other = int(node.attributes.get("comm_dst" if node.kind == SEND else "comm_src", -1))
        if other not in group.ranks:
            raise TraceError(f"node {node.number}: a message to or from rank {other}: expected one of "
                             f"{list(group.ranks)[:8]}")
        return "send" if node.kind == SEND else "recv", size, group.ranks.index(other)
    asked = int(node.attributes.get("comm_type", -1))
    if asked not in KINDS or size < 0:
        raise TraceError(f"node {node.number}: a collective of type {asked}, {size} bytes: expected {min(KINDS)} to "
                         f"{max(KINDS)}, and 0 or more")
    kind = KINDS[asked]
    root = int(node.attributes.get("root_rank", group.ranks[0]))
    return kind, size * (number if kind in ("all_gather", "gather") else 1), (
        group.ranks.index(root) if root in group.ranks else 0)


def _group(node: ChakraNode) -> str:
    return str(node.attributes.get("pg_name", ""))[:255]


# ---- forms ---------------------------------------------------------------------------------------------------------
def _of_json(data: bytes) -> Iterator[ChakraNode]:
    text, at, decoder = data.decode(), 0, json.JSONDecoder()
    while begin := _NOT_BLANK.search(text, at):
        one, at = decoder.raw_decode(text, begin.start())
        if "id" in one or "type" in one or "name" in one:  # the first has the version alone
            kind = one.get("type", 0)
            yield ChakraNode(
                int(one.get("id", 0)), TYPES.get(kind, 0) if isinstance(kind, str) else int(kind),
                float(one.get("durationMicros", 0)) / 1e6,
                tuple(map(int, [*one.get("dataDeps", ()), *one.get("ctrlDeps", ())])),
                {each["name"]: next((value for key, value in each.items() if key.endswith("Val")), None)
                 for each in one.get("attr", ())})


def _of_protobuf(data: bytes) -> Iterator[ChakraNode]:
    at, first = 0, True
    while at < len(data):
        length, at = _varint(data, at)
        if at + length > len(data):
            raise ValueError(f"a message of {length} bytes at byte {at} of {len(data)}")
        if not first:
            yield _node(data[at:at + length])
        first = False  # GlobalMetadata
        at += length


def _node(data: bytes) -> ChakraNode:
    number = kind = micros = 0
    after: list[int] = []
    attributes: dict[str, Any] = {}
    for field, value in _fields(data):
        if field in (4, 5):  # ctrl_deps and data_deps, packed or one by one
            after += _packed(value) if isinstance(value, bytes) else [value]
        elif field == 10 and isinstance(value, bytes):
            name = ""
            found: Any = None
            for inner, each in _fields(value):
                if inner == 1:
                    name = each.decode() if isinstance(each, bytes) else ""
                elif inner in (7, 9, 11, 13):  # int32, int64, uint32, uint64
                    found = each
                elif inner == 27:
                    found = bool(each)
                elif inner == 29 and isinstance(each, bytes):
                    found = each.decode()
            attributes[name] = found
        elif isinstance(value, int):
            number, kind, micros = (value if field == 1 else number, value if field == 3 else kind,
                                    value if field == 7 else micros)
    return ChakraNode(number, kind, micros / 1e6, tuple(after), attributes)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers as they are, all else as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[kind]
        if at + length > len(data):
            raise ValueError(f"a field of {length} bytes at byte {at} of {len(data)}")
        yield tag >> 3, data[at:at + length]
        at += length


def _packed(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError(f"a number of more than 64 bits at byte {at}")
