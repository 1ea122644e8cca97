# SPDX-License-Identifier: Apache-2.0
"""The file that lists the machines of a fabric."""

from __future__ import annotations

import pytest

from netfold.fabric.graph import FabricError
from netfold.fabric.placement.machine_list import ListedMachine, loads


def test_names_addresses_and_shares_are_read() -> None:
    """Comments and empty lines are none; a name without an address is looked up, without its user."""
    text = "# lab\nnode1\n\nroot@node2 address=10.1.0.2 share=3  # the big one\n"
    assert loads(text, resolve={"node1": "10.1.0.1"}.__getitem__) == [
        ListedMachine("node1", "10.1.0.1"), ListedMachine("root@node2", "10.1.0.2", 3),
    ]


@pytest.mark.parametrize(("text", "says"), [
    ("", "expected 1 to 256 machines"),
    ("-oProxyCommand=x address=10.0.0.1", "expected a name of letters"),
    ("a;b address=10.0.0.1", "expected a name of letters"),
    ("a address=10.0.0.256", "expected an IPv4 address"),
    ("a address=127.0.0.1", "that the other machines reach"),
    ("a address=10.0.0.1 share=0", "share=0"),
    ("a adress=10.0.0.1", "expected address=IPV4 or share=NUMBER"),
    ("a address=10.0.0.1\na address=10.0.0.2", "two machines have the name a"),
    ("a address=10.0.0.1\nb address=10.0.0.1", "two machines have the address 10.0.0.1"),
])
def test_what_is_no_list_is_refused_with_its_line(text: str, says: str) -> None:
    """Names that a shell or ssh would take for something else are among these."""
    with pytest.raises(FabricError, match=says):
        loads(text)
