# SPDX-License-Identifier: Apache-2.0
"""An exercise in the manner of courses, through the stand-ins alone: compiler, switch, command line, captures."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

from softswitch.tools.install import install
from switch_support.namespace import in_own_network, sh

HERE = Path(__file__).parent / "course"

PORT = 9090

HOSTS = """
for i in 1 2; do
    ip netns add h$i
    ip link add s1-eth$i type veth peer name h$i-eth0
    ip link set s1-eth$i up
    ip link set h$i-eth0 netns h$i address 02:00:00:00:0$i:0$i
    ip -n h$i address add 10.0.$i.$i/24 dev h$i-eth0
    ip -n h$i link set h$i-eth0 up
    ip -n h$i link set lo up
    ip -n h$i route add default via 10.0.$i.254
    ip -n h$i neighbour add 10.0.$i.254 lladdr 02:00:00:00:00:0$i dev h$i-eth0
done
"""

BUILD = """
mkdir -p build pcaps logs
p4c-bm2-ss --p4v 16 --p4runtime-files build/router.p4.p4info.txtpb -o build/router.json router.p4
"""

SWITCH = ("exec simple_switch -i 1@s1-eth1 -i 2@s1-eth2 --pcap=pcaps --nanolog ipc://log.ipc --device-id 0 "
          f"--notifications-addr ipc://n.ipc --thrift-port {PORT} build/router.json --log-console > logs/s1.log 2>&1")
"""As Mininet's scripts of courses start it."""

PCAP_HEADER, PCAP_RECORD = 24, struct.Struct("<IIII")


def _frames(path: Path) -> list[bytes]:
    data, at, frames = path.read_bytes(), PCAP_HEADER, []
    while at < len(data):
        size = PCAP_RECORD.unpack_from(data, at)[2]
        at += PCAP_RECORD.size
        frames.append(data[at : at + size])
        at += size
    return frames


def _listens(port: int) -> bool:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(fields[1].endswith(f":{port:04X}") and fields[3] == "0A" for fields in map(str.split, lines))


@in_own_network
def test_an_exercise_runs_on_the_stand_ins(tmp_path: Path) -> None:
    """What a student types: build, start, fill tables by simple_switch_CLI, ping, read state, look at captures."""
    for file in HERE.iterdir():
        shutil.copy(file, tmp_path)
    tools = install(tmp_path / "tools")
    environment = {**os.environ, "PATH": f"{tools.programs}:{os.environ['PATH']}"}

    def student(command: str) -> str:
        done = subprocess.run(["/bin/sh", "-ec", command], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    sh(HOSTS)
    student(BUILD)
    switch = subprocess.Popen(["/bin/sh", "-c", SWITCH], cwd=tmp_path, env=environment)
    try:
        log = tmp_path / "logs" / "s1.log"
        end = time.monotonic() + 60
        while not _listens(PORT):  # as courses' scripts wait for it
            assert switch.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        command_line = f"simple_switch_CLI --thrift-port {PORT}"
        added = student(f"{command_line} < commands.txt")
        assert re.findall(r"Entry has been added with handle (\d+)", added) == ["0", "1"]
        assert "3 received" in student("ip netns exec h1 ping -c 3 -i 0.01 -W 5 10.0.2.2")
        shown = student(f"printf 'register_read MyIngress.seen\\ncounter_read MyIngress.routed 1\\n"
                        f"table_num_entries routes\\n' | {command_line}")
        assert "MyIngress.seen= 0, 3, 3, 0" in shown
        assert re.search(r"MyIngress\.routed\[1\]= *\(294 bytes, 3 packets\)", shown)  # 14 and 84 bytes each
        assert re.search(r"\b2\b", shown[shown.index("packets)"):]), "number of entries"
        assert "MyIngress.routes" in log.read_text(), "--log-console tells what happened to packets"
    finally:
        switch.send_signal(signal.SIGKILL)  # as p4-utils ends it
        switch.wait(10)
    came, went = _frames(tmp_path / "pcaps" / "s1-eth1_in.pcap"), _frames(tmp_path / "pcaps" / "s1-eth2_out.pcap")
    requests = [frame for frame in came if frame[12:14] == b"\x08\x00"]
    assert len(requests) == len(went) == 3
    for before, after in zip(requests, went, strict=True):
        assert after[:12] == bytes.fromhex("020000000202" + "020000000001")
        assert after[22] == before[22] - 1, "TTL"
        assert _sum(after[14:34]) == 0xFFFF
        assert after[34:] == before[34:]


def _sum(header: bytes) -> int:
    """The ones' complement sum of a header with a right checksum is 0xffff."""
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
