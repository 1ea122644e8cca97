# SPDX-License-Identifier: Apache-2.0
"""The rail roce on loopback: collectives over real sockets, folding beside them, errors that name ranks."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import msgspec
import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.collectives import ALLREDUCE
from netfold.host.errors import CollectiveTimeout, PeerLost, PlanError, RankMismatch, TransportError
from netfold.host.innet.fold import FoldRail
from netfold.host.job_secret import draw
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.sockets import listen
from netfold.host.mesh.source_ports import SourcePorts
from netfold.host.native.sockets import bind_port
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.roce.endpoint import Connection, Endpoint
from netfold.host.roce.failover import PathFailover
from netfold.host.roce.mesh import RoceMesh
from netfold.host.roce.native import ANSWERED, STALLED, EndpointEvent
from netfold.host.roce.queue_pairs import CONNECTION_BIT, QueuePairs
from netfold.host.selection.peers import Peers
from netfold.testing import LoopbackSwitch, subnet
from netfold.wire import roce
from netfold.wire.jobs import MAX_WORLD
from netfold.wire.plan import Peer, Plan
from support.hosts.collectives import Awake, InStep, TcpRanks, expected, inputs, values
from support.hosts.roce_ranks import RoceRanks

SUM = Reduction("sum", "float32")
def lose(sock: socket.socket, share: float) -> None:
    """Lets the kernel drop a share of a socket's datagrams, before they are merged or queued."""
    instruction = struct.Struct("=HBBI")
    program = ctypes.create_string_buffer(
        instruction.pack(0x20, 0, 0, 0xFFFFF000 + 56)  # A = a random number (SKF_AD_RANDOM)
        + instruction.pack(0x35, 0, 1, int(share * 2**32))  # at or above: keep
        + instruction.pack(0x06, 0, 0, 0xFFFFFFFF)
        + instruction.pack(0x06, 0, 0, 0)
    )
    sock.setsockopt(socket.SOL_SOCKET, 26, struct.pack("@HP", 4, ctypes.addressof(program)))  # SO_ATTACH_FILTER


def receivers(ranks: RoceRanks) -> list[socket.socket]:
    """The meshes' sockets at port 4791."""
    found = []
    for mesh in ranks.roce:
        assert mesh.io is not None
        found.append(mesh.io.sockets[0])
    return found


def allreduce(name: str, sizes: Sequence[int], ranks: int) -> Callable[[Mesh], list[Any]]:
    """The work of every rank: one allreduce for each size."""

    def work(mesh: Mesh) -> list[Any]:
        peers = Peers(mesh, algorithm=name)
        outs = []
        for size in sizes:
            source = inputs(ranks, size, "float32", size)[mesh.rank]
            out = np.empty_like(source)
            peers.allreduce(AllreduceRequest(source, out, SUM))
            outs.append(out)
        return outs

    return work


def check_sums(results: Sequence[Any], sizes: Sequence[int]) -> None:
    """Checks every rank's sums against numpy's."""
    for outs in values(results):
        for size, out in zip(sizes, outs, strict=True):
            assert (out == expected(inputs(len(results), size, "float32", size), "sum", "float32")).all()


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
def test_allreduce_algorithms_run_over_queue_pairs(name: str) -> None:
    """Every algorithm sums tensors from nothing to many windows, on a number of ranks that is no power of two."""
    sizes = [0, 1, 255, 1000, 40_001, 300_000]
    with RoceRanks(3) as ranks:
        check_sums(ranks.run(allreduce(name, sizes, 3)), sizes)


@pytest.mark.parametrize("options", [{"queue_pairs": 4}, {"path_mtu": 4096}, {"window": 16, "path_mtu": 256}])
def test_messages_split_over_queue_pairs_and_other_packet_sizes(options: dict[str, int]) -> None:
    """A message arrives the same however it is split, and of several queue pairs each carries its part."""
    sizes = [100_003, 7, 50_000]
    with RoceRanks(4, **options) as ranks:
        check_sums(ranks.run(allreduce("ring", sizes, 4)), sizes)
        data = ranks.roce[0].queue_pair_states()[1][1:]
        assert len(data) == options.get("queue_pairs", 1)
        assert all(pair.acknowledged > 0 for pair in data)


def test_all_to_all_and_barriers_run_over_queue_pairs() -> None:
    """All ranks write to all others at once."""

    def work(mesh: Mesh) -> Any:
        peers = Peers(mesh)
        piece = 20_000
        given = [slice(piece * r, piece * (r + 1)) for r in range(mesh.size)]
        source = np.repeat(np.arange(mesh.size, dtype=np.int32) + 10 * mesh.rank, piece)
        out = np.empty_like(source)
        peers.all_to_all(source, given, out, given)
        peers.barrier()
        return out[::piece]

    with RoceRanks(5) as ranks:
        for rank, column in enumerate(values(ranks.run(work))):
            assert column.tolist() == [rank + 10 * other for other in range(5)]


def test_sums_are_exact_where_the_kernel_loses_packets() -> None:
    """With one datagram in fifty lost, whole super-packets and acknowledgements too, all ranks finish with exact sums,
    and close."""
    sizes = [100_000, 3, 30_000, 1, 200_000]
    with RoceRanks(3) as ranks:
        for sock in receivers(ranks):
            lose(sock, 0.02)
        repeated = 0
        while not repeated:  # the kernel draws which datagrams are lost, of some sums none
            check_sums(ranks.run(allreduce("ring", sizes, 3)), sizes)
            pairs = [pair for mesh in ranks.roce for ends in mesh.queue_pair_states().values() for pair in ends]
            repeated = sum(pair.retransmitted for pair in pairs)


def test_a_rank_that_computes_still_answers() -> None:
    """Rank 1 has received everything and makes no further call; its lost acknowledgement is sent again all the same."""
    with RoceRanks(2) as ranks:
        data, into = np.arange(1000, dtype=np.int32), np.zeros(1000, np.int32)

        def work(mesh: Mesh) -> None:
            with mesh.operation(Call(1, "a message")):
                if mesh.rank == 0:
                    lose(receivers(ranks)[0], 0.5)
                    mesh.send(1, data)
                else:
                    mesh.receive(0, into)

        values(ranks.run(work))
        assert (into == data).all()


def test_folding_and_queue_pairs_work_side_by_side_on_one_address() -> None:
    """Each has a UDP port of its own, operations of both take turns, and every sum is right."""
    with RoceRanks(2, udp_ports=[roce.UDP_PORTS[0], roce.UDP_PORTS[-1]]) as ranks, ExitStack() as stack:
        net = ranks.addresses[0].rpartition(".")[0]
        switch = LoopbackSwitch(f"{net}.200", ranks.addresses, slots=64)
        stack.callback(switch.close)
        folds = []
        for rank, mesh in enumerate(ranks.roce):
            plan = msgspec.structs.replace(mesh.operations.plan, trees=switch.trees(rank, slots=64))
            folds.append(FoldRail(plan, ranks.addresses[rank], receiver=bind_port(ranks.addresses[rank]), timeout=30))
            stack.callback(folds[-1].close)
        source = np.arange(20_000, dtype=np.int32)

        def fold(mesh: Mesh) -> Any:
            out = np.empty_like(source)
            folds[mesh.rank].allreduce(AllreduceRequest(source, out, Reduction("sum", "int32"), 1))
            return out

        check_sums(ranks.run(allreduce("ring", [50_000], 2)), [50_000])
        for out in values(ranks.run(fold)):
            assert (out == 2 * source).all()
        check_sums(ranks.run(allreduce("ring", [50_000], 2)), [50_000])


def test_two_jobs_send_over_the_same_paths_from_one_address() -> None:
    """Source ports name paths for all jobs of a host, of which each receives at a UDP port of its own: all sums are
    right, operations of both taking turns."""
    paths = [roce.PATH_PORT + number for number in range(1, 4)]
    with RoceRanks(2, queue_pairs=3, ports=paths) as one, ExitStack() as stack:
        ports = list(roce.UDP_PORTS[:2])
        other = stack.enter_context(
            RoceRanks(2, udp_ports=ports, addresses=one.addresses, queue_pairs=3, ports=paths)
        )
        for _ in range(2):
            for ranks in (one, other):
                check_sums(ranks.run(allreduce("ring", [50_000], 2)), [50_000])


def test_ranks_that_call_different_things_find_out() -> None:
    """Where sizes and operations differ, one rank sees both calls, and the other learns of it."""

    def work(mesh: Mesh) -> None:
        array = np.zeros(10 + mesh.rank, np.float32)
        with mesh.operation(Call(1, f"a message of {array.size}")):
            if mesh.rank:
                mesh.receive(0, array)
            else:
                mesh.send(1, array)

    with RoceRanks(2) as ranks:
        results = ranks.run(work)
    assert isinstance(results[0], RankMismatch), results
    assert "message of 11" in str(results[0])
    assert isinstance(results[1], PeerLost), results
    assert "rank 0 gave up: RankMismatch" in str(results[1])


def test_ranks_with_other_settings_find_out() -> None:
    """The first clear-to-send carries the numbers of queue pairs and the path MTU, which are compared."""
    with RoceRanks(2) as ranks:
        ranks.roce[1].queue_pairs = 2
        results = ranks.run(allreduce("ring", [1000], 2))
    assert any(isinstance(result, RankMismatch) and "queue_pairs=" in str(result) for result in results), results


def test_a_rank_that_never_calls_is_named() -> None:
    """All others give up after the timeout, and name the missing rank."""
    call, steps = allreduce("ring", [1000], 3), InStep([0, 1])

    def work(mesh: Mesh) -> Any:
        try:
            return call(mesh)
        finally:
            steps.end(mesh.rank)

    with RoceRanks(3, timeout=2.0, clock=steps.of) as ranks:
        results = ranks.run(work, only=[0, 1])
    for rank in (0, 1):
        assert isinstance(results[rank], CollectiveTimeout), results[rank]
        assert "rank 2 gone, stopped, or never called" in str(results[rank])


def test_packets_that_changed_are_named_by_a_warning_and_by_a_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """Five packets with a peer's address and queue pair and a wrong ICRC: nothing is taken of them, the log says where
    to look, and so does what ends an operation that lacks a rank."""
    with RoceRanks(2) as ranks, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        number = ranks.roce[0].pairs.number_of(1, 0)
        packet = roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY, number, 0) + bytes(100)
        peer.bind((ranks.addresses[1], 0))
        for _ in range(5):
            peer.sendto(packet, (ranks.addresses[0], roce.UDP_PORT))
        with caplog.at_level("WARNING", "netfold"):
            for _ in range(2):
                check_sums(ranks.run(allreduce("ring", [1000], 2)), [1000])
        ranks.roce[0].operations.timeout = 0.5
        waited = ranks.run(allreduce("ring", [1000], 2), only=[0])[0]
    assert "rank 0: 5 packets so far were dropped, and came again, since their ICRC is wrong" in caplog.text
    assert isinstance(waited, CollectiveTimeout)
    assert "5 packets came with a wrong ICRC, and were dropped" in str(waited)


@pytest.mark.parametrize("stay", [False, True])
def test_a_stalled_path_does_not_count_as_progress(stay: bool) -> None:
    """Where the network loses everything, the timeout counts from the last packet that came, whatever queue pairs
    report of their paths meanwhile; with ``stay`` they stay on their paths."""
    with RoceRanks(2, queue_pairs=2, stay=stay, clock=lambda rank: Awake()) as ranks:
        check_sums(ranks.run(allreduce("ring", [1000], 2)), [1000])
        for mesh in ranks.roce:
            mesh.operations.timeout = 1.0
        for sock in receivers(ranks):
            lose(sock, 1 - 2**-32)
        results = ranks.run(allreduce("ring", [1000], 2), timeout=60)
        left = [port for mesh in ranks.roce for port in mesh.ports if mesh.source_ports.is_suspect(1 - mesh.rank, port)]
    for result in results:
        assert isinstance(result, CollectiveTimeout), results
    assert stay == (not left)


def test_a_path_that_answers_after_all_does_not_count_as_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told of a path is no byte that anybody waits for: an answer of a path that was blamed puts the timeout
    off no more than the blame did."""
    with RoceRanks(2, queue_pairs=2) as ranks:
        mesh = ranks.roce[0]
        assert mesh.io is not None
        told = [EndpointEvent(what=what, pair=mesh.pairs.control(1), source_port=mesh.ports[0])
                for what in (STALLED, ANSWERED)]
        monkeypatch.setattr(mesh.io, "run", lambda until, *, quiet: (told, 0))
        assert not mesh.poll(0)
        assert not mesh.source_ports.is_suspect(1, mesh.ports[0])
        monkeypatch.undo()
        check_sums(ranks.run(allreduce("ring", [1000], 2)), [1000])


def test_a_rank_that_leaves_in_the_middle_is_named() -> None:
    """Its peers learn it at once from the TCP connection, wherever they wait."""

    def work(mesh: Mesh) -> Any:
        allreduce("ring", [1000], 3)(mesh)
        if mesh.rank == 1:
            mesh.close()
            return None
        return allreduce("ring", [1000], 3)(mesh)

    with RoceRanks(3, timeout=90.0) as ranks:
        results = ranks.run(work, timeout=60)
    for rank in (0, 2):
        assert isinstance(results[rank], PeerLost), results[rank]
        assert "rank 1 is lost" in str(results[rank])


def test_numbers_of_queue_pairs_are_the_jobs_secret() -> None:
    """Ranks that have another secret, of the same job, epoch and addresses, have other queue pairs and PSNs; within a
    job of any size no rank has a number twice, whatever the secret."""
    peers = [Peer(rank, f"127.0.{1 + rank // 250}.{1 + rank % 250}", "x:1") for rank in range(MAX_WORLD)]
    made = []
    for _ in range(2):
        connections: list[Connection] = []

        class Recorder(Endpoint):
            def connect(self, pair: Connection, into: list[Connection] = connections) -> int:
                into.append(pair)
                return super().connect(pair)

        plan = Plan("same", 1, 0, len(peers), peers, [], secret=draw())
        endpoint = Recorder(peers[0].address)
        ports = SourcePorts([50_000], range(1, len(peers)))
        failover = PathFailover(endpoint, ports, me="", locked=nullcontext, clock=lambda: 0)
        pairs = QueuePairs(plan, endpoint, ports, failover, lanes=3, ports=[50_000], most=64, recycle=False,
                           locked=nullcontext)
        for peer in range(1, len(peers)):
            pairs.data(peer)
        assert len({one.qp for one in connections}) == len(connections) == 4 * (MAX_WORLD - 1)
        assert all(one.qp & CONNECTION_BIT for one in connections)
        made.append(connections)
    assert len({one.qp for one in made[0]} & {one.qp for one in made[1]}) < MAX_WORLD / 10
    assert len({one.psn for one in made[0]} & {one.psn for one in made[1]}) < MAX_WORLD / 10


def test_an_address_in_use_is_named() -> None:
    """Two ranks on one UDP port are refused."""
    with RoceRanks(1) as ranks:
        listener = listen(ranks.addresses[0])
        plan = Plan("other", 1, 0, 1, [Peer(0, ranks.addresses[0], "x:1")], [], secret=draw())
        with pytest.raises(TransportError, match="give this rank another one") as caught:
            RoceMesh(plan, listener, timeout=1)
        assert caught.value.errno == errno.EADDRINUSE
        listener.close()


def test_impossible_settings_are_refused() -> None:
    """The error says what was expected."""
    with RoceRanks(2) as ranks:
        settings: list[dict[str, Any]] = [{"queue_pairs": 0}, {"queue_pairs": 32}, {"ports": [7000, 7000]}]
        plan, listener = ranks.roce[0].operations.plan, ranks.roce[0].operations.connections.listener
        for bad in settings:
            with pytest.raises(ValueError, match="expected"):
                RoceMesh(plan, listener, timeout=1, **bad)
        twice = Plan("j", 1, 0, 2, [Peer(0, "127.0.0.9", "x:1"), Peer(1, "127.0.0.9", "x:2")], [], secret=draw())
        with pytest.raises(PlanError, match="one for each rank"):
            RoceMesh(twice, listener, timeout=1)
        with pytest.raises(ValueError, match="expected another rank"):
            ranks.roce[0].pin(0, 0, ranks.roce[0].ports[0])


def test_flows_move_to_another_source_port_on_demand() -> None:
    """The source port of a queue pair can be changed between operations and during one, and nothing is lost."""
    with RoceRanks(2, queue_pairs=2) as ranks:
        mesh = ranks.roce[0]
        check_sums(ranks.run(allreduce("ring", [90_000], 2)), [90_000])
        mesh.pin(1, 0, mesh.ports[1])
        check_sums(ranks.run(allreduce("ring", [90_000], 2)), [90_000])


def test_a_communicator_takes_the_roce_rail_when_asked() -> None:
    """With rail="roce" a communicator sums over queue pairs, and says so."""
    net = subnet()
    addresses = [f"{net}.{rank + 1}" for rank in range(3)]
    listeners = [listen(address) for address in addresses]
    peers = [Peer(r, addresses[r], "{}:{}".format(*listeners[r].getsockname())) for r in range(3)]
    secret = draw()

    def rank(r: int) -> tuple[str, str, list[float]]:
        plan = Plan("loop", 1, r, 3, peers, [], secret=secret)
        with Communicator.of_plan(
            plan, address=addresses[r], rail="roce", algorithm="ring", listener=listeners[r]
        ) as comm:
            total = comm.allreduce(np.full(5000, r + 1, np.float32))
            comm.barrier()
            return comm.rail, comm.explain(20000), sorted(set(total.tolist()))

    with ThreadPoolExecutor(3) as pool:
        for rail, why, total in pool.map(rank, range(3)):
            assert rail == "roce"
            assert "queue pairs" in why
            assert "rail='roce'" in why
            assert total == [6.0]


def test_a_message_over_tcp_where_queue_pairs_are_is_named_at_once() -> None:
    """One rank has the rail tcp and the other roce: both learn of it without waiting for the timeout."""

    def work(mesh: Mesh) -> None:
        with mesh.operation(Call(1, "sum")):
            mesh.send(1 - mesh.rank, np.ones(9, np.uint8))
            mesh.wait([mesh.receive(1 - mesh.rank, np.empty(9, np.uint8))])

    with TcpRanks(2, timeout=100) as ranks:
        plan, listener = ranks.meshes[0].operations.plan, ranks.meshes[0].operations.connections.listener
        ranks.meshes[0] = RoceMesh(plan, listener, timeout=100)
        roce, tcp = ranks.run(work, timeout=90)
    assert isinstance(roce, RankMismatch)
    assert "rank 1 sends a message of operation 1 (sum) over TCP; expected it by queue pairs" in str(roce)
    assert isinstance(tcp, PeerLost)
    assert "rank 0 gave up: RankMismatch" in str(tcp)
