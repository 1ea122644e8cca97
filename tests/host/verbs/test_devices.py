# SPDX-License-Identifier: Apache-2.0
"""RDMA devices as /sys/class/infiniband lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from netfold.host.errors import TransportError
from netfold.host.verbs import devices
from netfold.host.verbs.devices import described, fold_gid, port_of, ports

GIDS = {
    "0": ("fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
    "1": ("0000:0000:0000:0000:0000:ffff:0a00:0101", "IB/RoCE v1"),
    "2": ("0000:0000:0000:0000:0000:ffff:0a00:0101", "RoCE v2"),
    "3": ("0000:0000:0000:0000:0000:ffff:0a00:0101", "IB/RoCE v1"),
    "10": ("0000:0000:0000:0000:0000:ffff:c612:0001", "RoCE v2"),
    "11": ("0000:0000:0000:0000:0000:0000:0000:0000", None),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A device with one port on Ethernet, one on InfiniBand, and one whose counters cannot be read."""
    port = tmp_path / "rxe0" / "ports" / "1"
    for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "hw_counters"):
        (port / folder).mkdir(parents=True)
    (port / "link_layer").write_text("Ethernet\n")
    for index, (gid, kind) in GIDS.items():
        (port / "gids" / index).write_text(gid + "\n")
        if kind is not None:
            (port / "gid_attrs" / "types" / index).write_text(kind + "\n")
            (port / "gid_attrs" / "ndevs" / index).write_text("eth0\n")
    (port / "hw_counters" / "sent_pkts").write_text("12\n")
    (port / "hw_counters" / "completer_retry_err").write_text("3\n")
    other = tmp_path / "mlx4_0" / "ports" / "1"
    other.mkdir(parents=True)
    (other / "link_layer").write_text("InfiniBand\n")
    return tmp_path


def test_gids_of_ipv4_addresses_are_found_by_address(root: Path) -> None:
    """Those of RoCE v1, of IPv6 and empty places are none that a rank can use; places count in numbers, not in text."""
    (port,) = ports(root)
    assert {address: gid.index for address, gid in port.gids.items()} == {"10.0.1.1": 2, "198.18.0.1": 10}
    assert port_of("10.0.1.1", root) == port
    assert fold_gid(port, "10.0.1.1", "198.18.0.1").index == 10
    assert port.counters() == {"sent_pkts": 12, "completer_retry_err": 3}


def test_a_large_table_of_empty_places_is_read_by_a_few_calls(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has up to 1,024 places, of which a few are taken; of an empty one its GID alone is read.  A place that
    goes away meanwhile is passed over."""
    table = root / "rxe0" / "ports" / "1" / "gids"
    for index in range(12, 1024):
        (table / str(index)).write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    (table / "1023").unlink()
    (table / "1023").symlink_to("gone")
    read: list[str] = []
    monkeypatch.setattr(devices, "_text", lambda file: read.append(file.name) or file.read_text().strip())
    assert {gid.index for gid in port_of("10.0.1.1", root).gids.values()} == {2, 10}
    assert len(read) < 12, read


def test_what_is_missing_is_named_with_the_command_that_helps(root: Path, tmp_path: Path) -> None:
    """No device, no device with the address, no fold address: each says what to type."""
    with pytest.raises(TransportError, match="modprobe rdma_rxe"):
        port_of("10.0.1.1", tmp_path / "nothing")
    with pytest.raises(TransportError, match=r"no RDMA device has a RoCE v2 GID for the address 10\.0\.9\.9.*rxe0"):
        port_of("10.0.9.9", root)
    with pytest.raises(TransportError, match=r"ip addr add 198\.18\.0\.7/32 dev eth0"):
        fold_gid(ports(root)[0], "10.0.1.1", "198.18.0.7")


def test_all_devices_are_described_for_doctor(root: Path, tmp_path: Path) -> None:
    """With addresses, fold addresses and MTU; a machine without any is told so."""
    interfaces = tmp_path / "net"
    (interfaces / "eth0").mkdir(parents=True)
    (interfaces / "eth0" / "mtu").write_text("4200\n")
    assert described(root, interfaces) == (
        "rxe0 port 1: 10.0.1.1 on eth0, MTU 4200; 198.18.0.1 (fold address) on eth0, MTU 4200"
    )
    with pytest.raises(TransportError, match="names no RDMA device on Ethernet"):
        described(tmp_path / "nothing")
