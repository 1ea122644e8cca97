# SPDX-License-Identifier: Apache-2.0
"""The packet format is defined in several languages, which these tests compare with each other."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.fabric.routing import room
from netfold.wire import jobs, roce
from support import needs
from support.p4.program import p4_defines

ROOT = Path(__file__).resolve().parents[2]


def c_define(source: str, name: str) -> int:
    """The number that a C source defines by this name."""
    found = re.search(rf"^#define {name} (\w+)", source, re.M)
    assert found, f"no #define {name}"
    return int(found[1], 0)


def test_p4_sizes_equal_the_python_ones() -> None:
    """p4src/sizes.p4 and wire/roce.py name the same numbers."""
    p4 = p4_defines()
    assert p4["PATH_MTU"] == roce.PATH_MTU
    assert [p4[name] for name in ("ROUTES", "LEAVES")] == [room.ROUTES, room.LEAVES]
    assert p4["ROCE_PORT"] == roce.UDP_PORT
    matched = [port for port in range(1 << 16) if port & p4["ROCE_PORTS_MASK"] == p4["ROCE_PORTS"]]
    assert matched == list(roce.UDP_PORTS)
    assert max(matched) < 32768, "the least port that kernels choose by themselves"
    assert [p4[name] for name in ("PATH_PORT", "TCP_PATH_PORT", "TCP_SAME_PATH")] == [
        roce.PATH_PORT, roce.TCP_PATH_PORT, roce.TCP_SAME_PATH]
    for opcode in roce.Opcode:
        assert p4[opcode.name.replace("IMMEDIATE", "IMM")] == opcode
    for opcode in (
        roce.Opcode.WRITE_FIRST,
        roce.Opcode.WRITE_MIDDLE,
        roce.Opcode.WRITE_LAST,
        roce.Opcode.WRITE_ONLY,
    ):
        length = p4["UDP_LEN_RETH" if opcode.has_reth else "UDP_LEN_DATA"]
        assert length == roce.UDP_BYTES + roce.data_packet_bytes(opcode)
    assert p4["UDP_LEN_PRESENCE"] == roce.UDP_BYTES + roce.PRESENCE_BYTES
    headers = {name: p4[name] for name in ("UDP_BYTES", "BTH_BYTES", "RETH_BYTES", "ICRC_BYTES")}
    assert headers == {name: getattr(roce, name) for name in headers}
    assert p4["PSN_HALF"] * 2 == 1 << p4["PSN_BITS"] == roce.PSN_MASK + 1
    assert p4["ORDER_BITS"] == roce.ORDER_BITS
    assert p4["ECN_CE"] == roce.ECN_CE
    assert (p4["PKEY_DEFAULT"], p4["PKEY_WINDOWED"]) == (roce.PKEY, roce.PKEY_WINDOWED)
    network = ipaddress.IPv4Network(roce.FOLD_NETWORK)
    assert (p4["FOLD_NETWORK"], p4["FOLD_NETMASK"]) == (int(network.network_address), int(network.netmask))
    assert (p4["SYNDROME_ACK"], p4["SYNDROME_RNR"], p4["SYNDROME_NAK"]) == (
        roce.ACKNOWLEDGED, roce.RECEIVER_NOT_READY, roce.NAK_SEQUENCE_ERROR)
    assert p4["OPERATION_BITS"] == roce.OPERATION_BITS
    operations = {op.name: op.value for op in roce.LaneOperation}
    assert {name: p4[f"OP_{name}"] for name in operations} == operations
    assert max(operations.values()) == p4["OP_LAST"] < roce.QUEUE_PAIRS


def test_c_sizes_equal_the_python_ones() -> None:
    """host/native and wire/roce.py name the same numbers."""
    lanes, rc, own, quantise = (
        (ROOT / "host" / "native" / name).read_text() for name in ("lanes.h", "rc.h", "roce.h", "quantise.h"))
    assert c_define(lanes, "NF_BLOCK") == roce.BLOCK
    assert c_define(own, "NF_ORDER_BITS") == roce.ORDER_BITS
    assert c_define(rc, "NF_RC_ACKNOWLEDGE") == roce.Opcode.ACKNOWLEDGE
    assert c_define(quantise, "NF_MAX_WORLD") == jobs.MAX_WORLD


@settings(max_examples=25)  # scapy takes ten milliseconds for one
@given(st.binary(min_size=0, max_size=64), st.integers(0, 0xFFFF), st.integers(0, roce.PSN_MASK), st.integers(0, 255))
def test_icrc_equals_scapys(payload: bytes, ip_id: int, psn: int, ttl: int) -> None:
    """Our plain ICRC and scapy's independent one agree on any packet, with and without RETH."""
    scapy = pytest.importorskip("scapy.all", reason=needs.reason("scapy"))
    from scapy.contrib.roce import BTH

    from support.models.scapy_roce import RETH

    head = scapy.IP(src="10.0.1.1", dst="10.0.2.1", id=ip_id, ttl=ttl, flags="DF") / scapy.UDP(sport=50000, dport=4791)
    for inner in (
        BTH(opcode=int(roce.Opcode.WRITE_MIDDLE), dqpn=77, psn=psn),
        BTH(opcode=int(roce.Opcode.WRITE_FIRST), dqpn=77, psn=psn) / RETH(address=4096, rkey=1, length=9),
    ):
        packet = bytes(head / inner / payload)
        assert roce.icrc(packet[:-4]) == packet[-4:]


@given(st.integers(0, roce.PSN_MASK), st.integers(-(1 << 23), (1 << 23) - 1))
def test_psn_age_undoes_addition_across_the_wrap(psn: int, distance: int) -> None:
    """A PSN moved by any distance under half the range has exactly that age."""
    assert roce.psn_age((psn + distance) & roce.PSN_MASK, psn) == distance


def test_messages_survive_json_and_refuse_what_is_not_theirs() -> None:
    """A Join comes back equal, and an unknown or ill-typed field is an error that names it."""
    join = jobs.Join(job="a", world=2, rank=0, address="10.0.1.1", tcp="10.0.1.1:1", path_mtu=1024)
    assert msgspec.json.decode(msgspec.json.encode(join), type=jobs.Join) == join
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.json.decode(b'{"job":"a","colour":1}', type=jobs.Join)
    with pytest.raises(msgspec.ValidationError, match=r"\$\.rank"):
        msgspec.json.decode(msgspec.json.encode(join).replace(b'"rank":0', b'"rank":"zero"'), type=jobs.Join)
