# SPDX-License-Identifier: Apache-2.0
"""Which source ports a rank's messages leave from: as planned, and others when a path is dead."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.mesh.source_ports import LEAST_PART, MOST_QUEUE_PAIRS, MessagePart, SourcePorts, WeightedPort
from netfold.wire.paths import PathPiece, Paths, Reach

PORTS = [61441, 61442, 61443, 61444]


def planned() -> SourcePorts:
    """Peer 1 shares this rank's leaf, 2 and 3 are under b, 4 under c; peer 2 has two pieces, 3 and 4 one."""
    source_ports = SourcePorts(PORTS, range(1, 5))
    pieces = [PathPiece(2, 0, 30, PORTS[0]), PathPiece(2, 30, 10, PORTS[1]), PathPiece(3, 0, 40, PORTS[0]),
              PathPiece(4, 0, 40, PORTS[0])]
    reaches = [Reach(1, "a", []), Reach(2, "b", PORTS), Reach(3, "b", PORTS), Reach(4, "c", PORTS)]
    source_ports.adopt(Paths(1, PORTS, pieces, reaches))
    return source_ports


def test_messages_are_split_as_planned() -> None:
    """Ports and weights are those of each peer's pieces; peers that nothing was planned for have none."""
    source_ports = planned()
    assert list(source_ports.weighted_ports(2)) == [WeightedPort(PORTS[0], 30), WeightedPort(PORTS[1], 10)]
    assert not source_ports.weighted_ports(1)
    assert source_ports.most_ports() == 2


def test_a_dead_path_is_left_to_all_peers_under_that_leaf() -> None:
    """Its pieces move, others stay, and so does what is sent to other leaves."""
    source_ports = planned()
    source_ports.suspect(2, PORTS[0])
    assert all(way.port != PORTS[0] for peer in (2, 3) for way in source_ports.weighted_ports(peer))
    assert source_ports.weighted_ports(2)[1] == WeightedPort(PORTS[1], 10)
    assert list(source_ports.weighted_ports(4)) == [WeightedPort(PORTS[0], 40)]
    assert source_ports.is_suspect(3, PORTS[0])
    assert not source_ports.is_suspect(4, PORTS[0])


@pytest.mark.parametrize(("size", "port"), [(0, PORTS[0]), (-40, PORTS[0]), (40, 22), (40, 70_000)])
def test_pieces_and_ports_that_make_no_sense_do_not_get_as_far(size: int, port: int) -> None:
    """Whatever the controller's answer says: weights that would cut a message beyond its ends, and ports that name no
    path, are refused as it is read."""
    answer = Paths(1, PORTS, [PathPiece(1, 0, size, port)], [Reach(1, "a", PORTS)])
    with pytest.raises(msgspec.ValidationError, match="pieces"):
        msgspec.json.decode(msgspec.json.encode(answer), type=Paths)


def test_what_leaves_a_dead_path_does_not_all_take_the_same_other_one() -> None:
    """Peers start at different ports."""
    source_ports = planned()
    source_ports.suspect(2, PORTS[0])
    assert source_ports.weighted_ports(2)[0].port != source_ports.weighted_ports(3)[0].port


def test_a_new_plan_clears_suspicions() -> None:
    """With a new plan the controller takes care of suspect paths."""
    source_ports = planned()
    source_ports.suspect(2, PORTS[0])
    source_ports.adopt(Paths(2, PORTS, [PathPiece(2, 0, 40, PORTS[0])], [Reach(2, "b", PORTS)]))
    assert list(source_ports.weighted_ports(2)) == [WeightedPort(PORTS[0], 40)]


def test_a_new_plan_cuts_messages_anew() -> None:
    """A message of a size that was split before is split by the weights of the new plan."""
    source_ports, nbytes = planned(), 8 * LEAST_PART
    before = source_ports.split(2, nbytes, lanes=2, mtu=1024)
    source_ports.adopt(Paths(2, PORTS, [PathPiece(2, 0, 20, PORTS[0]), PathPiece(2, 20, 20, PORTS[1])],
                             [Reach(2, "b", PORTS)]))
    after = source_ports.split(2, nbytes, lanes=2, mtu=1024)
    assert [part.last for part in before] == [6 * LEAST_PART, nbytes]
    assert [part.last for part in after] == [4 * LEAST_PART, nbytes]


def test_what_the_controller_says_meanwhile_holds_until_the_next_plan() -> None:
    """A path that the controller no longer lists is left for that leaf, also by what was split for it, and a late
    acknowledgement on it does not bring it back."""
    source_ports = planned()
    source_ports.restrict(Paths(2, PORTS, [], [Reach(1, "a", []), Reach(2, "b", PORTS[1:]), Reach(3, "b", PORTS[1:]),
                                     Reach(4, "c", PORTS)]))
    assert [way.weight for way in source_ports.weighted_ports(2)] == [30, 10]
    for late in (False, True):
        if late:
            source_ports.clear_suspicion(2, PORTS[0])
        assert all(way.port != PORTS[0] for peer in (2, 3) for way in source_ports.weighted_ports(peer))
        assert source_ports.usable_port(2, PORTS[0]) != PORTS[0]
        assert list(source_ports.weighted_ports(4)) == [WeightedPort(PORTS[0], 40)]
    source_ports.adopt(Paths(3, PORTS, [PathPiece(2, 0, 40, PORTS[0])], [Reach(2, "b", PORTS)]))
    assert list(source_ports.weighted_ports(2)) == [WeightedPort(PORTS[0], 40)]


def test_a_message_is_split_by_its_ports() -> None:
    """A message is split as planned, at packet boundaries; a short one stays whole, on one of its ports; peers under
    the same leaf have one lane, and without a plan all lanes are used."""
    source_ports = planned()
    assert source_ports.split(2, 64_000, lanes=4, mtu=1000) == [
        MessagePart(0, 0, 48_000),
        MessagePart(1, 48_000, 64_000),
    ]
    ((lane, first, last),) = source_ports.split(2, LEAST_PART, lanes=4, mtu=1000)
    assert (first, last) == (0, LEAST_PART)
    assert lane < 2
    assert source_ports.split(1, 1_000_000, lanes=4, mtu=1000) == [MessagePart(0, 0, 1_000_000)]
    bare = SourcePorts(PORTS, [1])
    assert {cut.lane for cut in bare.split(1, 1_000_000, lanes=4, mtu=1000)} == {0, 1, 2, 3}


@given(nbytes=st.integers(1, 2**32), lanes=st.integers(1, MOST_QUEUE_PAIRS), mtu=st.sampled_from([256, 1024, 4096]),
       weights=st.lists(st.integers(1, 10**6), max_size=4))
def test_parts_add_up_to_the_message(nbytes: int, lanes: int, mtu: int, weights: list[int]) -> None:
    """Parts are adjacent, none is empty, all but the last end at packet boundaries, and lanes exist."""
    source_ports = SourcePorts(PORTS, [1])
    source_ports.adopt(
        Paths(
            1,
            PORTS,
            [PathPiece(1, 0, weight, port) for weight, port in zip(weights, PORTS, strict=False)],
            [Reach(1, "b", PORTS)],
        )
    )
    cuts = source_ports.split(1, nbytes, lanes=lanes, mtu=mtu)
    assert [cut.first for cut in cuts] == [0, *(cut.last for cut in cuts[:-1])]
    assert cuts[-1].last == nbytes
    assert all(cut.first < cut.last and cut.first % mtu == 0 for cut in cuts)
    assert {cut.lane for cut in cuts} <= set(range(len(weights) or lanes))


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(PORTS)), max_size=20))
def test_there_is_always_a_port(stalls: list[tuple[int, int]]) -> None:
    """Whatever paths stall in whatever order, every message still leaves from one of the ports, in the parts of the
    plan; the path that stalled last is never taken, nor another suspect while one is not."""
    source_ports = planned()
    for peer, port in stalls:
        source_ports.suspect(peer, port)
        assert source_ports.usable_port(peer, port) != port
        assert [way.weight for way in source_ports.weighted_ports(2)] == [30, 10]
        assert all(way.port in PORTS for p in range(1, 5) for way in source_ports.weighted_ports(p))
        for p in range(2, 5):
            alive = [port for port in PORTS if not source_ports.is_suspect(p, port)]
            assert not alive or all(way.port in alive for way in source_ports.weighted_ports(p))


def test_where_all_are_suspect_the_one_blamed_longest_ago_is_next() -> None:
    """The path that was blamed longest ago is next; one that works takes everything."""
    source_ports = planned()
    for port in (*PORTS, *PORTS[:2]):
        source_ports.suspect(2, port)
    assert source_ports.usable_port(2, PORTS[1]) == PORTS[2]
    source_ports.clear_suspicion(3, PORTS[1])
    assert {source_ports.usable_port(peer, port) for peer in (2, 3) for port in PORTS} == {PORTS[1]}
    assert {way.port for peer in (2, 3) for way in source_ports.weighted_ports(peer)} == {PORTS[1]}
