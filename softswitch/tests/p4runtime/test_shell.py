# SPDX-License-Identifier: Apache-2.0
"""p4runtime-shell as a client. It needs protobuf < 3.21 and so an environment of its own: $P4RUNTIME_SHELL_PYTHON."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format

from softswitch.compiler.driver import compile_source
from softswitch.p4runtime.program import Compiler
from switch_support.client import serving
from switch_support.p4 import basic

SCRIPT = """
import sys
import p4runtime_sh.shell as sh
address, p4info, program = sys.argv[1:]
sh.global_options["verbose"] = False
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(p4info, program))
entry = sh.TableEntry("I.dmac")(action="I.forward")
entry.match["h.ethernet.dst"] = "00:00:00:00:00:05"
entry.action["port"] = "2"
entry.insert()
entry.action["port"] = "3"
entry.modify()
(found,) = list(sh.TableEntry("I.dmac").read())
assert found.action["port"].value == b"\\3", found
try:
    entry.insert()
except Exception as error:
    assert "ALREADY_EXISTS" in str(error), error
else:
    raise AssertionError("inserted twice")
group = sh.MulticastGroupEntry(5).add(1, 1).add(2, 2)
group.insert()
(counted,) = list(sh.DirectCounterEntry("I.hits").read())
assert counted.packet_count == 0
assert len(list(sh.CounterEntry("I.ports").read())) == 16
incoming = sh.PacketIn()
sh.PacketOut(payload=b"echo, please", egress_port="510", pad="3").send()
packets = []
for _ in range(30):
    packets += incoming.sniff(timeout=1)
    if packets:
        break
(packet,) = packets
assert packet.packet.payload == b"echo, please", packet
entry.delete()
sh.teardown()
print("all done")
"""


@pytest.mark.needs("p4runtime-shell")
def test_p4runtime_shell_drives_a_switch(tmp_path: Path) -> None:
    """p4runtime-shell sets pipeline, entries and groups, reads counters, exchanges packets, and shows errors."""
    python = os.environ["P4RUNTIME_SHELL_PYTHON"]
    program = compile_source(basic(), "basic.p4")
    (tmp_path / "basic.p4").write_text(program.preprocessed)
    (tmp_path / "basic.txt").write_text(text_format.MessageToString(program.p4info))
    (tmp_path / "script.py").write_text(SCRIPT)
    with serving(builder=Compiler()) as (_, address):
        done = subprocess.run(
            [python, tmp_path / "script.py", address, tmp_path / "basic.txt", tmp_path / "basic.p4"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert "all done" in done.stdout, done.stdout + done.stderr
