# SPDX-License-Identifier: Apache-2.0
"""The handshake between ranks, against messages that are changed, cut, sent back, and sent again."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.job_secret import draw
from netfold.host.mesh.handshake import (
    CHALLENGE,
    HELLO,
    MAGIC,
    VERDICT,
    HandshakeRefused,
    Identity,
    Initiator,
    Outcome,
    Responder,
)
from netfold.wire.plan import Peer, Plan, Secret

SECRET = draw()
PEERS = [Peer(rank, "127.0.0.1", "127.0.0.1:1") for rank in range(4)]


def identity(rank: int, *, secret: Secret = SECRET, job: str = "j", epoch: int = 7, purpose: str = "mesh") -> Identity:
    """Rank ``rank`` of four."""
    return Identity.of_plan(Plan(job, epoch, rank, 4, PEERS, [], secret=secret), purpose)


def greet(responder: Responder, hello: bytes) -> bytes:
    """Passes a hello, in as many pieces as the responder takes.  Returns what it says."""
    said = b""
    while hello and responder.wanted:
        count = responder.wanted
        said += responder.receive(hello[:count])
        hello = hello[count:]
    return said


def prove(initiator: Initiator, responder: Responder, outcome: Outcome = Outcome.ACCEPTED) -> list[bytes]:
    """Runs a handshake to its end.  Returns the messages, in order."""
    challenge = greet(responder, initiator.hello)
    proof = initiator.receive(challenge)
    assert responder.receive(proof) == b""
    verdict = responder.verdict(outcome)
    assert initiator.receive(verdict) == b""
    return [initiator.hello, challenge, proof, verdict]


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.TAKEN, Outcome.CROSSED])
def test_ranks_of_one_job_prove_themselves_to_each_other(outcome: Outcome) -> None:
    """The responder learns who connected, the initiator what became of it, and neither takes a byte more."""
    initiator, responder = Initiator(identity(2), 1), Responder(identity(1))
    prove(initiator, responder, outcome)
    assert (responder.peer, initiator.outcome) == (2, outcome)
    assert (initiator.wanted, responder.wanted) == (0, 0)
    for side in (initiator, responder):
        with pytest.raises(ValueError, match="expected at most 0"):
            side.receive(b"x")


@given(st.lists(st.integers(1, 9), min_size=1), st.data())
def test_messages_may_arrive_in_any_pieces(sizes: list[int], data: st.DataObject) -> None:
    """TCP keeps no borders between messages: each side takes bytes as they come."""
    initiator, responder = Initiator(identity(0), 3), Responder(identity(3))
    wires = {True: bytearray(initiator.hello), False: bytearray()}
    turn = 0
    while initiator.outcome is None:
        to_responder = data.draw(st.booleans()) if all(wires.values()) else bool(wires[True])
        side = responder if to_responder else initiator
        count = min(sizes[turn % len(sizes)], len(wires[to_responder]), side.wanted)
        piece = bytes(wires[to_responder][:count])
        del wires[to_responder][:count]
        wires[not to_responder] += side.receive(piece)
        if side is responder and responder.peer is not None and not wires[False]:
            wires[False] += responder.verdict(Outcome.ACCEPTED)
        turn += 1
    assert responder.peer == 0


@pytest.mark.parametrize(
    "other", [
        {"secret": draw()}, {"job": "k"}, {"purpose": "out of band"},
    ], ids=["secret", "job", "purpose"],
)
def test_another_secret_job_or_purpose_is_found_by_both_sides(other: dict[str, object]) -> None:
    """The responder refuses the proof and says so; an initiator that is let in all the same refuses the verdict."""
    stranger = identity(2, **other)  # type: ignore[arg-type]
    initiator, responder = Initiator(stranger, 1), Responder(identity(1))
    proof = initiator.receive(responder.receive(initiator.hello))
    with pytest.raises(HandshakeRefused, match=r"rank 2, but does not know the job's secret.*same join"):
        responder.receive(proof)
    assert responder.peer is None
    with pytest.raises(HandshakeRefused, match=r"refuses this rank's proof.*same join"):
        initiator.receive(responder.refusal)

    initiator, responder = Initiator(identity(2), 1), Responder(identity(1, **other))  # type: ignore[arg-type]
    initiator.receive(responder.receive(initiator.hello))
    responder.peer = 2
    with pytest.raises(HandshakeRefused, match="does not prove that it knows the job's secret"):
        initiator.receive(responder.verdict(Outcome.ACCEPTED))


@pytest.mark.parametrize("hello", [
    HELLO.pack(b"netfold1", 7, 2, 1, 4, bytes(32)),
    HELLO.pack(MAGIC, 8, 2, 1, 4, bytes(32)),
    HELLO.pack(MAGIC, 7, 2, 0, 4, bytes(32)),
    HELLO.pack(MAGIC, 7, 2, 1, 5, bytes(32)),
    HELLO.pack(MAGIC, 7, 1, 1, 4, bytes(32)),
    HELLO.pack(MAGIC, 7, 4, 1, 4, bytes(32)),
    b"GET / HTTP/1.1\r\nHost: netfold.example\r\nAccept: */*\r\n\r\n".ljust(HELLO.size),
], ids=["version", "epoch", "to another", "world", "from itself", "no such rank", "another protocol"])
def test_a_hello_that_cannot_be_a_peers_is_refused_without_a_challenge(hello: bytes) -> None:
    """Nothing is computed and nothing is said to those who do not even look right."""
    responder = Responder(identity(1))
    with pytest.raises(HandshakeRefused):
        responder.receive(hello)
    assert responder.refusal == b""


@given(st.data())
def test_a_changed_bit_in_any_message_is_found(data: st.DataObject) -> None:
    """Whatever bit of whichever message is changed on the way, not both sides take the handshake for proven; and a
    changed hello, for messages or for a lane, challenge or proof is found by the responder."""
    initiator = Initiator(identity(2), 1, lane=data.draw(st.sampled_from([None, 0, 5])))
    responder = Responder(identity(1), lanes=True)
    which = data.draw(st.integers(0, 3))

    def through(number: int, message: bytes) -> bytes:
        if number != which:
            return message
        bit = data.draw(st.integers(0, 8 * len(message) - 1))
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    def shake() -> None:
        challenge = through(1, greet(responder, through(0, initiator.hello)))
        responder.receive(through(2, initiator.receive(challenge)))
        initiator.receive(through(3, responder.verdict(Outcome.ACCEPTED)))

    with pytest.raises(HandshakeRefused):
        shake()
    assert initiator.outcome is None
    assert (responder.peer is not None) == (which == 3), "the responder did not notice"


def test_the_lane_is_what_the_initiator_has_said() -> None:
    """Where lanes are taken, the responder learns which one it is; elsewhere such a hello is refused."""
    for lane in (None, 3):
        initiator, responder = Initiator(identity(2), 1, lane=lane), Responder(identity(1), lanes=True)
        prove(initiator, responder)
        assert (responder.peer, responder.lane, initiator.outcome) == (2, lane, Outcome.ACCEPTED)
    with pytest.raises(HandshakeRefused, match="no rank of this version"):
        Responder(identity(1)).receive(Initiator(identity(2), 1, lane=3).hello[: HELLO.size])


@given(st.sampled_from(["hello", "challenge", "proof", "verdict"]), st.integers(0, 75))
def test_cut_messages_prove_nothing(which: str, size: int) -> None:
    """A side that got part of a message waits for the rest, and is not proven."""
    initiator, responder = Initiator(identity(2), 1), Responder(identity(1))
    messages = prove(Initiator(identity(2), 1), Responder(identity(1)))
    at = ["hello", "challenge", "proof", "verdict"].index(which)
    piece = messages[at][: min(size, len(messages[at]) - 1)]
    if which in ("hello", "proof"):
        if which == "proof":
            responder.receive(initiator.hello)
        assert responder.receive(piece) == b""
    else:
        if which == "verdict":
            initiator.receive(responder.receive(initiator.hello))
        assert initiator.receive(piece) == b""
    assert responder.peer is None
    assert initiator.outcome is None


def test_a_recorded_handshake_cannot_be_replayed() -> None:
    """Neither to a responder nor to an initiator: the other side's nonce is new each time."""
    hello, challenge, proof, verdict = prove(Initiator(identity(2), 1), Responder(identity(1)))
    again = Responder(identity(1))
    assert again.receive(hello) != challenge
    with pytest.raises(HandshakeRefused, match="does not know"):
        again.receive(proof)
    initiator = Initiator(identity(2), 1)
    assert initiator.hello != hello
    initiator.receive(challenge)
    with pytest.raises(HandshakeRefused, match="does not prove"):
        initiator.receive(verdict)


def test_a_rank_cannot_be_made_to_answer_its_own_challenge() -> None:
    """Reflection: a stranger in between two connections of one rank gets proofs that count nowhere else.

    Rank 1 connects to the stranger, who passes for rank 0, and the stranger connects to rank 1 and passes for rank 0
    there: what rank 1 proves as initiator is no proof of a responder, nor of a rank 0.
    """
    victim_out, victim_in = Initiator(identity(1), 0), Responder(identity(1))
    magic, epoch, _, _, world, nonce = HELLO.unpack(victim_out.hello)
    challenge = victim_in.receive(HELLO.pack(magic, epoch, 0, 1, world, nonce))
    proof = victim_out.receive(challenge)
    with pytest.raises(HandshakeRefused, match="rank 0, but does not know"):
        victim_in.receive(proof)
    with pytest.raises(HandshakeRefused, match="does not prove"):
        victim_out.receive(VERDICT.pack(Outcome.ACCEPTED, proof))

    sent_back = Responder(identity(1))
    with pytest.raises(HandshakeRefused, match="says that it is rank 1"):
        sent_back.receive(Initiator(identity(1), 0).hello)


def test_a_proof_counts_for_its_own_pair_of_ranks_alone() -> None:
    """A proof for one rank proves nothing to another one."""
    initiator, other = Initiator(identity(2), 3), Responder(identity(1))
    _, epoch, _, _, world, nonce = HELLO.unpack(initiator.hello)
    proof = initiator.receive(other.receive(HELLO.pack(MAGIC, epoch, 2, 1, world, nonce)))
    with pytest.raises(HandshakeRefused):
        other.receive(proof)


@given(st.permutations(["hello", "challenge", "proof", "verdict"]))
def test_messages_in_another_order_prove_nothing(order: list[str]) -> None:
    """All messages of a handshake of the same two ranks, in any order, to each of them."""
    if order == ["hello", "challenge", "proof", "verdict"]:
        return
    messages = dict(zip(order, prove(Initiator(identity(2), 1), Responder(identity(1))), strict=True))
    for side in (Initiator(identity(2), 1), Responder(identity(1))):
        try:
            for name in order:
                for byte in messages[name]:
                    side.receive(bytes([byte])[: side.wanted])
        except HandshakeRefused:
            pass
        assert not (side.outcome if isinstance(side, Initiator) else side.peer)


@given(st.binary(max_size=200))
def test_what_a_stranger_makes_up_proves_nothing(said: bytes) -> None:
    """Bytes of any kind, to either side, also behind a hello that looks right, end in an error or in silence."""
    behind_hello = Responder(identity(1))
    behind_hello.receive(Initiator(identity(2), 1).hello)
    for side in (Responder(identity(1)), behind_hello, Initiator(identity(2), 1)):
        left = said
        with contextlib.suppress(HandshakeRefused):
            while left and side.wanted:
                left, now = left[side.wanted :], left[: side.wanted]
                side.receive(now)
        assert not (side.outcome if isinstance(side, Initiator) else side.peer)


def test_a_verdict_is_for_the_proven_and_a_refusal_is_never_taken_for_one() -> None:
    """A responder gives no proof to strangers; and an outcome that does not exist counts as none, although proven."""
    with pytest.raises(ValueError, match="before the other side has proven itself"):
        Responder(identity(1)).verdict(Outcome.ACCEPTED)
    initiator, responder = Initiator(identity(2), 1), Responder(identity(1))
    responder.receive(initiator.receive(responder.receive(initiator.hello)))
    with pytest.raises(HandshakeRefused, match="does not prove"):
        initiator.receive(responder.verdict(9))  # type: ignore[arg-type]


def test_what_answers_but_is_no_rank_is_named() -> None:
    """Another service on a rank's port."""
    with pytest.raises(HandshakeRefused, match="not as a rank of this version"):
        Initiator(identity(2), 1).receive(b"HTTP/1.1 400 Bad Request\r\n\r\n".ljust(CHALLENGE.size))


def test_the_key_is_not_shown() -> None:
    """An identity in an error or a log does not give the job away."""
    one = identity(2)
    assert one.key.hex() not in repr(one)
    assert repr(one.key) not in repr(one)
    assert replace(one, rank=3).key == one.key
