# SPDX-License-Identifier: Apache-2.0
"""The out-of-band channel over real TCP: who is asked, who is believed, and who is kept out."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest

from netfold.host.job_secret import draw
from netfold.host.mesh.handshake import HandshakeRefused, Identity, Outcome, Responder
from netfold.host.mesh.sockets import listen
from netfold.host.mesh.unproven import SPARE
from netfold.host.rails.answering import ANSWER, QUESTION
from netfold.host.rails.out_of_band import CONNECT_SECONDS, PURPOSE, Asked, TcpOutOfBand
from netfold.host.rails.rank_state import AgreementOutcome, Answer, Question, QuestionKind
from netfold.wire.plan import Peer, Plan
from support.hosts.handshakes import mesh_identity, prove

WORLD, PLANES = 3, 2
PATIENCE = 30.0
QUESTION_OF_TEST = Question(QuestionKind.AGE, 7, 0)


class Channels:
    """The channels of all ranks, each of which answers with its rank as the result, unless told otherwise."""

    def __init__(self) -> None:
        secret, peers = draw(), [Peer(rank, "127.0.0.1", "127.0.0.1:1") for rank in range(WORLD)]
        plans = [Plan("j", 1, rank, WORLD, peers, [], secret=secret) for rank in range(WORLD)]
        self.identities = [Identity.of_plan(plan, PURPOSE) for plan in plans]
        self.in_mesh = [mesh_identity(plan) for plan in plans]
        self.answers: list[Callable[[Question], Answer]] = [self._answer(rank) for rank in range(WORLD)]
        self.asked: list[list[Question]] = [[] for _ in range(WORLD)]
        self.channels = [
            TcpOutOfBand([listen("127.0.0.1") for _ in range(PLANES)], self._record(rank), self.identities[rank])
            for rank in range(WORLD)
        ]
        self.where = {
            rank: [("127.0.0.1", port) for port in channel.ports()] for rank, channel in enumerate(self.channels)
        }
        for channel in self.channels:
            channel.set_addresses(self.where)

    @staticmethod
    def _answer(rank: int) -> Callable[[Question], Answer]:
        return lambda question: Answer(AgreementOutcome.NOT_YET, math.inf, bytes([rank]))

    def _record(self, rank: int) -> Callable[[Question], Answer]:
        def answer(question: Question) -> Answer:
            self.asked[rank].append(question)
            return self.answers[rank](question)

        return answer

    def knock(self, rank: int) -> socket.socket:
        """A stranger's connection to a rank's first plane."""
        return socket.create_connection(self.where[rank][0], timeout=PATIENCE)


class TimeOfQuestions:
    """A clock on which the time of a question is over as soon as another rank has answered it, and else passes slowly:
    who has stopped has until then, and who answers has long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, within: float) -> None:
        self._over, self._begin = 0.0, time.monotonic()
        on_ready = Asked.on_ready

        def heard(link: Asked) -> Answer | None:
            answer = on_ready(link)
            if answer is not None:
                self._over += within
            return answer

        monkeypatch.setattr(Asked, "on_ready", heard)
        monkeypatch.setattr("netfold.host.rails.out_of_band.time", SimpleNamespace(monotonic=self))

    def __call__(self) -> float:
        return self._over + (time.monotonic() - self._begin) / 20


@pytest.fixture
def ranks() -> Iterator[Channels]:
    """Three ranks on two planes."""
    channels = Channels()
    yield channels
    for channel in channels.channels:
        channel.close()


def test_every_rank_answers_and_is_asked_once(ranks: Channels) -> None:
    """Several questions go over one connection, and long results arrive whole."""
    ranks.answers[2] = lambda question: Answer(AgreementOutcome.COMMITTED, 0.25, b"sum" * 1_000_000)
    for _ in range(3):
        answers = ranks.channels[0].ask(QUESTION_OF_TEST, [1, 2], PATIENCE)
        assert answers[1] == Answer(AgreementOutcome.NOT_YET, math.inf, b"\1")
        assert answers[2] == Answer(AgreementOutcome.COMMITTED, 0.25, b"sum" * 1_000_000)
    assert ranks.asked[1:] == [[QUESTION_OF_TEST] * 3] * 2
    assert not ranks.channels[0].refused()


def test_a_question_takes_another_plane_than_that_of_the_rail_in_question(ranks: Channels) -> None:
    """The plane that is asked about may be down."""
    for rail, plane in ((0, 1), (1, 0), (0, 1)):
        ranks.channels[0].ask(replace(QUESTION_OF_TEST, rail=rail), [1], PATIENCE)
        assert ranks.channels[0].used[1] == plane


def test_a_handshake_that_a_question_has_not_seen_the_end_of_goes_on_with_the_next_one(ranks: Channels) -> None:
    """A rank that answers slowly is reached in the end, however short the time of each question: its connection on a
    plane is kept, and so is that of the other plane."""
    with listen("127.0.0.1") as place, ThreadPoolExecutor(1) as pool:
        place.settimeout(PATIENCE)
        where = ("127.0.0.1", place.getsockname()[1])
        ranks.channels[0].set_addresses({**ranks.where, 1: [where]})
        responder = Responder(ranks.identities[1])

        def slowly(sock: socket.socket) -> None:
            """One step of the handshake, once the question that it belongs to is over."""
            message = sock.recv(responder.wanted)
            assert not ranks.channels[0].ask(QUESTION_OF_TEST, [1], 0.01)
            say = responder.receive(message)
            sock.sendall(say or responder.verdict(Outcome.ACCEPTED))
            assert not ranks.channels[0].ask(QUESTION_OF_TEST, [1], 0.05)

        assert not ranks.channels[0].ask(QUESTION_OF_TEST, [1], 0.05)
        sock, _ = place.accept()
        with sock:
            slowly(sock)
            message = sock.recv(responder.wanted)
            assert responder.receive(message) == b""

            def answer() -> None:
                sock.sendall(responder.verdict(Outcome.ACCEPTED))
                assert sock.recv(QUESTION.size, socket.MSG_WAITALL) == QUESTION.pack(QuestionKind.AGE, 7, 0, 0)
                sock.sendall(ANSWER.pack(AgreementOutcome.BEHIND, 0, 0))

            answered = pool.submit(answer)
            assert ranks.channels[0].ask(QUESTION_OF_TEST, [1], PATIENCE)[1].outcome is AgreementOutcome.BEHIND
            answered.result()


def test_a_rank_whose_machine_refuses_on_a_plane_is_said_to_be_gone(ranks: Channels) -> None:
    """After each plane has been tried; one that answers again is not."""
    ranks.channels[2].close()
    for _ in range(PLANES):
        assert set(ranks.channels[0].ask(QUESTION_OF_TEST, [1, 2], PATIENCE)) == {1}
    assert list(ranks.channels[0].refused()) == [2]


def test_a_rank_that_has_stopped_costs_the_others_nothing(ranks: Channels, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose kernel takes connections and nobody reads them: the others are heard all the same, in the same time."""
    with listen("127.0.0.1") as deaf:
        ranks.channels[0].set_addresses({**ranks.where, 1: [("127.0.0.1", deaf.getsockname()[1])] * PLANES})
        TimeOfQuestions(monkeypatch, within=1.0)
        answers = ranks.channels[0].ask(QUESTION_OF_TEST, [1, 2], 1.0)
        assert set(answers) == {2}
        assert not ranks.channels[0].refused()


def test_a_question_has_its_time_also_where_it_had_to_wait_for_another_ones(
    ranks: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several rails ask at once, and one question after the other is under way: while one waits for a rank that has
    stopped, the time of the next one does not run out."""
    with listen("127.0.0.1") as deaf, ThreadPoolExecutor(4) as pool:
        ranks.channels[0].set_addresses({**ranks.where, 1: [("127.0.0.1", deaf.getsockname()[1])] * PLANES})
        TimeOfQuestions(monkeypatch, within=0.5)

        def after_all_have_begun(question: Question) -> Answer:
            time.sleep(0.1)
            return Answer(AgreementOutcome.NOT_YET, math.inf)

        ranks.answers[2] = after_all_have_begun
        asked = [pool.submit(ranks.channels[0].ask, QUESTION_OF_TEST, [1, 2], 0.5) for _ in range(4)]
        for one in asked:
            assert set(one.result()) == {2}


@pytest.mark.parametrize("other", ["secret", "purpose"])
def test_a_stranger_who_asks_gets_no_answer(ranks: Channels, other: str) -> None:
    """Neither one with another secret, nor one who relays what a rank proves in the mesh: he is refused, his question
    never reaches the rank, and the ranks go on."""
    stranger = ranks.in_mesh[1] if other == "purpose" else replace(ranks.identities[1], key=os.urandom(32))
    with ranks.knock(0) as sock, pytest.raises(HandshakeRefused, match="refuses this rank's proof"):
        prove(sock, stranger, 0)
    with ranks.knock(0) as sock:  # as before there were secrets: a checksum of job and epoch, which are public
        cookie = hashlib.blake2b(b"j/1", digest_size=8).digest()
        sock.sendall((cookie + QUESTION.pack(QuestionKind.GIVE_UP, 7, 0, 0)) * 10)
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    assert not ranks.asked[0]
    assert ranks.channels[1].ask(QUESTION_OF_TEST, [0], PATIENCE)[0].result == b"\0"


def test_who_sits_in_a_ranks_place_is_not_believed(ranks: Channels) -> None:
    """A stranger who listens where rank 1 should, and says that a rail was given up: no answer of his counts, and the
    question is not told to him."""
    heard = bytearray()
    with listen("127.0.0.1") as place, ThreadPoolExecutor(1) as pool:

        def impostor() -> None:
            sock, _ = place.accept()
            with sock, contextlib.suppress(ConnectionError):
                responder = Responder(replace(ranks.identities[1], key=os.urandom(32)))
                sock.sendall(responder.receive(sock.recv(responder.wanted)))
                sock.recv(1000)
                responder.peer = 0
                sock.sendall(responder.verdict(Outcome.ACCEPTED) + ANSWER.pack(AgreementOutcome.ABORTED, 0, 0))
                while more := sock.recv(1000):
                    heard.extend(more)

        played = pool.submit(impostor)
        ranks.channels[0].set_addresses({**ranks.where, 1: [("127.0.0.1", place.getsockname()[1])] * PLANES})
        assert set(ranks.channels[0].ask(QUESTION_OF_TEST, [1, 2], 5.0)) == {2}
        played.result()
    assert not heard


def test_a_flood_of_strangers_keeps_no_rank_out(ranks: Channels) -> None:
    """They hold more connections than a rank keeps unproven; it keeps its bound, and answers its peers."""
    with contextlib.ExitStack() as held:
        before = len(os.listdir("/proc/self/fd"))
        strangers = [held.enter_context(ranks.knock(0)) for _ in range(4 * SPARE)]
        assert ranks.channels[1].ask(QUESTION_OF_TEST, [0], PATIENCE)[0].result == b"\0"
        # The channel has accepted all of them: it closed the oldest, and its last answer came after that.
        assert len(os.listdir("/proc/self/fd")) - before <= len(strangers) + WORLD + SPARE + 10
        assert ranks.channels[2].ask(QUESTION_OF_TEST, [0], PATIENCE)[0].result == b"\0"


def test_silence_on_a_plane_ends_with_the_time_for_connecting() -> None:
    """A plane that is down takes no more than CONNECT_SECONDS of the question's time: the next one goes elsewhere."""
    ranks = Channels()
    try:
        # 192.0.2.0/24 is for documentation (RFC 5737): nobody answers there
        ranks.channels[0].set_addresses({**ranks.where, 1: [ranks.where[1][0], ("192.0.2.1", 9)]})
        begin = time.monotonic()
        assert not ranks.channels[0].ask(QUESTION_OF_TEST, [1], PATIENCE)
        assert time.monotonic() - begin < PATIENCE / 2 + CONNECT_SECONDS
        assert ranks.channels[0].ask(QUESTION_OF_TEST, [1], PATIENCE)[1].result == b"\1"
    finally:
        for channel in ranks.channels:
            channel.close()
