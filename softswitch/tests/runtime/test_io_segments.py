# SPDX-License-Identifier: Apache-2.0
"""Cutting and joining super-packets, byte for byte, against an independent implementation and each other."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbuild import cc
from softswitch.engine.linking import RUNTIME

UDP4, TCP4, UDP6, TCP6 = range(4)
GSO = {UDP4: 5, UDP6: 5, TCP4: 1, TCP6: 4}
FIN, SYN, PSH, ACK, CWR = 0x01, 0x02, 0x08, 0x10, 0x80


class Vnet(ctypes.Structure):
    """The C struct ss_vnet."""

    _fields_ = [
        ("flags", ctypes.c_uint8),
        ("gso_type", ctypes.c_uint8),
        ("header_len", ctypes.c_uint16),
        ("gso_size", ctypes.c_uint16),
        ("csum_start", ctypes.c_uint16),
        ("csum_offset", ctypes.c_uint16),
    ]


class Frame(ctypes.Structure):
    """The C struct ss_frame."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("head", "ref", "tail")),
        *((name, ctypes.c_uint32) for name in ("head_len", "ref_len", "tail_len", "sum")),
    ]


class Segment(ctypes.Structure):
    """The C struct ss_segment."""

    _fields_ = [("bytes", ctypes.c_void_p), *((name, ctypes.c_uint32) for name in ("len", "stable", "sum"))]


class Super(ctypes.Structure):
    """The C struct ss_super."""

    _fields_ = [("vnet", Vnet), ("header_len", ctypes.c_uint32), ("header", ctypes.c_uint8 * 128)]


@functools.cache
def _library() -> ctypes.CDLL:
    path = cc.build(
        [RUNTIME / "segment.c", RUNTIME / "hash.c", "void ss_report(void) {}"],
        kind="shared",
        name="segment",
        include=[RUNTIME],
        flags=["-g"],
    )
    library = ctypes.CDLL(str(path))
    library.ss_cut_begin.restype = library.ss_join.restype = ctypes.c_uint32
    library.ss_cut_next.restype = ctypes.c_bool
    library.ss_sum16_of.restype = ctypes.c_uint16
    return library


NO_SUM = 0x10000


def cut(frame: bytes, vnet: Vnet) -> list[bytes]:
    """Cut a super-packet as a port does; an empty list where it is refused.

    What is told of each segment's bytes must hold: they stay as they are, and their sum is right.
    """
    segments: list[bytes] = []
    told: list[Segment] = []
    buffer = ctypes.create_string_buffer(frame, len(frame) + 1)
    why = ctypes.c_char_p()
    state = ctypes.create_string_buffer(1024)  # ss_cut
    n = _library().ss_cut_begin(state, buffer, len(frame), ctypes.byref(vnet), ctypes.byref(why))
    segment = Segment()
    while n and _library().ss_cut_next(state, ctypes.byref(segment)):
        segments.append(ctypes.string_at(segment.bytes, segment.len))
        told.append(Segment(segment.bytes, segment.len, segment.stable, segment.sum))
        _library().ss_cut_put_back(state)
    for t, whole in zip(told, segments, strict=True):
        assert ctypes.string_at(t.bytes + t.stable, t.len - t.stable) == whole[t.stable :]
        assert t.sum in (NO_SUM, ones_sum(whole[t.stable :]))
    assert n == len(segments)
    assert (n == 0) == (why.value is not None)
    return segments


def ones_sum(data: bytes) -> int:
    """The ones' complement sum, of which 0 stands for zeros alone."""
    return ~checksum(data) & 0xFFFF


def join(frames: list[bytes], mtu: int = 65535, seed: int | None = None, least: int = 0) -> tuple[int, bytes, Vnet]:
    """ss_join on the first frames: (how many, the super-packet, its description).

    With a seed the frames come in parts, the first of at least `least` bytes, with sums that are known or not.
    """
    rng = random.Random(seed)
    buffers = []
    array = (Frame * len(frames))()
    for i, frame in enumerate(frames):
        first, last = (0, 0) if seed is None else sorted(rng.randint(least, len(frame)) for _ in range(2))
        if seed is None or rng.random() < 0.2:
            first = last = len(frame)
        pieces = [frame[:first], frame[first:last], frame[last:]]
        buffers.append([ctypes.create_string_buffer(piece, len(piece) + 1) for piece in pieces])
        total = ones_sum(pieces[1]) if rng.random() < 0.7 else NO_SUM
        array[i] = Frame(*map(ctypes.addressof, buffers[-1]), *map(len, pieces), total)
    out = Super()
    taken = int(_library().ss_join(array, len(frames), mtu, ctypes.byref(out)))
    header = bytes(out.header[: out.header_len])
    return taken, header + b"".join(f[out.header_len :] for f in frames[:taken]), out.vnet


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


@dataclass(frozen=True)
class Packet:
    """A packet of one of four kinds, written out in full by `frame`."""

    kind: int
    payload: bytes
    ident: int = 0
    seq: int = 1
    flags: int = ACK
    ttl: int = 64
    source: int = 1000
    window: int = 500
    options: bytes = b""

    def frame(self, *, partial: bool = False) -> bytes:
        """The frame; with `partial`, the checksum that is left to the hardware (pseudo header only)."""
        if self.kind in (UDP4, UDP6):
            l4 = struct.pack(">HHHH", self.source, 4791, 8 + len(self.payload), 0)
            at, protocol = 6, 17
        else:
            words = 5 + len(self.options) // 4
            l4 = struct.pack(
                ">HHIIBBHHH", self.source, 80, self.seq % 2**32, 7, words << 4, self.flags, self.window, 0, 0
            )
            l4 += self.options
            at, protocol = 16, 6
        length = len(l4) + len(self.payload)
        if self.kind in (UDP4, TCP4):
            addresses = bytes([10, 0, 0, 1, 10, 0, 0, 2])
            pseudo = addresses + struct.pack(">HH", protocol, length)
            ip = (
                struct.pack(">BBHHHBBH", 0x45, 3, 20 + length, self.ident % 2**16, 0x4000, self.ttl, protocol, 0)
                + addresses
            )
            ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
            ether = b"\2" * 6 + b"\4" * 6 + b"\x08\x00"
        else:
            addresses = bytes(range(32))
            pseudo = addresses + struct.pack(">II", length, protocol)
            ip = struct.pack(">IHBB", 0x60012345, length, protocol, self.ttl) + addresses
            ether = b"\2" * 6 + b"\4" * 6 + b"\x86\xdd"
        if partial:
            value = ~checksum(pseudo) & 0xFFFF
        else:
            value = checksum(pseudo + l4 + self.payload)
            if value == 0 and protocol == 17:
                value = 0xFFFF
        l4 = l4[:at] + struct.pack(">H", value) + l4[at + 2 :]
        return ether + ip + l4 + self.payload


def describe(packet: Packet, size: int) -> Vnet:
    """The virtio_net_hdr of a super-packet."""
    start = 34 if packet.kind in (UDP4, TCP4) else 54
    header = start + (8 if packet.kind in (UDP4, UDP6) else 20 + len(packet.options))
    return Vnet(1, GSO[packet.kind], header, size, start, 6 if packet.kind in (UDP4, UDP6) else 16)


def expected(packet: Packet, size: int) -> list[bytes]:
    """What segmentation must give, by the rules and not by the code under test."""
    parts = [packet.payload[i : i + size] for i in range(0, len(packet.payload), size)]
    frames = []
    for i, part in enumerate(parts):
        flags = packet.flags
        if i + 1 < len(parts):
            flags &= ~(FIN | PSH)
        if i:
            flags &= ~CWR
        frames.append(
            replace(packet, payload=part, ident=packet.ident + i, seq=packet.seq + i * size, flags=flags).frame()
        )
    return frames


packets = st.builds(
    Packet,
    kind=st.sampled_from([UDP4, TCP4, UDP6, TCP6]),
    payload=st.integers(0, 2**32).flatmap(
        lambda seed: st.integers(1, 9000).map(lambda n: random.Random(seed).randbytes(n))
    ),
    ident=st.sampled_from([0, 1, 0x7FFF, 0xFFFE]),
    seq=st.sampled_from([0, 1, 2**32 - 1500]),
    flags=st.sampled_from([ACK, ACK | PSH, ACK | FIN, ACK | FIN | PSH]),
    options=st.sampled_from([b"", b"\1\1\x08\x0a" + bytes(8)]),
)


@settings(max_examples=150)
@given(packets, st.integers(1, 3000))
def test_a_super_packet_is_cut_into_what_the_wire_would_show(packet: Packet, size: int) -> None:
    """Lengths, IDs, sequence numbers, flags and checksums of every segment, for UDP and TCP over IPv4 and IPv6."""
    assert cut(packet.frame(partial=True), describe(packet, size)) == expected(packet, size)


@settings(max_examples=150)
@given(packets, st.integers(1, 3000))
def test_what_was_cut_is_joined_and_cut_again_without_a_trace(packet: Packet, size: int) -> None:
    """Joining the segments of a super-packet gives the same segments again when it is cut."""
    frames = expected(packet, size)
    taken, joined, vnet = join(frames)
    assert taken == min(len(frames), 64)
    if taken > 1:
        assert vnet.gso_size == size
        assert cut(joined, vnet) == frames[:taken]


@settings(max_examples=150)
@given(packets, st.integers(1, 3000), st.integers(0, 2**32))
def test_frames_in_parts_are_joined_as_whole_ones_are(packet: Packet, size: int, seed: int) -> None:
    """Wherever a frame is cut, evenly or not: with its headers in one part it is joined, else it may go alone."""
    frames = expected(packet, size)
    assert join(frames, seed=seed, least=describe(packet, size).header_len)[:2] == join(frames)[:2]

    taken, joined, vnet = join(frames, seed=seed)
    if taken > 1:
        assert cut(joined, vnet) == frames[:taken]


@pytest.mark.parametrize("kind", [UDP4, TCP4, UDP6, TCP6])
def test_a_payload_of_zeros_has_another_sum_than_one_of_ones(kind: int) -> None:
    """Sums of 0 and 0xffff are one number in the checksum, but only zeros add up to 0."""
    for payload in (bytes(100), b"\xff" * 100, bytes(98) + b"\xff\xff", bytes(99) + b"\1"):
        frames = [replace(p, payload=payload).frame() for p in _neighbours(kind)]
        header = len(frames[0]) - 100
        for seed in range(20):
            assert join(frames, seed=seed, least=header)[0] == join(frames)[0]


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def ip(v6: bool, protocol: int, payload: bytes, tags: bytes = b"", extension: bytes = b"") -> tuple[bytes, int]:
    """(a frame, where its payload begins); `extension`, whose first byte names the payload, stands before that."""
    if v6:
        first = 0 if extension else protocol
        header = struct.pack(">IHBB", 0x60000000, len(extension + payload), first, 64) + bytes(range(32)) + extension
        ether = b"\x86\xdd"
    else:
        header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0) + bytes(range(8))
        ether = b"\x08\x00"
    start = b"\2" * 6 + b"\4" * 6 + tags + ether + header
    return start + payload, len(start)


@pytest.mark.parametrize("length", [12, 28, 29, 1452])
@pytest.mark.parametrize(("v6", "tags", "extension"), [
    (False, b"", b""),
    (False, bytes.fromhex("88a8000581000006"), b""),
    (True, bytes.fromhex("81000005"), b""),
    (True, b"", bytes([132, 0, 1, 4, 0, 0, 0, 0])),
], ids=["IPv4", "two tags", "IPv6", "extension header"])
def test_sctp_packets_get_the_checksum_of_sctp(length: int, v6: bool, tags: bytes, extension: bytes) -> None:
    """SCTP's checksum is a CRC over a packet whose checksum field counts as zero, whatever it holds."""
    body = random.Random(length).randbytes(length)
    frame, start = ip(v6, 132, body, tags, extension)

    (whole,) = cut(frame, Vnet(1, 0, 0, 0, start, 8))

    want = crc32c(body[:8] + bytes(4) + body[12:])
    assert whole == frame[:start] + body[:8] + struct.pack("<I", want) + body[12:]
    assert cut(frame[: start + 11], Vnet(1, 0, 0, 0, start, 8)) == []


def test_another_protocol_with_its_checksum_at_that_place_gets_the_internet_checksum() -> None:
    """It is the protocol, not the place alone, that tells which sum an IPv4 packet needs."""
    frame, start = ip(False, 253, bytes(range(1, 9)) + bytes(2) + bytes(range(10, 40)))
    (whole,) = cut(frame, Vnet(1, 0, 0, 0, start, 8))
    assert checksum(whole[start:]) == 0
    assert whole[: start + 8] + bytes(2) + whole[start + 10 :] == frame


CHANGES: dict[str, Callable[[Packet], Packet]] = {
    "ID does not count up": lambda p: replace(p, ident=p.ident + 1),
    "another TTL": lambda p: replace(p, ttl=63),
    "another source port": lambda p: replace(p, source=1001),
    "longer": lambda p: replace(p, payload=p.payload + b"x"),
    "another kind": lambda p: replace(p, kind={UDP4: TCP4, TCP4: UDP4, UDP6: TCP6, TCP6: UDP6}[p.kind]),
    "another sequence number": lambda p: replace(p, seq=p.seq + 1),
    "another window": lambda p: replace(p, window=1),
    "SYN": lambda p: replace(p, flags=p.flags | SYN),
    "options": lambda p: replace(p, options=b"\1\1\1\1"),
}


def _neighbours(kind: int) -> tuple[Packet, Packet]:
    first = Packet(kind, bytes(100))
    return first, replace(first, ident=1, seq=first.seq + 100)


DIFFERENT = [
    (kind, change)
    for kind in (UDP4, TCP4, UDP6, TCP6)
    for change, apply in CHANGES.items()
    if apply(_neighbours(kind)[1]).frame() != _neighbours(kind)[1].frame()
]  # UDP has no window, IPv6 no ID


@pytest.mark.parametrize(("kind", "change"), DIFFERENT)
def test_only_true_neighbours_are_joined(kind: int, change: str) -> None:
    """Frames that segmentation could not restore are not joined."""
    first, second = _neighbours(kind)
    assert join([first.frame(), second.frame()])[0] == 2
    assert join([first.frame(), CHANGES[change](second).frame()])[0] == 1


@pytest.mark.parametrize("kind", [UDP4, TCP4, UDP6, TCP6])
def test_wrong_checksums_are_never_repaired(kind: int) -> None:
    """A frame whose checksum, or payload, is wrong goes out as the program wrote it, singly."""
    first = Packet(kind, bytes(range(100)))
    good = [first.frame(), replace(first, ident=1, seq=first.seq + 100).frame()]
    for which in (0, 1):
        for at in (len(good[0]) - 1, len(good[0]) - 101 + 100):
            bad = list(good)
            bad[which] = bad[which][:at] + bytes([bad[which][at] ^ 1]) + bad[which][at + 1 :]
            assert join(bad)[0] == 1
            assert all(join(bad, seed=seed)[0] == 1 for seed in range(10))
    if kind == UDP4:
        none = [frame[:40] + b"\0\0" + frame[42:] for frame in good]  # no checksum: the kernel would add one
        assert join(none)[0] == 1


def test_a_shorter_frame_a_push_and_the_limits_end_a_super_packet() -> None:
    """The last may be shorter; PSH and FIN only on the last; 64 frames, 64 KB and the MTU bound it."""

    def run(sizes: list[int], kind: int = UDP4, push: int = -1) -> list[bytes]:
        frames, seq = [], 1
        for i, size in enumerate(sizes):
            frames.append(Packet(kind, bytes(size), ident=i, seq=seq, flags=ACK | PSH if i == push else ACK).frame())
            seq += size
        return frames

    assert join(run([100, 100, 50, 50]))[0] == 3
    assert join(run([100, 101]))[0] == 1
    assert join(run([100] * 4, TCP4, push=1))[0] == 2
    assert join(run([100] * 70))[0] == 64
    assert join(run([9000] * 8))[0] == 7
    assert join(run([1400] * 3), mtu=1428)[0] == 3
    assert join(run([1400] * 3), mtu=1427)[0] == 1


@settings(max_examples=300)
@given(
    st.binary(max_size=300),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**16 - 1),
)
def test_descriptions_that_contradict_the_frame_are_refused(
    frame: bytes, flags: int, kind: int, size: int, start: int, offset: int
) -> None:
    """Whatever a header claims, nothing outside of the frame is touched, and what is not understood is not cut."""
    segments = cut(frame, Vnet(flags, kind, 0, size, start, offset))
    assert all(len(segment) <= len(frame) for segment in segments)


@settings(max_examples=100)
@given(packets, st.integers(0, 200), st.integers(1, 3000))
def test_truncated_super_packets_do_no_harm(packet: Packet, length: int, size: int) -> None:
    """Cut off anywhere, a frame gives segments of itself or none."""
    frame = packet.frame(partial=True)[:length]
    for segment in cut(frame, describe(packet, size)):
        assert len(segment) <= len(frame)
