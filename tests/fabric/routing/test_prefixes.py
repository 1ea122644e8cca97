# SPDX-License-Identifier: Apache-2.0
"""Prefixes that tell owners of addresses apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netfold.fabric.routing.prefixes import prefixes


@given(st.dictionaries(st.one_of(st.integers(0, 63), st.integers(0, 2**32 - 1)), st.sampled_from("abc"), max_size=40))
def test_each_address_is_in_its_owners_prefixes_alone(owners: dict[int, str]) -> None:
    """Whatever the addresses; no prefix lies in another, and none could be left out."""
    found = [(owner, prefix, length) for owner, some in prefixes(owners).items() for prefix, length in some]
    for address, owner in owners.items():
        (match,) = [who for who, prefix, length in found if prefix >> 32 - length == address >> 32 - length]
        assert match == owner
    for _, prefix, length in found:
        assert any(prefix >> 32 - length == address >> 32 - length for address in owners)
        assert prefix & (1 << 32 - length) - 1 == 0


def test_hosts_of_a_leaf_that_share_a_block_have_one_prefix() -> None:
    """The longest that holds them all."""
    assert prefixes({0x0A000101: "leaf1", 0x0A000102: "leaf1", 0x0A000201: "leaf2"}) == {
        "leaf1": [(0x0A000100, 30)], "leaf2": [(0x0A000201, 32)]}
