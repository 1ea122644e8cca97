# SPDX-License-Identifier: Apache-2.0
"""The switch process on real interfaces: frames in, the same frames out, as super-packets or singly."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from softswitch.engine.entities import Event, EventKind
from softswitch.engine.errors import AlreadyExists, NotFound, OutOfRange
from softswitch.p4runtime import watchdog
from softswitch.p4runtime.process import Limit, Port, Settings, SwitchProcess
from switch_support.insides import over_socket
from switch_support.namespace import in_own_network, inside, sh
from switch_support.ports import BOUND, IP, IP6, Tap, make_hosts, read_pcap, switch, udp, wait_for
from switch_support.switch import probe_executable

SEGMENT = 1058


def _payloads(seed: int, n: int, size: int = SEGMENT) -> list[bytes]:
    print(f"seed {seed}")
    draw = random.Random(seed)
    return [draw.randbytes(size) for _ in range(n)]


@in_own_network
def test_single_frames_pass_unchanged(tmp_path: Path) -> None:
    """A frame that enters port 1 leaves port 2 byte for byte, from the shortest frame to the longest."""
    make_hosts(mtu=9500)
    out, into = Tap("h2"), Tap("h1")
    frames = [
        bytes.fromhex("000000020002000000010001 88b5".replace(" ", "")) + os.urandom(n)
        for n in (0, 1, 46, 100, 1486, 1500, 8210, 9500)
    ]
    with switch():
        for frame in frames:
            into.send(frame)
        assert out.take(len(frames)) == frames


@in_own_network
def test_what_others_send_out_of_an_interface_is_not_the_switchs_unless_asked_for() -> None:
    """BMv2 takes such frames as if they had come in; its stand-ins do so, and never take what they send themselves."""
    make_hosts()
    frame = bytes.fromhex("00000002000200000001000188b5") + b"from the machine of the switch".ljust(50)
    out = Tap("h2")
    machine = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    machine.bind(("s1", 0))
    with switch(like_bmv2=True) as process:
        machine.send(frame)
        assert out.take(1) == [frame]
        assert [(p.received, p.sent) for p in process.ports()] == [(1, 0), (0, 1)]
    with switch() as process:
        machine.send(frame)
        Tap("h1").send(frame[:-1] + b"!")
        assert out.take(1) == [frame[:-1] + b"!"]
        assert process.ports()[0].received == 1


@in_own_network
@pytest.mark.parametrize("join", [True, False])
def test_a_super_packet_arrives_as_its_segments(join: bool) -> None:
    """A host's 48-segment send reaches the other host's socket in order and whole, joined by the switch or not."""
    make_hosts()
    payloads = _payloads(1, 48)
    receiver = udp("h2", port=7000)
    sender = udp("h1", segment=SEGMENT)
    with switch(join=join) as process:
        sender.sendto(b"".join(payloads) + b"the end", (IP["h2"], 7000))
        got = [receiver.recv(2000) for _ in range(49)]
        assert got == [*payloads, b"the end"]
        one, two = process.ports()
        assert (one.super_packets_in, one.received) == (1, 49)
        assert two.sent == 49
        assert two.super_packets_out == (1 if join else 0)


@in_own_network
def test_joining_changes_no_byte_on_the_wire(tmp_path: Path) -> None:
    """Where the kernel cuts what was joined, the wire shows what single sends show and what the program wrote."""
    make_hosts()
    sh("ethtool -K s2 tx off tso off gso off")  # so the kernel cuts at s2, not the receiver
    payloads = _payloads(2, 40)
    seen = {}
    for join in (True, False):
        folder = tmp_path / str(join)
        folder.mkdir()
        sender = udp("h1", port=6000, segment=SEGMENT)
        sender.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO: IDs count from 0
        with switch(join=join, pcap=folder) as process:
            tap = Tap("h2")
            sender.sendto(b"".join(payloads[:30]), (IP["h2"], 7000))
            sender.sendto(b"".join(payloads[30:]) + b"short", (IP["h2"], 7000))
            seen[join] = tap.take(41)
            assert process.ports()[1].super_packets_out == (2 if join else 0)
        assert read_pcap(folder / "s2_out.pcap") == seen[join]
        assert read_pcap(folder / "s1_in.pcap") == seen[join]
        sender.close()
    assert seen[True] == seen[False]


@in_own_network
def test_without_virtio_headers_single_packets_pass_with_right_checksums() -> None:
    """On kernels without PACKET_VNET_HDR partial checksums are completed, so that receivers that check them agree."""
    make_hosts()
    tap = Tap("h2")
    receiver, sender = udp("h2", port=7000), udp("h1")
    with switch(vnet=False) as process:
        sender.sendto(b"x" * 1001, (IP["h2"], 7000))
        assert receiver.recv(2000) == b"x" * 1001
        (frame,) = tap.take(1)
        assert _udp_checksum_is_right(frame)
        assert not process.ports()[0].vnet


def _udp_checksum_is_right(frame: bytes) -> bool:
    data = frame[26:34] + b"\0\x11" + frame[38:40] + frame[34:]
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


@in_own_network
@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_tcp_streams_pass_intact(family: socket.AddressFamily, join: bool) -> None:
    """Ordinary TCP with offloads on, both directions at once, arrives whole; its super-packets are cut and joined."""
    make_hosts(ipv6=family == socket.AF_INET6)
    address = IP["h2"] if family == socket.AF_INET else IP6["h2"]
    data = random.Random(3).randbytes(8 << 20)
    with inside("h2"):
        listener = socket.create_server((address, 7000), family=family)
    listener.settimeout(BOUND)

    def echo() -> None:
        connection, _ = listener.accept()
        connection.settimeout(BOUND)
        while part := connection.recv(1 << 16):
            connection.sendall(part)
        connection.close()

    echoing = threading.Thread(target=echo, daemon=True)
    with switch(join=join) as process:
        echoing.start()
        with inside("h1"):
            client = socket.create_connection((address, 7000), timeout=BOUND)
        got = bytearray()

        def read() -> None:
            while part := client.recv(1 << 16):
                got.extend(part)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        reading.join(2 * BOUND)
        echoing.join(BOUND)
        assert bytes(got) == data
        ports = process.ports()
        assert all(p.super_packets_in > 0 and p.malformed == 0 for p in ports)
        assert all((p.super_packets_out > 0) == join for p in ports)


@in_own_network
def test_vlan_tags_stay_in_the_frame(tmp_path: Path) -> None:
    """The kernel takes a VLAN tag out of a received frame; the switch puts it back, in super-packets' segments too."""
    make_hosts()
    into = Tap("h1")
    single = bytes.fromhex("0000000200020000000100018100200588b5") + bytes(100)
    header = bytes.fromhex(
        "0000000200020000000100018100a0070800450003ff12344000401100000a0000010a00000217701b5803eb0000"
    )
    with switch(pcap=tmp_path) as process:
        into.send(single)
        into.send_super(
            header + b"a" * 500 + b"b" * 500 + b"c" * 7, gso_type=5, gso_size=500, csum_start=38, csum_offset=6
        )
        wait_for(lambda: process.ports()[1].sent == 4)
    first, *segments = read_pcap(tmp_path / "s2_out.pcap")
    assert first == single
    assert [f[:18] for f in segments] == [header[:18]] * 3
    assert [f[46:] for f in segments] == [b"a" * 500, b"b" * 500, b"c" * 7]
    assert [int.from_bytes(f[22:24], "big") for f in segments] == [0x1234, 0x1235, 0x1236]
    assert all(_udp_checksum_is_right(f[:12] + f[16:]) for f in segments)


@in_own_network
def test_a_capture_is_a_new_file_in_the_place_of_a_link(tmp_path: Path) -> None:
    """Where others may write, a link may lie in the capture's place: what it names keeps its content."""
    make_hosts()
    (tmp_path / "precious").write_text("old")
    (tmp_path / "s2_out.pcap").symlink_to(tmp_path / "precious")
    with switch(pcap=tmp_path) as process:
        Tap("h1").send(bytes.fromhex("00000002000200000001000188b5") + bytes(100))
        wait_for(lambda: process.ports()[1].sent == 1)
    assert (tmp_path / "precious").read_text() == "old"
    assert len(read_pcap(tmp_path / "s2_out.pcap")) == 1


@in_own_network
def test_a_capture_is_written_to_a_pipe_that_is_there(tmp_path: Path) -> None:
    """Somebody reads there, as Wireshark does."""
    make_hosts()
    os.mkfifo(tmp_path / "s2_out.pcap")
    reader = os.open(tmp_path / "s2_out.pcap", os.O_RDONLY | os.O_NONBLOCK)
    with switch(pcap=tmp_path) as process:
        Tap("h1").send(bytes.fromhex("00000002000200000001000188b5") + bytes(100))
        wait_for(lambda: process.ports()[1].sent == 1)
    (tmp_path / "read").write_bytes(os.read(reader, 1 << 16))
    os.close(reader)
    assert len(read_pcap(tmp_path / "read")) == 1


@in_own_network
def test_shaped_links_queue_and_drop_the_newest() -> None:
    """At a slow link frames wait in the port's queue; what does not fit is counted, and what leaves keeps its order."""
    make_hosts()
    sh("tc qdisc add dev s2 root tbf rate 20mbit burst 5000 limit 10000")
    tap, into = Tap("h2"), Tap("h1")
    head = bytes.fromhex("00000002000200000001000188b5")
    frames = [head + i.to_bytes(4, "big") + bytes(1000) for i in range(2000)]
    with switch(queue=64) as process:
        for frame in frames:
            into.send(frame)
        wait_for(lambda: (p := process.ports())[1].waiting == 0 and p[0].received == len(frames))
        out = process.ports()[1]
        assert out.dropped_full > 0
        assert out.sent + out.dropped_full == len(frames)
        got = tap.take(out.sent)
    assert len(got) == out.sent
    numbers = [int.from_bytes(f[14:18], "big") for f in got]
    assert numbers == sorted(numbers)


@in_own_network
def test_interfaces_may_go_down_and_vanish_and_come_back() -> None:
    """The switch reports it, goes on with the other ports, and uses an interface again that comes back by name."""
    make_hosts()
    texts: list[str] = []
    ports: list[tuple[int, bool]] = []
    frame = bytes.fromhex("00000002000200000001000188b5") + bytes(100)
    back = bytes.fromhex("00000001000100000002000288b5") + bytes(100)
    into = Tap("h1")

    def heard(event: Event) -> None:
        if event.kind is EventKind.PORT:
            ports.append((event.id, any(event.data)))
        else:
            texts.append(event.data.decode())

    with switch(on_event=heard) as process:
        wait_for(lambda: (1, True) in ports and (2, True) in ports)
        ports.clear()
        sh("ip link set s2 down")
        wait_for(lambda: "port 2 (s2) is down" in texts)
        wait_for(lambda: ports == [(2, False)])
        into.send(frame)
        wait_for(lambda: process.ports()[1].dropped_down == 1)
        sh("ip link set s2 up")
        wait_for(lambda: "port 2 (s2) is up" in texts)
        out = Tap("h2")
        into.send(frame)
        assert out.take(1) == [frame]
        sh("ip link del s2")
        wait_for(lambda: "port 2 (s2) is gone" in texts)
        into.send(frame)
        sh("ip link add s2 type veth peer name eth0 netns h2 address 00:00:00:02:00:02")
        sh(
            "sysctl -qw net.ipv6.conf.s2.disable_ipv6=1; ip netns exec h2 sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1"
        )
        sh("ip link set s2 up; ip netns exec h2 ip link set eth0 up")
        wait_for(lambda: process.ports()[1].up)
        wait_for(lambda: [up for _, up in ports] == [False, True, False, True])
        assert {port for port, _ in ports} == {2}
        again = Tap("h2")
        again.send(back)
        assert into.take(1) == [back]
        into.send(frame)
        assert again.take(1) == [frame]


@in_own_network
def test_a_port_whose_frames_wait_for_the_kernel_sends_them_after_its_link_was_down() -> None:
    """Frames that the kernel did not take before the link went down leave once it takes frames again."""
    make_hosts()
    sh("ip link set s2 down && ip link set s2 name u2 && ip link set u2 up")
    sh("ip link add s2 link u2 type macvlan mode passthru && ip link set s2 up")  # goes down, and keeps u2's frames
    sh("tc qdisc add dev u2 root tbf rate 8kbit burst 3000 limit 3000000")
    into, texts = Tap("h1"), list[str]()

    def heard(event: Event) -> None:
        if event.kind is EventKind.LOG:
            texts.append(event.data.decode())

    with switch(on_event=heard) as process:
        for _ in range(600):
            into.send(_to_port_2(bytes(1400)))
        wait_for(lambda: process.ports()[0].received == 600 and process.ports()[1].waiting > 0)
        sh("ip link set s2 down")
        wait_for(lambda: "port 2 (s2) is down" in texts)
        sh("ip link set s2 up")
        wait_for(lambda: "port 2 (s2) is up" in texts)
        sh("tc qdisc del dev u2 root")  # with what is in it
        wait_for(lambda: process.ports()[1].waiting == 0)


@in_own_network
@pytest.mark.parametrize("frames", [0, 300])
def test_a_port_receives_from_an_interface_that_was_replaced_before_it_looked(frames: int) -> None:
    """The socket of the new interface is watched, whether a change of links or a flush is the first to notice."""
    make_hosts()
    into = Tap("h1")
    with mock.patch.object(watchdog, "SILENCES", 10**9), switch() as process:
        os.kill(process.pid, signal.SIGSTOP)
        for _ in range(frames):
            into.send(_to_port_2(b"to a port that is gone"))
        sh("ip link del s2 && ip link add s2 type veth peer name eth0 netns h2 && ip link set s2 up")
        sh("ip netns exec h2 ip link set eth0 up")
        os.kill(process.pid, signal.SIGCONT)
        out = Tap("h2")

        def hears() -> bool:
            out.send(_to_port_2(b"from the new one"))
            return process.ports()[1].received > 0

        wait_for(hears)


def _asks(sock: socket.socket) -> bool:
    """True if the process has not read all requests."""
    return any(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))


@in_own_network
def test_a_request_sees_what_frames_that_came_before_it_did() -> None:
    """However late the process is: what has arrived is handled before what the control plane asks."""
    make_hosts()
    into = Tap("h1")
    with mock.patch.object(watchdog, "SILENCES", 10**9), switch() as process, ThreadPoolExecutor(1) as pool:
        count = process.engine.counter("I.count")
        for frames in range(1, 11):
            os.kill(process.pid, signal.SIGSTOP)
            into.send(bytes([13, 1]) + bytes(62))  # COUNT in cell 1
            answer = pool.submit(process.engine.read_counter, count, 1, 1)
            wait_for(lambda: _asks(over_socket(process.engine).sock))
            os.kill(process.pid, signal.SIGCONT)
            assert answer.result(BOUND)[0].packets == frames


@in_own_network
def test_ports_start_without_an_interface_that_has_vanished_until_it_is_back() -> None:
    """A program that takes over does not fail by it, as the old one is gone by then."""
    make_hosts()
    process = SwitchProcess(probe_executable(), Settings((Port(1, "s1"), Port(2, "s2"))))
    sock = over_socket(process.engine).sock
    try:
        with mock.patch.object(watchdog, "SILENCES", 10**9), ThreadPoolExecutor(1) as pool:
            os.kill(process.pid, signal.SIGSTOP)  # so that it hears of both at once
            started = pool.submit(process.start)
            wait_for(lambda: _asks(sock))
            sh("ip link del s2")
            os.kill(process.pid, signal.SIGCONT)
            started.result(BOUND)
        wait_for(lambda: not process.ports()[1].up)
        assert [port.up for port in process.ports()] == [True, False]
        sh("ip link add s2 type veth peer name eth0 netns h2 && ip link set s2 up")
        sh("ip netns exec h2 ip link set eth0 up")
        wait_for(lambda: process.ports()[1].up)
        out = Tap("h2")
        out.send(_to_port_2(b"back"))
        assert out.take(1) == [_to_port_2(b"back")]
    finally:
        process.close()


@in_own_network
def test_reports_that_nobody_reads_are_counted_and_reported() -> None:
    """A control plane that does not read loses packet-ins beyond a limit, and learns how many; frames still pass, and
    words of other kinds have room of their own: that a port went down is not among what was lost."""
    make_hosts()
    gate, packets = threading.Event(), list[int]()
    lost: dict[EventKind, int] = {}
    ports: dict[int, bool] = {}

    def slow(event: Event) -> None:
        if event.kind is EventKind.PORT:
            ports[event.id] = any(event.data)
            return  # told in answer to the start, which waits for this thread
        gate.wait(100)
        if event.kind is EventKind.LOST:
            lost[EventKind(event.id)] = int.from_bytes(event.data, "little")
        elif event.kind is EventKind.PACKET_IN:
            packets.append(event.id)

    into, out = Tap("h1"), Tap("h2")
    to_controller = bytes.fromhex("000001fe0002000000010001 88b5") + bytes(1480)
    to_h2 = bytes.fromhex("000000020002000000010001 88b5") + bytes(100)
    total = 12_000
    with switch(cpu_port=510, on_event=slow):
        for _ in range(total):  # no more than its socket's buffer holds, should it stand still
            into.send(to_controller)
        into.send(to_h2)
        assert out.take(1) == [to_h2]  # so all before it went through the pipeline
        assert ports == {1: True, 2: True}
        sh("ip link set s2 down")
        gate.set()
        wait_for(lambda: bool(lost) and ports == {1: True, 2: False})
        assert lost.keys() == {EventKind.PACKET_IN}
        assert lost[EventKind.PACKET_IN] > 0
        assert len(packets) + lost[EventKind.PACKET_IN] == total


@in_own_network
def test_an_idle_switch_uses_no_cpu() -> None:
    """Without packets the process does not wake up: the number of its context switches stays the same."""
    make_hosts()
    with switch() as process:
        process.ports()
        wait_for(lambda: "S (sleeping)" in _status(process.pid))  # it has answered, and may not have gone to bed yet
        before = _switches(process.pid)
        threading.Event().wait(0.5)
        assert _switches(process.pid) - before <= 3  # one that is stopped and goes on makes two by that


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def _switches(pid: int) -> int:
    return sum(int(line.split()[1]) for line in _status(pid).splitlines() if "ctxt_switches" in line)


def _to_port_2(text: bytes) -> bytes:
    return bytes.fromhex("00000002000200000001000188b5") + text.ljust(46, b".")


@in_own_network
def test_a_queue_is_limited_while_the_switch_runs() -> None:
    """At one frame a second the first leaves at once, the others wait, and what finds the queue full is dropped;
    without a limit they leave."""
    make_hosts()
    out, into = Tap("h2"), Tap("h1")
    frames: list[bytes] = []
    with switch() as process:
        began = time.monotonic()
        process.limit(2, Limit.RATE, 1)
        process.limit(2, Limit.DEPTH, 3)
        while not process.ports()[1].dropped_full:
            frames.append(_to_port_2(b"%d" % len(frames)))
            into.send(frames[-1])
            wait_for(lambda: process.ports()[0].received == len(frames))
        left = len(frames) - 1 - 3  # all but the one that was dropped and those that wait
        assert 1 <= left <= 1 + time.monotonic() - began
        assert out.take(1) == frames[:1]
        process.limit(None, Limit.RATE, 0)
        assert out.take(len(frames) - 2) == frames[1:-1]
        with pytest.raises(OutOfRange, match="--queue"):
            process.limit(2, Limit.DEPTH, 1 << 30)
        with pytest.raises(NotFound, match="port 3"):
            process.limit(3, Limit.RATE, 1)


@in_own_network
def test_ports_come_and_go_while_the_switch_runs() -> None:
    """A port that was removed receives and sends nothing, one that was added does both."""
    make_hosts()
    out, into = Tap("h2"), Tap("h1")
    with switch() as process:
        process.remove_port(2)
        into.send(_to_port_2(b"nobody's"))
        wait_for(lambda: process.ports()[0].received == 1)
        with pytest.raises(NotFound):
            process.remove_port(2)
        process.add_port(Port(2, "s2"))
        with pytest.raises(AlreadyExists):
            process.add_port(Port(2, "s2"))
        with pytest.raises(NotFound, match="nosuch"):
            process.add_port(Port(3, "nosuch"))
        into.send(_to_port_2(b"for port 2"))
        assert out.take(1) == [_to_port_2(b"for port 2")]
        assert [port.number for port in process.ports()] == [1, 2]
