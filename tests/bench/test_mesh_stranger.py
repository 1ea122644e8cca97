# SPDX-License-Identifier: Apache-2.0
"""The soak's stranger at the ports of ranks: that it speaks the protocol of today, and notices a rank that gives in."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from netfold.bench.harness.mesh_stranger import KINDS, MeshStranger
from netfold.bench.harness.overhearing import OverheardHandshake, Overhearing
from netfold.host.mesh.handshake import CHALLENGE, HELLO, LANE, MAGIC, Initiator, Outcome, Responder
from netfold.host.mesh.sockets import listen
from support.hosts.collectives import TcpRanks, allreduce, values
from support.hosts.handshakes import mesh_identity

BOUND = 30.0
TRIES = 400


def overheard(tcp: TcpRanks) -> list[OverheardHandshake]:
    """A handshake of each rank with each other, as it was on the wire, to another challenge than will come."""
    found = []
    for mesh in tcp.meshes:
        for other in tcp.meshes:
            if other is not mesh:
                me = mesh_identity(mesh.operations.plan)
                initiator = Initiator(me, other.rank)
                proof = initiator.receive(Responder(mesh_identity(other.operations.plan)).receive(initiator.hello))
                where = other.operations.connections.listener.getsockname()
                found.append(OverheardHandshake(where, initiator.hello, proof))
    return found


@pytest.fixture
def ranks() -> Iterator[TcpRanks]:
    """Three ranks that have not connected to each other."""
    with TcpRanks(3) as tcp:
        yield tcp


def test_ranks_take_the_stranger_for_one_of_today_until_it_has_to_prove_something(ranks: TcpRanks) -> None:
    """They challenge it and read its proofs, which are all wrong; no rank says anything else to it, and the sum of the
    ranks, who connect among its tries, is right."""
    heard = overheard(ranks)
    stranger = MeshStranger(random.Random(5), [one.listener for one in heard], heard)
    try:
        for number in range(TRIES):
            stranger.attempt()
            for mesh in ranks.meshes:
                mesh.operations.poll(0.0)
            if number == TRIES // 2:
                for result in values(ranks.run(lambda mesh: allreduce(mesh, np.ones(10, np.float32)))):
                    np.testing.assert_array_equal(result, np.full(10, 3, np.float32))
        met = stranger.met
        assert stranger.broken == []
        assert {kind for kind in KINDS if met[kind]} == set(KINDS)
        assert met["answered otherwise"] == 0
        proving = sum(met[kind] for kind in ("wrong secret", "reflected", "replayed proof", "replayed"))
        assert proving // 2 < met["refused"] <= met["challenged"], "a rank does not take its hello for one of today"
        reasons = [mesh.operations.connections.refusals() for mesh in ranks.meshes]
        assert all(reasons)
        for result in values(ranks.run(lambda mesh: allreduce(mesh, np.ones(10, np.float32), number=2))):
            np.testing.assert_array_equal(result, np.full(10, 3, np.float32))
    finally:
        stranger.close()


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.TAKEN, Outcome.CROSSED])
def test_a_rank_that_gives_in_is_reported(ranks: TcpRanks, outcome: Outcome) -> None:
    """Whatever else than a refusal comes for a wrong proof."""
    me, heard = mesh_identity(ranks.meshes[0].operations.plan), overheard(ranks)

    def give_in(listener: socket.socket) -> None:
        listener.settimeout(BOUND)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(BOUND)
            responder = Responder(me, lanes=True)
            while not (challenge := responder.receive(connection.recv(responder.wanted))):
                pass
            connection.sendall(challenge)
            connection.recv(4096)
            responder.peer = 1
            connection.sendall(responder.verdict(outcome))

    with listen("127.0.0.1") as listener, ThreadPoolExecutor(1) as pool:
        at = listener.getsockname()
        here = OverheardHandshake(at, HELLO.pack(MAGIC, me.epoch, 1, 0, me.world, bytes(32)), bytes(32))
        stranger = MeshStranger(random.Random(1), [at], [here, *heard])
        played = pool.submit(give_in, listener)
        stranger.greet(at, "wrong secret")
        while not stranger.broken and not played.done():
            stranger.listen(0.1)
        played.result()
        stranger.listen(BOUND)
        stranger.close()
    assert stranger.broken[0].startswith("wrong secret: a rank answered ")


def test_a_stranger_that_has_overheard_nothing_does_not_begin() -> None:
    """It would only try what is refused with its first words."""
    with pytest.raises(ValueError, match="overheard: expected a handshake between ranks"):
        MeshStranger(random.Random(1), [("127.0.0.1", 1)], [])


def frame(source: int, destination: int, payload: bytes, kind: bytes = b"\x08\x00") -> bytes:
    """An Ethernet frame of a TCP connection from 10.0.0.1 to 10.0.0.2, padded as the shortest ones are."""
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + 32 + len(payload), 0, 0, 64, socket.IPPROTO_TCP, 0,
                     socket.inet_aton("10.0.0.1"), socket.inet_aton("10.0.0.2"))
    tcp = struct.pack("!HHIIBBHHH12x", source, destination, 0, 0, 0x80, 0x18, 0, 0, 0)
    return (bytes(12) + kind + ip + tcp + payload).ljust(60, b"\0")


def test_a_handshake_on_the_wire_is_a_hello_and_the_proof_on_the_same_connection(ranks: TcpRanks) -> None:
    """Of messages or of a lane; other packets of the size of a proof, and of other protocols, are none."""
    me = mesh_identity(ranks.meshes[0].operations.plan)
    hearing = Overhearing()
    hellos = [Initiator(me, 1).hello, Initiator(me, 2, lane=1).hello]
    assert [len(hello) for hello in hellos] == [HELLO.size, HELLO.size + LANE.size]
    for port, hello in enumerate(hellos, 5000):
        hearing.hear(frame(port, 4000, bytes(32)))
        hearing.hear(frame(port, 4000, hello))
        hearing.hear(frame(port + 10, 4000, bytes(32)))
        hearing.hear(frame(4000, port, CHALLENGE.pack(MAGIC, bytes(32))))
        hearing.hear(frame(port, 4000, hello, b"\x86\xdd"))
        hearing.hear(frame(port, 4000, bytes([port - 5000]) * 32))
    hearing.hear(b"")
    assert hearing.found == [OverheardHandshake(("10.0.0.2", 4000), hello, bytes([number]) * 32)
                             for number, hello in enumerate(hellos)]
    assert [(one.epoch, one.listens, one.world) for one in hearing.found] == [(me.epoch, 1, 3), (me.epoch, 2, 3)]
