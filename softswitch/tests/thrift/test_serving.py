# SPDX-License-Identifier: Apache-2.0
"""The Thrift services beside a P4Runtime server, on a native switch process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.program import Compiler
from softswitch.p4runtime.server import Server
from softswitch.thrift import serve
from softswitch.thrift.structs import TYPES
from switch_support.thrift import PROGRAM, client

T = TYPES["standard"]


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that runs thrift.p4, without ports."""
    compiler = Compiler()
    made = Server(device_id=7, settings=Settings(cpu_port=510), builder=compiler)
    try:
        made.push(compiler.file(PROGRAM))
        yield made
    finally:
        made.close()


def test_a_program_is_swapped_and_told(server: Server, tmp_path: Path) -> None:
    """The program's JSON can be loaded again and swapped in, with empty tables; what is no program is refused; queues
    and ports that are not there are named in the log alone, as BMv2 has it, or refused."""
    with serve(server, 0, notifications=f"ipc://{tmp_path}/digests") as thrift, client(thrift, "standard") as standard:
        info = standard.bm_mgmt_get_info()
        assert (info.device_id, info.thrift_port) == (7, thrift.port)
        assert info.notifications_socket == f"ipc://{tmp_path}/digests"
        key = [T.BmMatchParam(T.BmMatchParamType.LPM, lpm=T.BmMatchParamLPM(b"\x0a\0\0\0", 8))]
        assert standard.bm_mt_add_entry(0, "I.lpm_t", key, "I.drop", [], T.BmAddEntryOptions(0)) == 0
        with pytest.raises(T.InvalidSwapOperation) as caught:
            standard.bm_swap_configs()
        assert caught.value.code == T.SwapOperationErrorCode.NO_ONGOING_SWAP
        with pytest.raises(T.InvalidSwapOperation):
            standard.bm_load_new_config("no program")
        standard.bm_load_new_config(standard.bm_get_config())
        assert standard.bm_mt_get_num_entries(0, "I.lpm_t") == 1
        standard.bm_swap_configs()
        assert standard.bm_mt_get_num_entries(0, "I.lpm_t") == 0
        assert standard.bm_dev_mgr_show_ports() == []
        for number in (3, -1, 511):
            with pytest.raises(T.InvalidDevMgrOperation):
                standard.bm_dev_mgr_remove_port(number)
        for number, interface in ((-1, "lo"), (511, "lo"), (510, "lo"), (2, "x" * 300), (2, ""), (2, "\0")):
            with pytest.raises(T.InvalidDevMgrOperation):
                standard.bm_dev_mgr_add_port(interface, number, "")
        with client(thrift, "simple_switch") as switch:
            assert switch.set_egress_queue_rate(3, 100) == 0
            assert switch.set_egress_queue_depth(-1, 1) == 0
            assert 0 < switch.get_time_elapsed_us() < switch.get_time_since_epoch_us()


def test_counts_of_64_bits_can_be_read_over_p4runtime(server: Server) -> None:
    """Thrift writes cells of which P4Runtime's numbers have a bit less: they are the most that these can say."""
    with serve(server, 0, notifications=None) as thrift, client(thrift, "standard") as standard:
        standard.bm_counter_write(0, "I.ports", 1, T.BmCounterValue(-1, -(1 << 63)))
        assert b"counter_entry" in standard.bm_serialize_state().encode()
        value = standard.bm_counter_read(0, "I.ports", 1)
        assert (value.bytes, value.packets) == (-1, -(1 << 63))


def test_without_a_program_calls_are_refused() -> None:
    """A switch that waits for its program answers, and says that it has none."""
    server = Server(device_id=0, settings=Settings(), builder=Compiler())
    with serve(server, 0) as thrift, client(thrift, "standard") as standard:
        with pytest.raises(T.InvalidTableOperation) as caught:
            standard.bm_mt_get_num_entries(0, "I.lpm_t")
        assert caught.value.code == T.TableOperationErrorCode.ERROR
        assert standard.bm_mgmt_get_info().device_id == 0
    server.close()


@pytest.mark.parametrize(("before", "said"), [
    ("sys.modules['thrift'] = None;", "pip install thrift"),
    ("sys.argv += ['--primary', 'unix'];", "--thrift-port with --primary"),
])
def test_what_a_thrift_port_needs_is_named(before: str, said: str) -> None:
    """Without the package thrift, or with a restriction that Thrift cannot keep, the switch does not start."""
    start = "from softswitch.cli import main; main(sys.argv[1:])"
    paths = f"import sys; sys.path[:0] = {[path for path in sys.path if path]};"
    done = subprocess.run([sys.executable, "-c", f"{paths} {before} {start}", "run", "--no-p4", "--thrift-port", "0",
                           "--grpc-server-addr", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
