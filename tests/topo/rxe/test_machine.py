# SPDX-License-Identifier: Apache-2.0
"""A machine's command line; what it does once it runs is tested with fabrics (tests/e2e/test_rxe.py)."""

from __future__ import annotations

from pathlib import Path

from netfold.topo.rxe.machine import Machine, System


def test_paths_with_commas_are_doubled_for_qemu() -> None:
    """In a list of options a comma ends a value, and two of them are one; a path that stands alone has each once."""
    system = System(Path("/k,1/linux"), Path("/i,2/cpio"), Path("/u,3"), Path("/s,4"))
    command = Machine("h1", system, Path("/f"), [], logs=Path("/x/a,b")).command(3)
    assert "file,id=console,path=/x/a,,b/h1-console.log" in command
    folders = [word for word in command if word.startswith("local,")]
    assert [word.split(",path=")[1].split(",security")[0] for word in folders] == ["/", "/u,,3", "/s,,4"]
    assert {"/k,1/linux", "/i,2/cpio"} < {*command}
