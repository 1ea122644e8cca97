# SPDX-License-Identifier: Apache-2.0
"""Runs a program on the real p4c and BMv2, for comparison: frames through pcap files, control by P4Runtime.

simple_switch_grpc reads port N's frames from N_in.pcap and writes N_out.pcap. The inputs are pipes, so that frames
go in when everything is set up; it merges them by time stamp, so it waits for the next frame of every pipe or its end.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import socket
import struct
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import grpc
from finsy.proto import p4r, p4r_grpc
from google.protobuf import text_format

from softswitch.engine.entities import CloneSession, DoAction, DoGroup, DoMember, Entry, Group, Multicast
from softswitch.engine.program_info import ActionInfo, KeyField, MatchKind
from switch_support import p4c

_PCAP_HEAD = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
_START = 60.0
_SETTLE = 30.0
"""Seconds without a packet after which none is expected any more."""
_WINDOW = 32


class Bmv2:
    """One simple_switch_grpc with ports 0..n-1."""

    def __init__(self, program: Path | None, folder: Path, *, ports: int, options: Sequence[str] = ()) -> None:
        """Compiles the program and starts it; None: the folder has p4c's program.json and program.txtpb.

        options  more of the target's, which stand behind `--`
        """
        self._folder, self._ports = folder, ports
        self._closing = threading.Event()
        self._json, info = folder / "program.json", folder / "program.txtpb"
        if program is not None:
            made = p4c.compiled(program)
            self._json.write_bytes(made.json)
            info.write_bytes(made.p4info)
        self._info = text_format.Parse(info.read_text(), p4r.ForwardingPipelineConfig().p4info)
        self._outputs = [_Tail(folder / f"{port}_out.pcap") for port in range(ports)]
        self._inputs: list[IO[bytes]] = []
        for port in range(ports):
            path = folder / f"{port}_in.pcap"
            os.mkfifo(path)
            # For reading and writing, so that neither side waits for the other to open it.
            self._inputs.append(os.fdopen(os.open(path, os.O_RDWR), "wb", buffering=0))
            fcntl.fcntl(self._inputs[-1], fcntl.F_SETPIPE_SZ, 1 << 20)
            self._inputs[-1].write(_PCAP_HEAD)
        address = f"unix:{folder}/grpc"
        interfaces = [arg for port in range(ports) for arg in ("-i", f"{port}@{folder}/{port}")]
        self._process = subprocess.Popen(
            ["simple_switch_grpc", "--no-p4", "--use-files", "0", "--device-id", "1", *interfaces, "--log-level", "off",
             *notifications(folder), "--thrift-port", "0", "--", "--grpc-server-addr", address, *options],
            stdout=(folder / "bmv2.log").open("wb"), stderr=subprocess.STDOUT)
        self._channel = grpc.insecure_channel(address)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)

    def __enter__(self) -> Bmv2:
        try:
            grpc.channel_ready_future(self._channel).result(_START)
            request = p4r.StreamMessageRequest()
            request.arbitration.device_id = 1
            request.arbitration.election_id.low = 1
            self._stream = self._stub.StreamChannel(self._requests(request))
            next(iter(self._stream))
            config = p4r.SetForwardingPipelineConfigRequest(
                device_id=1, action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT)
            config.election_id.low = 1
            config.config.p4info.CopyFrom(self._info)
            config.config.p4_device_config = self._json.read_bytes()
            self._stub.SetForwardingPipelineConfig(config, timeout=_START)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _requests(self, first: p4r.StreamMessageRequest) -> Iterator[p4r.StreamMessageRequest]:
        yield first
        self._closing.wait()

    def close(self) -> None:
        """Ends BMv2."""
        self._closing.set()
        self._channel.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        for stream in self._inputs:
            stream.close()

    def replicate(self, groups: Sequence[Multicast], sessions: Sequence[CloneSession]) -> None:
        """Installs multicast groups and clone sessions."""
        request = p4r.WriteRequest(device_id=1)
        request.election_id.low = 1
        for group in groups:
            entry = request.updates.add(type=p4r.Update.INSERT).entity.packet_replication_engine_entry
            entry.multicast_group_entry.multicast_group_id = group.group
            for port, instance in group.replicas:
                entry.multicast_group_entry.replicas.add(egress_port=port, instance=instance)
        for session in sessions:
            entry = request.updates.add(type=p4r.Update.INSERT).entity.packet_replication_engine_entry
            entry.clone_session_entry.session_id = session.session
            for port, instance in session.replicas:
                entry.clone_session_entry.replicas.add(egress_port=port, instance=instance)
        self._stub.Write(request, timeout=_START)

    def write_entry(self, kind: str, entry: Entry) -> bool:
        """Inserts, modifies or deletes a table entry ("insert" ...), by names; False where BMv2 refuses."""
        info = next(t for t in self._info.tables if t.preamble.name == entry.table.name)
        message = p4r.TableEntry(table_id=info.preamble.id, priority=entry.priority)
        for field, key, (value, mask) in zip(info.match_fields, entry.table.keys, entry.fields, strict=True):
            assert field.name == key.name
            _add_match(message, field.id, key, value, mask)
        match entry.do:
            case DoAction(index, params):
                self._action(message.action.action, entry.table.actions[index], params)
            case DoMember(member):
                message.action.action_profile_member_id = member
            case DoGroup(group):
                message.action.action_profile_group_id = group
        return self._write(kind, p4r.Entity(table_entry=message))

    def write_member(self, profile: str, member: int, action: ActionInfo, params: bytes) -> bool:
        """Inserts a member of an action profile."""
        message = p4r.ActionProfileMember(action_profile_id=self._profile(profile), member_id=member)
        self._action(message.action, action, params)
        return self._write("insert", p4r.Entity(action_profile_member=message))

    def write_group(self, profile: str, group: Group) -> bool:
        """Inserts a group of an action selector."""
        message = p4r.ActionProfileGroup(action_profile_id=self._profile(profile), group_id=group.group, max_size=32)
        for member, weight in group.members:
            message.members.add(member_id=member, weight=weight)
        return self._write("insert", p4r.Entity(action_profile_group=message))

    def _profile(self, name: str) -> int:
        return next(p.preamble.id for p in self._info.action_profiles if p.preamble.name == name)

    def _action(self, message: p4r.Action, action: ActionInfo, params: bytes) -> None:
        info = next(a for a in self._info.actions if a.preamble.name == action.name)
        message.action_id = info.preamble.id
        for param, value in zip(info.params, action.unpack(params), strict=True):
            message.params.add(param_id=param.id, value=_canonical(value))

    def write(self, update: p4r.Update) -> str:
        """Sends one update; returns "", or what BMv2 says where it refuses."""
        request = p4r.WriteRequest(device_id=1, updates=[update])
        request.election_id.low = 1
        try:
            self._stub.Write(request, timeout=_START)
        except grpc.RpcError as error:
            details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
            said = " ".join(word.decode() for word in re.findall(rb"[\x20-\x7e]{6,}", details))
            return f"{error.code().name}: {error.details()} {said}"
        return ""

    @property
    def status(self) -> int | None:
        """The exit status of a BMv2 that has ended, though nobody asked for it; None while it runs."""
        return self._process.poll()

    def _write(self, kind: str, entity: p4r.Entity) -> bool:
        request = p4r.WriteRequest(device_id=1)
        request.election_id.low = 1
        what = {"insert": p4r.Update.INSERT, "modify": p4r.Update.MODIFY, "delete": p4r.Update.DELETE}[kind]
        request.updates.add(type=what, entity=entity)
        try:
            self._stub.Write(request, timeout=_START)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNKNOWN:      # a failed update; its kind is in the details
                return False
            raise
        return True

    def inject(self, frames: Sequence[tuple[int, bytes]], sent: Sequence[Sequence[tuple[int, bytes]]]) -> None:
        """Hands (port, frame) pairs in, in this order; once. `sent` is what our engine sends for each of them.

        BMv2 drops what does not fit into a port's queue of 64, without a word. So a window's packets are handed in
        when those of the window before have left; where they do not, the rest goes in at once and `outputs` tells.
        """
        upcoming: list[list[int]] = [[] for _ in self._inputs]      # what is still to be written, last first
        for at in reversed(range(len(frames))):
            upcoming[frames[at][0]].append(at)
        at = left = 0
        comes = True
        while at < len(frames):
            room = _WINDOW
            while at < len(frames) and room > 0:
                made = sum(port < self._ports for port, _ in sent[at])
                at, left, room = at + 1, left + made, room - max(1, made)
            for stream, todo in zip(self._inputs, upcoming, strict=True):
                # One more at each port: the reader knows whose turn it is only when it sees every port's next.
                while todo and todo[-1] < at:
                    stream.write(_record(todo[-1], frames[todo.pop()][1]))
                if todo and not stream.closed:
                    stream.write(_record(todo[-1], frames[todo.pop()][1]))
                if not todo:
                    stream.close()
            comes = comes and self._come(left)

    def one_by_one(
        self, frames: Sequence[tuple[int, bytes]], sent: Sequence[Sequence[tuple[int, bytes]]], wait: float
    ) -> Iterator[list[tuple[int, bytes]]]:
        """Hands in one (port, frame) pair after another, and yields what has left since the one before; the next goes
        in when as many packets as `sent` says have left, or none has for `wait` seconds.

        The reader takes the earliest of all ports' next frames, and then waits for the next one of that port.
        """
        upcoming = [[at for at in range(len(frames)) if frames[at][0] == port][::-1] for port in range(self._ports)]

        def release(port: int) -> None:
            if upcoming[port]:
                at = upcoming[port].pop()
                self._inputs[port].write(_record(at, frames[at][1]))
            else:
                self._inputs[port].close()

        for port in range(self._ports):
            release(port)
        for at, (port, _) in enumerate(frames):
            expected = sum(out < self._ports for out, _ in sent[at])
            left: list[tuple[int, bytes]] = []
            quiet_at = time.monotonic() + wait
            while True:
                new = [(out, data) for out, tail in enumerate(self._outputs) for data in tail.take()]
                left += new
                if new:
                    quiet_at = time.monotonic() + wait
                if (len(left) >= expected and (expected or at < len(frames) - 1)) or time.monotonic() > quiet_at:
                    break
                time.sleep(0.002)
            yield left
            release(port)

    def _come(self, number: int) -> bool:
        """Waits until so many packets have left; False where none comes any more."""
        seen, deadline = -1, 0.0
        while (now := sum(map(len, self._seen()))) < number:
            if now > seen:
                seen, deadline = now, time.monotonic() + _SETTLE
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def outputs(self, expected: dict[int, int]) -> dict[int, list[bytes]]:
        """All frames that left, by port, once every port has sent `expected` many or nothing more comes for long."""
        deadline = time.monotonic() + _SETTLE
        before: list[int] = []
        while True:
            got = self._seen()
            counts = [len(frames) for frames in got]
            quiet = counts == before
            enough = all(count >= expected.get(port, 0) for port, count in enumerate(counts))
            if (quiet and enough) or time.monotonic() > deadline:
                return {port: frames for port, frames in enumerate(got) if frames}
            if not quiet:
                deadline = time.monotonic() + _SETTLE
            before = counts
            time.sleep(0.2)

    def _seen(self) -> list[list[bytes]]:
        """The frames that have left each port."""
        for tail in self._outputs:
            tail.take()
        return [tail.frames for tail in self._outputs]


@functools.cache
def _has_notifications() -> bool:
    """True if BMv2 was built with nanomsg."""
    done = subprocess.run(["simple_switch_grpc", "--help"], capture_output=True, text=True, timeout=_START)
    return "--notifications-addr " in done.stdout + done.stderr


def notifications(folder: Path) -> list[str]:
    """The option for a socket of its own: the default one is the same for all BMv2 of the machine."""
    return ["--notifications-addr", f"ipc://{folder}/notifications"] if _has_notifications() else []


def slow_queue(thrift_port: int, port: int, rate: int) -> None:
    """Let no more than `rate` packets a second leave a port of a BMv2 on this machine: set_egress_queue_rate of
    simple_switch.thrift, in Thrift's binary protocol."""
    name = b"simple_switch:set_egress_queue_rate"
    call = struct.pack(f"!II{len(name)}sI", 0x80010001, len(name), name, 0)
    arguments = struct.pack("!BHiBHqB", 8, 1, port, 10, 2, rate, 0)     # i32 port_num, i64 rate_pps, stop
    with socket.create_connection(("127.0.0.1", thrift_port), timeout=_START) as connection:
        connection.sendall(call + arguments)
        stream = connection.makefile("rb")
        kind, length = struct.unpack("!II", stream.read(8))
        *_, field, _, result = struct.unpack(f"!{length}sIBHi", stream.read(length + 4 + 3 + 4))
    assert (kind & 0xFF, field, result) == (2, 8, 0), "expected a reply with an i32: success"


def by_port(sent: Sequence[Sequence[tuple[int, bytes]]]) -> dict[int, list[bytes]]:
    """What left each port, in order, from what each frame made leave."""
    ports: dict[int, list[bytes]] = defaultdict(list)
    for made in sent:
        for port, data in made:
            ports[port].append(data)
    return ports


def _record(at: int, frame: bytes) -> bytes:
    return struct.pack("<IIII", at // 1000, at % 1000, len(frame), len(frame)) + frame


def _canonical(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def _add_match(message: p4r.TableEntry, field: int, key: KeyField, value: int, mask: int) -> None:
    if key.match is not MatchKind.EXACT and (value, mask) == key.any:
        return
    added = message.match.add(field_id=field)
    match key.match:
        case MatchKind.EXACT:
            added.exact.value = _canonical(value)
        case MatchKind.LPM:
            added.lpm.value = _canonical(value)
            added.lpm.prefix_len = mask.bit_count()
        case MatchKind.TERNARY:
            added.ternary.value = _canonical(value)
            added.ternary.mask = _canonical(mask)
        case MatchKind.RANGE:
            added.range.low = _canonical(value)
            added.range.high = _canonical(mask)
        case MatchKind.OPTIONAL:
            added.optional.value = _canonical(value)


class _Tail:
    """Reads the frames of a pcap file that grows.

    frames  all that were read
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, len(_PCAP_HEAD)
        self.frames: list[bytes] = []

    def take(self) -> list[bytes]:
        """The frames since the last call."""
        if not self._path.exists() or self._path.stat().st_size <= self._at:
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            frames, size = _whole(file.read())
        self._at += size
        self.frames += frames
        return frames


def _whole(records: bytes) -> tuple[list[bytes], int]:
    """The frames of these records of a pcap file, and the bytes of all but a last one that is not all there yet."""
    frames, at = [], 0
    while at + 16 <= len(records):
        (length,) = struct.unpack_from("<I", records, at + 8)
        if at + 16 + length > len(records):
            break
        frames.append(records[at + 16 : at + 16 + length])
        at += 16 + length
    return frames, at
