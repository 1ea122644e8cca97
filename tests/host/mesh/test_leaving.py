# SPDX-License-Identifier: Apache-2.0
"""Ranks that leave a mesh over TCP in order, and what the others hear of it."""

from __future__ import annotations

import socket

import numpy as np

from netfold.host.errors import PeerLost
from netfold.host.mesh.mesh import Call, Mesh
from support.hosts.collectives import TcpRanks, allreduce, values


def test_a_rank_that_leaves_in_order_says_so() -> None:
    """What it has sent arrives, though it is received later; who then waits for it hears after what it left, and tells
    ranks that were never connected to it."""
    got = np.zeros(300_000)
    with TcpRanks(4) as tcp:
        values(tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32), "ring")))  # neighbours are connected

        def sends(mesh: Mesh) -> None:
            with mesh.operation(Call(2, "message")):
                mesh.send(0, np.arange(300_000.0))
            mesh.leave("after operation 2")
            mesh.close()

        def receives(mesh: Mesh) -> None:
            with mesh.operation(Call(2, "message")):
                mesh.wait([mesh.receive(1, got)])

        values(tcp.run(lambda mesh: [receives, sends, lambda _: None, lambda _: None][mesh.rank](mesh)))
        np.testing.assert_array_equal(got, np.arange(300_000.0))
        results = tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32), "ring", 3), only=[0, 2, 3])
        for rank in (0, 2, 3):
            assert isinstance(results[rank], PeerLost)
            assert "rank 1 left after operation 2; " in str(results[rank])
            assert "its own error" not in str(results[rank])


def test_who_is_not_connected_hears_of_it_from_a_rank_that_waits() -> None:
    """Rank 0 waits for a rank that would have to connect to it, and has left: rank 1, which that one has told, waits
    for it as well and reports it, so that nobody waits for the time-out."""
    with TcpRanks(3, timeout=60.0) as tcp:

        def meet(mesh: Mesh) -> None:  # 0 with 1, and 1 with 2
            into = np.zeros(1)
            for one, other in ((0, 1), (1, 2)):
                if mesh.rank in (one, other):
                    with mesh.operation(Call(one + 1, "meeting")):
                        if mesh.rank == one:
                            mesh.send(other, np.ones(1))
                        else:
                            mesh.wait([mesh.receive(one, into)])

        values(tcp.run(meet))
        tcp.meshes[2].leave("after operation 2")
        tcp.meshes[2].close()

        def wait(mesh: Mesh) -> None:
            with mesh.operation(Call(3, "wait")):
                mesh.wait([mesh.receive(2, np.zeros(1))])

        for told in tcp.run(wait, only=[0, 1])[:2]:
            assert isinstance(told, PeerLost)
            assert "rank 2 left after operation 2" in str(told)


def test_a_rank_that_leaves_costs_no_data_between_two_others() -> None:
    """Rank 1 knows that rank 2 has left, and has not received all that rank 0 has sent it: rank 0 may leave."""
    given, got = np.arange(1 << 18, dtype=np.float64), np.zeros(1 << 18)
    with TcpRanks(3) as tcp:
        values(tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32), "ring")))
        sender, receiver, leaver = tcp.meshes
        links = receiver.operations.connections.links
        for sock in [link.socket for link in links.values() if link.socket is not None]:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # the rest stays with its sender's kernel
        for mesh in (sender, receiver):
            mesh.begin(Call(2, "message"))
        sender.wait([sender.send(1, given)])
        receives = receiver.receive(0, got)
        for mesh in (leaver, sender):
            mesh.leave("after operation 2")
            mesh.close()
            while not links[2].left:
                receiver.operations.connections.read(links[2])
        receiver.wait([receives])
        np.testing.assert_array_equal(got, given)


def test_a_peer_that_is_lost_keeps_no_farewell_from_the_others() -> None:
    """Rank 1 gives up and resets its connection just before rank 0 leaves: rank 2 hears that rank 0 has left in
    order."""
    with TcpRanks(3) as tcp:
        values(tcp.run(lambda mesh: allreduce(mesh, np.ones(8, np.float32), "ring")))
        leaver, lost, other = tcp.meshes
        leaver.begin(Call(2, "message"))
        leaver.wait([leaver.send(1, np.ones(8))])  # never read, so that the kernel resets the connection
        lost.abort(ValueError("wrong"))
        leaver.leave("after operation 2")
        connections = other.operations.connections
        for _ in range(100):
            if not connections.links[0].left:
                connections.poll(0.05)
        assert connections.links[0].left == "left after operation 2"


def test_what_a_rank_says_as_it_leaves_is_printable_and_short() -> None:
    """Terminals' control characters become question marks, and a header has room for so many bytes."""
    with TcpRanks(2) as tcp:
        values(tcp.run(lambda mesh: allreduce(mesh, np.ones(2, np.float32))))
        tcp.meshes[1].leave("after operation 1: \x1b[2J\n" + 1000 * "x")
        tcp.meshes[1].close()
        (told, _) = tcp.run(lambda mesh: allreduce(mesh, np.ones(2, np.float32), number=2), only=[0])
        assert isinstance(told, PeerLost)
        assert "rank 1 left after operation 1: ?[2J?xxx" in str(told)
        assert 40 * "x" in str(told)
        assert 80 * "x" not in str(told)


def test_a_rank_that_fails_has_not_left_in_order() -> None:
    """Whatever it would say after an error, the others are told of the error."""
    with TcpRanks(2) as tcp:
        values(tcp.run(lambda mesh: allreduce(mesh, np.ones(2, np.float32))))
        tcp.meshes[1].abort(ValueError("wrong"))
        tcp.meshes[1].leave("after operation 1")
        tcp.meshes[1].close()
        (told, _) = tcp.run(lambda mesh: allreduce(mesh, np.ones(2, np.float32), number=2), only=[0])
        assert "rank 1 gave up: ValueError" in str(told)
