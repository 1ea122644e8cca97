# SPDX-License-Identifier: Apache-2.0
"""Messages between two ranks: any number under way, in any order of tags and sources, and errors that name ranks."""

from __future__ import annotations

import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

from support import needs

pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, PeerLost, RankMismatch
from netfold.host.operation.arrays import Flat, as_held
from netfold.host.torch.messenger import Messenger, TensorMessage
from support.hosts.messengers import SOON, messengers


def send(one: Messenger, values: Flat, peer: int, tag: int = 0) -> TensorMessage:
    return one.send(values.view(np.uint8), peer, tag, [])


def receive(one: Messenger, into: Flat, peer: int | None, tag: int = 0) -> TensorMessage:
    return one.receive(into.view(np.uint8), peer, tag, [], lambda: None)


def test_both_may_send_first_whatever_the_size() -> None:
    """Two ranks that post large sends before their receives do not wait for each other."""
    with messengers(2) as both:
        given = [np.full(3 << 20, rank) for rank in range(2)]
        taken = [np.zeros(3 << 20, int) for _ in range(2)]
        works = [send(one, given[rank], 1 - rank) for rank, one in enumerate(both)]
        works += [receive(one, taken[rank], 1 - rank) for rank, one in enumerate(both)]
        for work in works:
            work.wait(SOON)
        assert [int(one.min()) for one in taken] == [int(one.max()) for one in taken] == [1, 0]


def test_tags_are_independent_and_each_keeps_its_order() -> None:
    """Receives by tag take the messages with it in the order sent, in whichever order they are posted."""
    with messengers(2) as (mine, other):
        sends = [send(mine, np.array([value]), 1, tag=value % 3) for value in range(12)]
        taken = {}
        for tag in (2, 0, 1):
            into = [np.zeros(1, int) for _ in range(4)]
            for work in [receive(other, one, 0, tag) for one in into]:
                work.wait(SOON)
            sends[tag].wait(SOON)
            taken[tag] = [int(one[0]) for one in into]
        assert taken == {tag: [tag, tag + 3, tag + 6, tag + 9] for tag in range(3)}


def test_any_source_takes_each_message_once_and_names_its_sender() -> None:
    """Receives from any rank take what comes, early or late, and leave what is meant for a receive by name."""
    with messengers(4) as (root, *others):
        works = [send(one, np.array([10 * rank]), 0, tag=4) for rank, one in enumerate(others, start=1)]
        works += [send(one, np.array([rank]), 0, tag=5) for rank, one in enumerate(others, start=1)]
        named = np.zeros(1, int)
        works.append(receive(root, named, 2, tag=5))
        taken = [np.zeros(1, int) for _ in others]
        opens = [receive(root, one, None, tag=4) for one in taken]
        for work in [*works, *opens]:
            work.wait(SOON)
        assert sorted((work.source(), int(one[0])) for work, one in zip(opens, taken, strict=True)) == [
            (1, 10), (2, 20), (3, 30)
        ]
        assert named[0] == 2
        with pytest.raises(ValueError, match="only a receive from any rank"):
            works[-1].source()


def test_a_rank_that_is_done_may_leave() -> None:
    """Messages between others go on after a rank has left that nobody waits for."""
    with messengers(3) as (first, second, third):
        receives = receive(second, np.zeros(1, int), 2), receive(first, np.zeros(1, int), 2)
        for work in (send(third, np.ones(1, int), 1), send(third, np.ones(1, int), 0), *receives):
            work.wait(SOON)
        third.close()
        into = np.zeros(1, int)
        opened = receive(second, into, None)
        send(first, np.array([7]), 1).wait(SOON)
        opened.wait(SOON)
        assert (opened.source(), into[0]) == (0, 7)


def failing(message: TensorMessage, kind: type[NetFoldError], says: str) -> None:
    with pytest.raises(kind, match=says):
        message.wait(SOON)
    with pytest.raises(RuntimeError, match=says):
        message.future.wait()
    assert message.done()


def test_failures_are_named_on_every_message() -> None:
    """A lost peer, another size, and nothing for the timeout end what is under way, and all that comes after."""
    with messengers(2) as (mine, other):
        begun = send(other, np.ones(1), 0)
        receive(mine, np.zeros(1), 1).wait(SOON)
        begun.wait(SOON)
        waiting = receive(mine, np.zeros(1), 1), receive(mine, np.zeros(1), 1, tag=9)
        other.close()
        for work in waiting:
            failing(work, PeerLost, "rank 1")
        with pytest.raises(PeerLost):
            receive(mine, np.zeros(1), 1)
    with messengers(2) as (mine, other):
        send(other, np.ones(2), 0)
        failing(receive(mine, np.zeros(1), 1), RankMismatch, "16 bytes where 8 were expected")
    with messengers(2) as (mine, _):
        waiting_long = receive(mine, np.zeros(1), 1)
        with pytest.raises(CollectiveTimeout, match="it goes on"):
            waiting_long.wait(0.01)
        mine.mesh.operations.timeout = mine.mesh.operations.slice_seconds = 1.0
        mine.mesh.wake()
        failing(waiting_long, CollectiveTimeout, "rank 1")


def test_a_receive_that_nobody_waits_for_does_not_time_out() -> None:
    """However long nothing moves while the ranks compute; whoever waits then has the whole time-out from there on, and
    so has a future."""
    with messengers(2) as (mine, other):
        send(other, np.ones(1), 0)
        receive(mine, np.zeros(1), 1).wait(SOON)
        later, never = np.zeros(1), receive(mine, np.zeros(1), 1, tag=9)
        late = receive(mine, later, 1)
        operations, poll, quiet = mine.mesh.operations, mine.mesh.operations.poll, threading.Semaphore(0)

        def polls(seconds: float) -> bool:
            moved = bool(poll(seconds))
            if not moved:
                quiet.release()
            return moved

        with mock.patch.object(operations, "poll", polls):
            operations.timeout = operations.slice_seconds = 0.05
            mine.mesh.wake()
            for _ in range(4):
                assert quiet.acquire(timeout=SOON)
        operations.timeout = operations.slice_seconds = SOON
        mine.mesh.wake()
        send(other, np.full(1, 7.0), 0).wait(SOON)
        late.wait(SOON)
        assert (later[0], late.failed(), never.done()) == (7.0, False, False)
        operations.timeout = operations.slice_seconds = 0.5
        mine.mesh.wake()
        with pytest.raises(RuntimeError, match="rank 1"):
            never.future.wait()


def test_who_waits_late_hears_of_a_rank_that_the_controller_has_lost() -> None:
    """Long before the time-out, as who waits from the beginning."""
    lost: list[tuple[int, str]] = []
    with messengers(2, timeout=300.0) as (mine, _):
        mine.mesh.told_by(lambda: lost[0] if lost else None, dict)
        message = receive(mine, np.zeros(1), 1)
        lost.append((1, "is lost: a test says so"))
        failing(message, PeerLost, "a test says so")


def test_what_nobody_waited_for_ends_with_its_group() -> None:
    """Closing does not wait for messages that never come; they end with Closed."""
    with messengers(2) as (mine, _):
        forgotten = receive(mine, np.zeros(1), 1)
        mine.close()
        failing(forgotten, Closed, "destroyed")


def test_what_was_posted_is_sent_before_its_group_ends() -> None:
    """A rank that posts more than all buffers hold, and destroys its group, loses nothing: its receiver gets all of it,
    and then hears that the rank has left."""
    values = np.arange(4 << 20, dtype=np.float64)
    with messengers(2) as (mine, other), ThreadPoolExecutor(1) as pool:
        posted = [send(other, values, 0), send(other, values, 0, tag=1)]
        closing = pool.submit(other.close)
        into = [np.zeros_like(values) for _ in posted]
        for tag, one in enumerate(into):
            receive(mine, one, 1, tag=tag).wait(SOON)
            np.testing.assert_array_equal(one, values)
        closing.result(SOON)
        for message in posted:
            message.wait(SOON)
        failing(receive(mine, np.zeros(1), 1), PeerLost, "rank 1 left when its process group was destroyed")


def test_what_cannot_be_sent_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that never receives does not hold a group up for ever: the log has messages and bytes, and each
    message its error."""
    values = np.zeros(8 << 20)
    with messengers(2) as (_, other):
        posted = send(other, values, 0)
        other.close(flush=0.2)
        failing(posted, Closed, "1 messages")
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert re.search(r"rank 1: .* 1 messages, \d{6,} bytes, were not sent, since nothing moved", record.getMessage())


def test_what_an_error_has_kept_from_being_sent_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A rank that leaves, whose message is awaited, ends what was to be sent to another one: the log says so, too."""
    with messengers(3) as (mine, _, leaver):
        begun = send(leaver, np.ones(1), 0)
        receive(mine, np.zeros(1), 2).wait(SOON)
        begun.wait(SOON)
        awaited, unsent = receive(mine, np.zeros(1), 2), send(mine, np.zeros(8 << 20), 1)
        leaver.close()
        for message in (awaited, unsent):
            failing(message, PeerLost, "rank 2 left")
        mine.close()
    (record,) = caplog.records
    assert f"1 messages, {64 << 20} bytes, were not sent, since they ended with PeerLost" in record.getMessage()


def test_what_is_posted_just_before_the_end_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is posted after the thread has looked for new ones, and before it sees that it is to end."""
    with messengers(2) as (mine, other):
        begun = send(mine, np.ones(1), 1)
        receive(other, np.zeros(1), 0).wait(SOON)
        begun.wait(SOON)
        looked, closed, next_one = threading.Event(), threading.Event(), mine._next

        def slow() -> Any:
            one = next_one()
            if one is None and not looked.is_set():
                looked.set()
                closed.wait(SOON)
            return one

        monkeypatch.setattr(mine, "_next", slow)
        mine.mesh.wake()
        assert looked.wait(SOON)
        last, into = send(mine, np.array([7.0]), 1), np.zeros(1)
        monkeypatch.setattr(mine.mesh, "wake", closed.set)  # close() has said that it is to end
        mine.close()
        receive(other, into, 0).wait(SOON)
        last.wait(SOON)
        assert into[0] == 7


@pytest.mark.parametrize("unread", [1, 1 << 19])
def test_what_nobody_has_read_costs_no_message_the_other_way(unread: int) -> None:
    """A rank that has not received what its peer has sent it ends: the peer gets all of a message that was sent before,
    though it looks for it only afterwards."""
    with messengers(2) as (mine, other), ThreadPoolExecutor(1) as pool:
        begun = send(mine, np.ones(1), 1), send(other, np.ones(1), 0)
        for one, peer in ((mine, 1), (other, 0)):
            receive(one, np.zeros(1), peer).wait(SOON)
        for message in begun:
            message.wait(SOON)
        send(other, np.ones(unread), 0, tag=5)
        values, into = np.arange(1 << 18, dtype=np.float64), np.zeros(1 << 18)
        send(mine, values, 1).wait(SOON)
        closing = pool.submit(mine.close)
        receive(other, into, 0).wait(SOON)
        closing.result(SOON)
        np.testing.assert_array_equal(into, values)


def test_what_the_kernel_could_not_deliver_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the bytes that were sent and lie in this host's kernel, because their receiver never reads."""
    with messengers(2) as (mine, other):
        begun = send(mine, np.ones(1), 1)
        receive(other, np.zeros(1), 0).wait(SOON)
        begun.wait(SOON)
        sock = other.mesh.operations.connections.links[0].socket
        assert sock is not None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        send(mine, np.zeros(1 << 18), 1).wait(SOON)
        mine.close(flush=0.2)
    (record,) = caplog.records
    assert re.search(r"destroyed, and \d{6,} bytes of messages that were sent had not arrived", record.getMessage())


def test_a_close_beside_another_one_ends_both(caplog: pytest.LogCaptureFixture) -> None:
    """A watchdog closes at once what another thread is still sending: that one's close ends as well, long before its
    own bound, and nothing is logged twice."""
    with messengers(2) as (_, other), ThreadPoolExecutor(1) as pool:
        posted = send(other, np.zeros(8 << 20), 0)
        closing = pool.submit(other.close, SOON * 10)
        while not other.closing:
            pass
        other.close(flush=0.0)
        closing.result(SOON)
        failing(posted, Closed, "1 messages")
    assert len(caplog.records) == 1


def test_impossible_peers_and_tags_are_refused() -> None:
    """Messages to oneself, to nobody, and with tags that do not fit are refused before anything is posted."""
    with messengers(2) as (mine, _):
        for peer, tag, says in ((0, 0, "peer=0"), (2, 0, "peer=2"), (1, -1, "tag=-1"), (1, 1 << 32, "tag=")):
            with pytest.raises(ValueError, match=says):
                send(mine, np.ones(1), peer, tag)
        with pytest.raises(ValueError, match="without elements"):
            receive(mine, np.zeros(0), None)


def test_what_a_completion_raises_reaches_the_waiter() -> None:
    """A receive whose last step fails ends with that error, by wait and by future; the messages after it go on."""
    with messengers(2) as (mine, other):

        def fail() -> None:
            raise KeyError("nowhere to put it")

        wrong = mine.receive(np.zeros(8, np.uint8), 1, 0, [], fail)
        future = wrong.future
        read_only = np.zeros(8, np.uint8)
        read_only.flags.writeable = False
        refused = mine.receive(read_only, 1, 5, [], lambda: None)
        into = np.zeros(1)
        after = receive(mine, into, 1)
        for value in (1.0, 2.0):
            send(other, np.array([value]), 0).wait(SOON)
        with pytest.raises(KeyError, match="nowhere"):
            wrong.wait(SOON)
        with pytest.raises(RuntimeError, match="nowhere"):
            future.wait()
        with pytest.raises(ValueError, match="can be written"):
            refused.wait(SOON)
        after.wait(SOON)
        assert into[0] == 2.0


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("source", [0, None])
def test_a_message_of_another_dtype_is_refused_by_its_receiver(source: int | None, early: bool) -> None:
    """As many bytes of another dtype are not reinterpreted: from a named rank and from any, with the receive posted
    before and after the message has come."""
    with messengers(2) as (mine, other):
        given, into = np.ones(4, np.float32), np.ones(4, np.int32)
        if early:
            mine.send(as_held(given), 1, 3, [])
            send(mine, np.ones(1), 1, 4)
            receive(other, np.zeros(1), 0, 4).wait(SOON)  # behind it, so that it has been read
        received = other.receive(as_held(into), source, 3, [], lambda: None)
        if not early:
            mine.send(as_held(given), 1, 3, [])
        failing(received, RankMismatch, "sends a message of float32, 16 bytes, where a message of int32, 16 bytes")
        assert into.tolist() == [1] * 4


def test_a_forked_child_posts_nothing_and_waits_for_nothing() -> None:
    """Messages that its parent has posted end with Closed there, at once, and go on in the parent."""
    with messengers(2) as (mine, other):
        into = np.zeros(1)
        posted = receive(mine, into, 1)
        child = os.fork()
        if child == 0:
            heard = 0
            for call in (posted.wait, lambda: send(mine, np.ones(1), 1), lambda: receive(mine, np.zeros(1), 1)):
                try:
                    call()
                except Closed as error:
                    heard += f"forked from process {os.getppid()}" in str(error)
            mine.close()
            os._exit(heard if posted.done() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        send(other, np.ones(1), 0).wait(SOON)
        posted.wait(SOON)
        assert into[0] == 1
