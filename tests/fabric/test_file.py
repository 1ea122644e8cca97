# SPDX-License-Identifier: Apache-2.0
"""The fabric file: what is read is what was written, and what cannot be is refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netfold.fabric.file import dumps, load, loads
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import MAX_PORT, FabricError, bits_per_second, rate_in_words


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30), st.booleans())
def test_generated_fabrics_survive_the_file(leaves: int, spines: int, hosts: int, shaped: bool) -> None:
    """A generated fabric written as TOML reads back equal."""
    made = leafspine(leaves, spines, hosts, rate="2.5gbit" if shaped else None, loss=0.01 * shaped, seed=7, rdma=shaped)
    assert loads(dumps(made)) == made


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
@example("\U0001f680")
@example("a\x7f\r\n\\\"")
def test_any_text_survives_the_file(name: str) -> None:
    """Characters beyond U+FFFF and control characters, too: TOML escapes some of them unlike JSON."""
    made = msgspec.structs.replace(leafspine(1, 0, 2), name=name)
    assert loads(dumps(made)) == made


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 30))
def test_leafspine_follows_its_naming(leaves: int, spines: int, hosts: int) -> None:
    """Hosts come first on a leaf, in order and evenly over the leaves; port l of a spine leads to leaf l."""
    graph = leafspine(leaves, spines, hosts).graph()
    counts = []
    seen: list[str] = []
    for leaf in range(1, leaves + 1):
        by_port = {data["ports"][f"leaf{leaf}"]: (there, data["ports"][there])
                   for _, there, data in graph.edges(f"leaf{leaf}", data=True)}
        here = [by_port[port][0] for port in sorted(by_port) if by_port[port][0].startswith("h")]
        counts.append(len(here))
        seen += here
        assert [by_port[len(here) + spine] for spine in range(1, spines + 1)] == [
            (f"spine{spine}", leaf) for spine in range(1, spines + 1)]
    assert seen == [f"h{i}" for i in range(1, hosts + 1)]
    assert max(counts) - min(counts) <= 1


def test_unix_sockets_go_to_the_run_directory(tmp_path: Path) -> None:
    """With a run directory no TCP port is taken."""
    made = leafspine(2, 1, 2, rundir=tmp_path)
    assert made.jobs == f"unix:{tmp_path}/controller.sock"
    assert [s.grpc for s in made.switches] == [f"unix:{tmp_path}/{s.name}.sock" for s in made.switches]


GOOD = dumps(leafspine(2, 1, 2, loss=0.5, rate="1gbit"))


@pytest.mark.parametrize(("old", "new", "says"), [
    ('engine = "softswitch"', 'engine = "ovs"', ["fabric.engine", "ovs"]),
    ('role = "leaf"', 'role = "core"', ["switch", "role", "core"]),
    ("device_id = 1", 'device_id = "one"', ["lab.toml: switch[0].device_id: Expected `int`"]),
    ('role = "leaf"', 'rolle = "leaf"', ["lab.toml: switch[0]: ", "`rolle`", "expected one of name, role, device_id"]),
    ("[[host]]", "[[hosts]]", ["`hosts`", "expected one of fabric, switch, host, link"]),
    ("path_mtu = 4096", "path_mtu = 2048", ["path_mtu", "1024 or 4096", "2048"]),
    ('address = "10.0.1.1"', 'address = "10.0.1"', ["host[0].address", "'10.0.1'"]),
    ('address = "10.0.2.1"', 'address = "10.0.1.1"', ["host[1].address", "10.0.1.1", "host[0]"]),
    ('mac = "02:00:0a:00:01:01"', 'mac = "03:00:0a:00:01:01"', ["host[0].mac", "unicast"]),
    ('grpc = "127.0.0.1:50051"', 'grpc = "127.0.0.1"', ["switch[0].grpc", "HOST:PORT"]),
    ('grpc = "127.0.0.1:50051"', f'grpc = "unix:/{"x" * 120}"', ["switch[0].grpc", "107 bytes", "shorter"]),
    ('b = "h1:0"', 'b = "h9:0"', ["link[0]", "h9"]),
    ('b = "h1:0"', 'b = "h1"', ["link[0]", "NODE:PORT"]),
    ('a = "leaf1:1"', 'a = "leaf1:2"', ["leaf1:2", "link[0]"]),
    ('a = "leaf1:1"', 'a = "leaf1:510"', ["leaf1:510", "1..509"]),
    ("loss = 0.5", "loss = 1.5", ["link[0].loss", "1.5"]),
    ('rate = "1gbit"', 'rate = "fast"', ["link[0].rate", "fast"]),
    ('name = "h1"', 'name = "h1"\ncolour = "red"', ["host", "colour"]),
    ('address = "10.0.2.1"', 'address = "198.19.255.254"', ["host[1].address", "outside of 198.18.0.0/15", "rdma"]),
    ('address = "10.255.0.1"', 'address = "198.18.0.1"', ["switch[0].address", "outside of 198.18.0.0/15"]),
    ("rdma = false", 'rdma = "yes"', ["host[0].rdma", "`bool`"]),
    ("[fabric]", "[fabric", ["TOML"]),
])
def test_errors_name_field_expectation_and_value(old: str, new: str, says: list[str]) -> None:
    """A file with one fault is refused, and the message says where and what."""
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(FabricError) as caught:
        loads(text, "lab.toml")
    for word in ("lab.toml", *says):
        assert word in str(caught.value)


def test_hosts_with_rdma_have_fold_addresses_by_their_place() -> None:
    """The number in 198.18.0.0/15 is 1 + the host's place, whichever others have RDMA; the rest have none."""
    fabric = loads(dumps(leafspine(2, 1, 300, rdma=True)).replace("rdma = true", "rdma = false", 1))
    assert fabric.fold_addresses()[:3] == ["", "198.18.0.2", "198.18.0.3"]
    assert fabric.fold_addresses()[255] == "198.18.1.0"
    assert [fabric.fold_address(host) for host in fabric.hosts] == fabric.fold_addresses()


def test_two_switches_need_different_devices() -> None:
    """One P4Runtime address may serve several devices, but each once."""
    text = GOOD.replace("127.0.0.1:50052", "127.0.0.1:50051")
    assert len(loads(text).switches) == 3
    with pytest.raises(FabricError, match=r"share 127\.0\.0\.1:50051 and device_id 1"):
        loads(text.replace("device_id = 2", "device_id = 1"))


def test_a_fabric_in_pieces_is_refused() -> None:
    """Switches that no link connects are not one fabric."""
    blocks = GOOD.split("\n\n")
    kept = [block for block in blocks if "leaf2:2" not in block]
    with pytest.raises(FabricError, match=r"no \[\[link\]\]|falls apart"):
        loads("\n\n".join(kept))


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is a FabricError with its path."""
    with pytest.raises(FabricError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(("text", "bits", "words"), [
    ("1gbit", 10**9, "1 Gb/s"), ("2.5gbit", 25 * 10**8, "2.5 Gb/s"), ("100mbit", 10**8, "100 Mb/s"),
    ("64kbit", 64000, "64 kb/s"),
])
def test_rates_are_tcs(text: str, bits: int, words: str) -> None:
    """tc's units are powers of ten, and figures have the field's."""
    assert bits_per_second(text) == bits
    assert rate_in_words(text) == words


@pytest.mark.parametrize(("leaves", "spines", "hosts"), [(0, 1, 1), (2, 0, 4), (1, 1, 0), (1, 1, 255), (1, 510, 1)])
def test_impossible_leafspines_are_refused(leaves: int, spines: int, hosts: int) -> None:
    """No leaf, no spine between leaves, no host, too many of them."""
    with pytest.raises(FabricError, match="leafspine"):
        leafspine(leaves, spines, hosts)


def test_unknown_names_are_key_errors() -> None:
    """Looking up a name that is not there says so."""
    made = leafspine(1, 0, 2)
    assert made.node("h2") == made.host("h2") == made.host_at("10.0.1.2")
    with pytest.raises(KeyError, match="h3"):
        made.node("h3")
    assert made.host_at("10.9.9.9") is None
    assert MAX_PORT == 509


def test_a_standby_has_an_address_of_its_own() -> None:
    """It would take the jobs' address for its own otherwise, and nobody could tell the two controllers apart."""
    text = dumps(leafspine(1, 0, 1))
    with pytest.raises(FabricError, match=r"expected another address than fabric\.jobs"):
        loads(text.replace("[fabric]", f'[fabric]\nstandby = "{loads(text).jobs}"', 1))


@pytest.mark.parametrize(("old", "new"), [
    ('rate = "1gbit"', f'rate = "{"9" * 400}gbit"'), ('rate = "1gbit"', 'rate = "\u0661gbit"'),
    ('a = "leaf1:1"', f'a = "leaf1:{"9" * 5000}"'), ("[fabric]", "[fabric]\nseed = 1" + "0" * 30),
    ("[fabric]", "[fabric]\nseed = " + "9" * 5000), ("[fabric]", "[fabric]\nsteady = nan"),
    ("[fabric]", "[fabric]\nprobe = inf"), ("[fabric]", "[fabric]\nmisses = 1" + "0" * 30),
    ("[fabric]", "[fabric]\n" + "a." * 50_000 + "a = 1"), ("[fabric]", "[" + "'a' . " * 50_000 + "a]\n[fabric]"),
    ("[fabric]", "[fabric]\nx = " + "[" * 5000), ("device_id = 1", "device_id = 1" + "0" * 30),
])
def test_numbers_and_nests_beyond_all_bounds_are_errors_of_the_file(old: str, new: str) -> None:
    """Each is a FabricError, none an exception of Python's own."""
    text = dumps(leafspine(1, 0, 1, rate="1gbit"))
    text = text.replace("seed = 0\n", "").replace("steady = 2.0\n", "").replace("probe = 0.5\n", "")
    text = text.replace("misses = 5\n", "")
    assert old in text
    loads(text)
    with pytest.raises(FabricError):
        loads(text.replace(old, new, 1))
