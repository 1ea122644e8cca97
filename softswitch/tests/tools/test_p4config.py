# SPDX-License-Identifier: Apache-2.0
"""The module p4.tmp.p4config_pb2 among the stand-ins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from softswitch.tools.install import install

CONTROL_PLANE = """
import p4.installed_before
from p4.tmp import p4config_pb2

config = p4config_pb2.P4DeviceConfig()
config.reassign = True
config.extras.kv["a"] = "b"
config.device_data = b"{}"
print(config.SerializeToString().hex())
"""


def test_control_planes_wrap_their_program_as_ever(tmp_path: Path) -> None:
    """The message has PI's fields, and what another package p4 brings stays importable beside it."""
    installed = install(tmp_path / "tools")
    other = tmp_path / "site" / "p4"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "installed_before.py").touch()
    path = os.pathsep.join(map(str, (installed.modules, other.parent)))
    out = subprocess.run([sys.executable, "-c", CONTROL_PLANE], env={**os.environ, "PYTHONPATH": path},
                         capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == "0801" + "1208" + "0a06" + "0a0161" + "120162" + "1a02" + "7b7d"
