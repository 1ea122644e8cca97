# SPDX-License-Identifier: Apache-2.0
"""`netfold shell SWITCH`: p4runtime-shell on a switch, beside its controller.

It needs protobuf < 3.21 and our P4Runtime stubs (finsy) >= 6, so it lives in an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated, Final

import typer

from netfold.cli.options import Address, RunningFabric

PYTHON_VARIABLE: Final = "P4RUNTIME_SHELL_PYTHON"
"""The Python of an environment with p4runtime-shell."""
LOOK_TIMEOUT: Final = 30.0
MODULE: Final = "p4runtime_sh"


class NoShell(Exception):
    """p4runtime-shell is not installed; the message says how to get it.

    Remedy: run the command in the message: p4runtime-shell needs an older protobuf than this environment, and so one of
    its own.
    """


def shell(
    switch: Annotated[str, typer.Argument(help="The switch's name.")],
    file: RunningFabric = None,
    controller: Address = None,
) -> None:
    """Open p4runtime-shell on a switch: its tables, entries and counters, beside the controller.

    It may read only, while a controller is there. `table_entry["SwitchIngress.route.route"].read(print)` shows a
    table; `tables`, `counters`, Tab and `?` tell the rest.
    """
    from netfold.cli.common import FAILED, fail

    address, device_id = _target(switch, file, controller)
    try:
        command = [str(python()), "-m", MODULE, *arguments(address, device_id), *_tls(switch, file)]
    except NoShell as error:
        fail(FAILED, f"shell: {error}")
    os.execv(command[0], command)


def arguments(address: str, device_id: int) -> list[str]:
    """Arguments of p4runtime-shell.  A controller's election id is milliseconds since 1970, so that any process id is
    lower: the shell never becomes primary, and two shells do not collide."""
    return ["--grpc-addr", address, "--device-id", str(device_id), "--election-id", f"0,{os.getpid()}"]


def _tls(switch: str, file: Path | None) -> list[str]:
    """Options of p4runtime-shell for a switch that speaks TLS, as the fabric file says."""
    from netfold.cli.common import load

    if file is None:
        return []
    ca, certificate, key = load(file).p4runtime_files(switch)
    if ca is None:
        return []
    files = {"--cacert": ca, "--cert": certificate, "--private-key": key}
    return ["--ssl", *(word for option, path in files.items() if path is not None for word in (option, path))]


def home() -> Path:
    """The folder of its environment, unless P4RUNTIME_SHELL_PYTHON names another Python."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data, "netfold", "p4runtime-shell")


def remedy() -> str:
    """The shell command that makes this environment."""
    return f"python3 -m venv {home()} && {home()}/bin/pip install p4runtime-shell"


def python() -> Path:
    """The Python interpreter that has p4runtime-shell.  Raises NoShell."""
    said = os.environ.get(PYTHON_VARIABLE)
    found = Path(said) if said else home() / "bin" / "python"
    try:
        done = subprocess.run([str(found), "-c", f"import {MODULE}"], capture_output=True, text=True,
                              timeout=LOOK_TIMEOUT, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        why = f"there is no {found}"
    except (OSError, subprocess.SubprocessError) as error:
        why = f"{found} does not run: {error}"
    else:
        if done.returncode == 0:
            return found
        why = f"{found} has no {MODULE}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    raise NoShell(f"{why}. p4runtime-shell needs an environment of its own (protobuf < 3.21):\n"
                  f"    {remedy()}\n"
                  f"or name the Python of one that has it: export {PYTHON_VARIABLE}=/path/to/bin/python")


def _target(name: str, file: Path | None, controller: str | None) -> tuple[str, int]:
    """P4Runtime address and device id of a switch: from the fabric file, or from the running controller."""
    from netfold.cli.common import CANNOT, awaited, fail, load
    from netfold.cli.controllers import controller_of
    from netfold.cli.local_fabric import file_of
    from netfold.controller import client
    from netfold.wire import operator

    if file is not None:
        found = {s.name: (s.grpc, s.device_id) for s in load(file_of(file)).switches}
    else:
        asked = controller_of(None, controller)
        status: operator.Status = awaited(client.status(asked.address, token=asked.token))
        found = {s.name: (s.grpc, s.device_id) for s in status.switches}
    if name not in found:
        fail(CANNOT, f"shell: the fabric has no switch {name!r}; it has {', '.join(found)}")
    return found[name]
