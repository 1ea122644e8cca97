# SPDX-License-Identifier: Apache-2.0
"""The Python modules that `softswitch tools` writes in place of BMv2's, as scripts of courses use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from softswitch.tools.install import install
from switch_support.thrift import served

SCRIPT = """
import sys
import bmpy_utils
import runtime_CLI
import sswitch_CLI
from bm_runtime.simple_pre import SimplePre
from bm_runtime.simple_pre_lag import SimplePreLAG
from bm_runtime.standard import Standard
from bm_runtime.standard.ttypes import *
from sswitch_runtime import SimpleSwitch
from sswitch_runtime.ttypes import *

port = int(sys.argv[1])
standard, pre, switch = bmpy_utils.thrift_connect("localhost", port, [
    ("standard", Standard.Client), ("simple_pre_lag", SimplePreLAG.Client), ("simple_switch", SimpleSwitch.Client)])
key = [BmMatchParam(type=BmMatchParamType.LPM, lpm=BmMatchParamLPM(b"\\x0a\\0\\0\\0", 8))]
print(standard.bm_mt_add_entry(0, "I.lpm_t", key, "I.drop", [], BmAddEntryOptions(priority=0)))
try:
    standard.bm_mt_delete_entry(0, "I.lpm_t", 5)
except InvalidTableOperation as error:
    print(TableOperationErrorCode._VALUES_TO_NAMES[error.code])
switch.mirroring_session_add(1, MirroringSessionConfig(port=2))
print(switch.mirroring_session_get(1))
runtime_CLI.load_json_config(standard)
shell = sswitch_CLI.SimpleSwitchAPI(runtime_CLI.PreType.SimplePreLAG, standard, pre, switch)
shell.do_table_num_entries("lpm_t")
shell.onecmd("table_num_entries nosuch")
"""


def test_scripts_for_bmv2_run_unchanged(tmp_path: Path) -> None:
    """Types, clients, exceptions, and the shells of BMv2's command lines, imported by their names."""
    made = install(tmp_path / "tools")
    with served() as (_, server):
        paths = os.pathsep.join([str(made.modules), *(path for path in sys.path if path)])
        done = subprocess.run([sys.executable, "-c", SCRIPT, str(server.port)], capture_output=True, text=True,
                              timeout=60, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "0", "INVALID_HANDLE", "MirroringSessionConfig(port=2, mgid=None)", "Obtaining JSON from switch...", "Done",
        "1", "Error: Invalid table name (nosuch)"]
