# SPDX-License-Identifier: Apache-2.0
"""Which fabric a command is for, where several run and one of them is not up yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from netfold.cli.controllers import controller_of
from netfold.cli.local_fabric import file_of, socket_of
from netfold.fabric.file import save
from netfold.fabric.generate import leafspine
from netfold.rpc import local
from netfold.topo.network import rundir
from netfold.wire import faults


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """The folders of two fabrics, whose fault services answer: `lab` is up, the other one is starting."""
    made: dict[str, Path] = {}
    servers: list[local.Server[faults.Request]] = []
    for name in ("lab", "starting"):
        made[name] = tmp_path / name
        made[name].mkdir()
        planes = [faults.PlaneOf(str(made[name] / "fabric.toml"), f"unix:{made[name]}/controller.sock")]
        answer = (faults.ActiveFaults("lab", [], True, planes) if name == "lab"
                  else faults.Refused("the fabric is not up yet: try again", True))
        servers.append(local.Server(made[name] / faults.SOCKET, faults.Request,
                                    lambda request, answer=answer: (answer, ()), faults.Refused))
    monkeypatch.setattr(rundir, "in_use", lambda: list(made.values()))
    monkeypatch.delenv(faults.FAULTS_VARIABLE, raising=False)
    yield made
    for server in servers:
        server.close()


def test_a_fabric_that_is_starting_hides_no_other_one(folders: dict[str, Path]) -> None:
    """One that is up is found by its name and by its folder, and the one that is starting by its folder."""
    assert socket_of("lab") == folders["lab"] / faults.SOCKET
    for folder in folders.values():
        assert socket_of(str(folder)) == folder / faults.SOCKET


@pytest.mark.parametrize("which", [None, "nowhere"])
def test_what_runs_is_told_where_the_choice_is_not_clear(
    which: str | None, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a choice both are named, with their folders; a name that nothing has is an error of its own."""
    with pytest.raises(typer.Exit):
        socket_of(which)
    said = capsys.readouterr().err
    if which is None:
        assert all(f"{name} ({folder})" in said for name, folder in folders.items())
    else:
        assert f"no fabric of this user called {which} runs here" in said


def test_a_command_finds_the_controller_of_the_fabric_that_runs(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word where one runs, by its name where several do; what the user names goes first."""
    monkeypatch.delenv("NETFOLD_CONTROLLER", raising=False)
    save(leafspine(2, 2, 4), folders["lab"] / "fabric.toml")
    here = f"unix:{folders['lab']}/controller.sock"
    assert file_of(Path("lab")) == folders["lab"] / "fabric.toml"
    assert controller_of(Path("lab"), None).address == leafspine(2, 2, 4).jobs
    assert controller_of(folders["lab"] / "fabric.toml", None).address == leafspine(2, 2, 4).jobs
    with pytest.raises(typer.Exit):  # two run, and none is named
        controller_of(None, None)
    monkeypatch.setattr(rundir, "in_use", lambda: [folders["lab"]])
    assert controller_of(None, None).address == here
    assert controller_of(None, "unix:/other").address == "unix:/other"
    monkeypatch.setenv("NETFOLD_CONTROLLER", "10.0.0.9:50050")
    assert controller_of(None, None).address == "10.0.0.9:50050"


def test_a_name_that_no_fabric_has_is_an_error(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """It is neither a file nor a fabric that runs here."""
    with pytest.raises(typer.Exit):
        controller_of(Path("nowhere"), None)
    assert "there is no file nowhere, and no fabric of this user called nowhere runs here" in capsys.readouterr().err
