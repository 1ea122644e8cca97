# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks that are no part of a collective, over real TCP on loopback."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from netfold.host.errors import PeerLost, RankMismatch
from netfold.host.job_secret import draw
from netfold.host.mesh.mesh import Pending
from netfold.host.mesh.messages import MessageMesh
from netfold.host.mesh.sockets import listen
from netfold.testing import subnet
from netfold.wire.plan import Peer, Plan


@contextmanager
def meshes(ranks: int) -> Iterator[list[MessageMesh]]:
    """The meshes of all ranks of a job, which this thread moves in turns."""
    net, secret = subnet(), draw()
    listeners = [listen(f"{net}.{rank + 1}") for rank in range(ranks)]
    peers = [Peer(rank, f"{net}.{rank + 1}", "{}:{}".format(*listeners[rank].getsockname())) for rank in range(ranks)]
    made = [MessageMesh(Plan("loop", 1, rank, ranks, peers, [], secret=secret), listeners[rank], timeout=60)
            for rank in range(ranks)]
    try:
        yield made
    finally:
        for mesh in made:
            mesh.close()


def until(made: list[MessageMesh], *pending: Pending) -> None:
    """Moves all ranks' bytes until these are done."""
    while not all(one.done for one in pending):
        for mesh in made:
            mesh.operations.poll(0.001)


def test_messages_of_one_tag_keep_their_order_and_others_pass() -> None:
    """Whatever is posted first, and with nothing else that both ranks have called alike."""
    with meshes(2) as (first, second):
        got = [np.zeros(3) for _ in range(3)]
        posted = [first.receive(1, got[0], tag=7), *(first.receive(1, into) for into in got[1:])]
        for number, tag in enumerate((0, 0, 7)):
            second.send(0, np.full(3, number + 1.0), tag=tag)
        until([first, second], *posted)
        assert [into[0] for into in got] == [3, 1, 2]


def test_an_open_receive_takes_one_message_of_any_rank() -> None:
    """It says whose, and is withdrawn from the others, also where the message was there before it."""
    with meshes(3) as made:
        into = np.zeros(4, np.int32)
        early = made[1].receive_any(into, tag=5)
        until(made, made[2].send(1, np.full(4, 2, np.int32), tag=5), early)
        assert (early.source, into[0]) == (2, 2)
        other = np.zeros(2, np.int32)
        until(made, made[0].send(1, np.full(4, 9, np.int32), tag=5), made[0].send(1, np.full(2, 8, np.int32), tag=6),
              made[1].receive(0, other, tag=6))
        late = made[1].receive_any(into, tag=5)
        until(made, late)
        assert (late.source, into[0], other[0]) == (0, 9, 8)
        assert not any(link.receives for link in made[1].posted.connections.links.values())


def test_the_bytes_of_another_dtype_are_not_taken() -> None:
    """A message says what it holds, and its receive what it was posted for."""
    said = "sends a message of float32, 16 bytes, where a message of int32, 16 bytes, was expected"
    with meshes(2) as made:
        made[1].send(0, np.zeros(4, np.float32))
        pending = made[0].receive(1, np.zeros(4, np.int32))
        with pytest.raises(RankMismatch, match=said):
            until(made, pending)


def test_an_open_receive_waits_while_anybody_is_left_to_send() -> None:
    """One of two ranks is gone: the other may still send; with both gone, the receive fails by name."""
    with meshes(3) as made:
        here, *others = made
        sent = [mesh.send(0, np.ones(1)) for mesh in others]
        until(made, *sent, *(here.receive(rank, np.zeros(1)) for rank in (1, 2)))
        pending = here.receive_any(np.zeros(1))
        others[0].close()
        while not here.posted.connections.links[1].lost:
            here.operations.poll(0.001)
        here.operations.poll(0.0)
        assert not pending.done
        others[1].close()
        with pytest.raises(PeerLost, match=r"rank [12] is lost"):
            until([here], pending)


def test_another_thread_wakes_a_rank_that_waits() -> None:
    """Without any byte for it: ``sleep`` and ``progress`` end, each once for a wake."""
    with meshes(2) as (mesh, _):
        ended: list[object] = []
        for waits in (mesh.sleep, partial(mesh.progress, lambda: math.inf)):
            thread = threading.Thread(target=lambda waits=waits: ended.append(waits()), daemon=True)
            thread.start()
            mesh.wake()
            thread.join(30)
            assert not thread.is_alive()
        assert len(ended) == 2


def test_what_the_peers_kernel_has_not_taken_is_counted() -> None:
    """At the end: what it took is delivered, also where it is never received."""
    with meshes(2) as (first, second):
        until([first, second], first.send(1, np.ones(1)), second.receive(0, np.zeros(1)))
        until([first, second], first.send(1, np.ones(8)))
        first.send_rest(lambda: 0.1)
        first.leave("at the end of a test")
        assert first.drain(lambda: 5.0) == 0
