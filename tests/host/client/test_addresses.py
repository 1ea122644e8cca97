# SPDX-License-Identifier: Apache-2.0
"""Addresses by which not all ranks of a plan can reach each other: named before the first connection, on every rank."""

from __future__ import annotations

import pytest

from netfold.host.client.addresses import problem
from netfold.host.client.plans import check_plan
from netfold.host.errors import PlanError
from netfold.wire.plan import Peer, Plan


def peers(*listeners: str) -> list[Peer]:
    """Ranks that listen there, at these addresses of the fabric."""
    return [Peer(rank, at.rpartition(":")[0], at) for rank, at in enumerate(listeners)]


@pytest.mark.parametrize(("listeners", "rank", "words"), [
    (["127.0.1.1:4000", "10.0.0.2:4000"], 0, "rank 0 is at 127.0.1.1, a loopback address, which only its own machine "
                                             "reaches, and rank 1 elsewhere, at 10.0.0.2"),
    (["10.0.0.1:4000", "10.0.0.2:4000", "127.0.0.1:1"], 2, "rank 2 is at 127.0.0.1, a loopback address"),
    (["169.254.3.4:4000", "10.0.0.2:4000"], 0, "rank 0 is at 169.254.3.4, a link-local address"),
    (["10.0.0.1:4000", "0.0.0.0:4000"], 1, "got 0.0.0.0, which is no machine's address"),
    (["10.0.0.1:4000", "0.1.2.3:4000"], 1, "got 0.1.2.3, which is no machine's address"),
    (["224.0.0.2:4000", "10.0.0.2:4000"], 0, "got 224.0.0.2, a multicast address"),
    (["255.255.255.255:4000", "10.0.0.2:4000"], 0, "got 255.255.255.255, which is no machine's address"),
    (["240.0.0.1:4000", "10.0.0.2:4000"], 0, "got 240.0.0.1, which is no machine's address"),
    (["10.0.0.1:0", "10.0.0.2:4000"], 0, "a port within 1..65535, got '10.0.0.1:0'"),
    (["10.0.0.1:4000", "10.0.0.2:65536"], 1, "a port within 1..65535, got '10.0.0.2:65536'"),
    (["10.0.0.1:4000", "10.0.0.2:"], 1, "expected ADDRESS:PORT"),
    (["10.0.0.1:4000", "10.0.0.2:-1"], 1, "expected ADDRESS:PORT"),
    (["10.0.0.1:4000", "[fd00::2]:4000"], 1, "expected an IPv4 address, got '[fd00::2]'"),
    (["10.0.0.1:4000", "host2:4000"], 1, "expected an IPv4 address, got 'host2'"),
    (["10.0.0.1:4000", "10.0.0.256:4000"], 1, "expected an IPv4 address, got '10.0.0.256'"),
    (["10.0.0.1:4000", "10.0.0.2:4000", "10.0.0.1:4000"], 2, "ranks 0 and 2 both listen at 10.0.0.1:4000"),
])
def test_every_rank_hears_of_an_address_that_not_all_reach(listeners: list[str], rank: int, words: str) -> None:
    """The same words on each, with the rank whose address it is and the variable that sets it."""
    said = set()
    for mine in range(len(listeners)):
        with pytest.raises(PlanError) as caught:
            check_plan(Plan("j", 1, mine, len(listeners), peers(*listeners), []))
        said.add(str(caught.value).partition(f"for rank {mine}: ")[2])
    (said_by_all,) = said
    assert words in said_by_all
    assert f"set NETFOLD_ADDRESS of rank {rank} to the address that the other ranks reach" in said_by_all


@pytest.mark.parametrize("listeners", [
    ["127.0.0.1:4000", "127.0.0.1:4001"], ["127.0.0.1:4000", "127.3.2.1:4000"], ["169.254.0.1:1", "169.254.0.2:1"],
    ["10.0.0.1:4000", "10.0.0.1:4001", "192.168.7.1:65535"], ["127.0.1.1:4000"], ["8.8.8.8:1", "100.64.0.1:1"],
])
def test_addresses_of_one_kind_are_good(listeners: list[str]) -> None:
    """All loopback on one machine, all on one link, several ranks on a machine; and a rank alone needs none."""
    check_plan(Plan("j", 1, 0, len(listeners), peers(*listeners), []))


def test_the_address_of_the_fabric_counts_beside_that_of_the_listener() -> None:
    """Packets to be folded go there, whatever TCP does."""
    assert "got '10.0.0.300'" in problem([Peer(0, "10.0.0.1", "10.0.0.1:1"), Peer(1, "10.0.0.300", "10.0.0.2:1")])


@pytest.mark.parametrize(("listeners", "machines", "words"), [
    (["127.0.1.1:4000", "127.0.1.1:4001"], ["a", "b"], "rank 0 is at 127.0.1.1, a loopback address, which only its own "
                                                       "machine reaches, and rank 1 elsewhere, at 127.0.1.1"),
    (["127.0.0.1:1", "127.0.0.1:2", "127.0.0.2:3"], ["a", "a", "b"], "rank 0 is at 127.0.0.1, a loopback address"),
    (["172.17.0.2:4000", "172.17.0.3:1", "172.17.0.2:4001"], ["a", "b", "c"],
     "ranks 0 and 2 have one address, 172.17.0.2, on different machines: set NETFOLD_ADDRESS of rank 0 and rank 2"),
    (["127.0.0.1:1", "127.0.0.1:2"], ["a", "a"], ""),
    (["127.0.0.1:1", "172.17.0.2:2"], ["a", "a"], ""),
    (["127.0.0.1:1", "127.0.0.1:2"], ["a", "?"], ""),
    (["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"], ["a", "a", "b"], ""),
])
def test_one_address_on_different_machines_is_named(listeners: list[str], machines: list[str], words: str) -> None:
    """Where the ranks say in which network they are: both at 127.0.1.1 would each connect to itself."""
    found = problem(peers(*listeners), machines)
    assert words in found
    assert bool(found) is bool(words)
