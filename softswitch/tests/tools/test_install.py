# SPDX-License-Identifier: Apache-2.0
"""`softswitch tools`: programs that run this installation from anywhere, and that replace nobody else's files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softswitch.tools import install


def test_programs_run_this_installation_from_anywhere(tmp_path: Path) -> None:
    """Without PATH, HOME or virtual environment, with a PYTHONPATH that is not theirs, as under sudo."""
    planted = tmp_path / "planted"
    for name in ("softswitch", "typer"):
        (planted / name).mkdir(parents=True)
        (planted / name / "__init__.py").write_text("raise SystemExit('planted')\n")
    made = install.install(tmp_path / "bin")
    for name in install.COMMANDS:
        done = subprocess.run([made.programs / name, "--help"], capture_output=True, text=True, timeout=60, cwd=planted,
                              env={"PYTHONPATH": str(planted)})
        assert (done.returncode, "planted" in done.stdout + done.stderr) == (0, False), (name, done.stderr)


def test_without_the_package_thrift_the_command_line_says_so(tmp_path: Path) -> None:
    """In one line, which names what to install."""
    (tmp_path / "thrift.py").write_text("raise ModuleNotFoundError('thrift', name='thrift')\n")
    start = "import sys; from softswitch.tools.cli import simple_switch_cli; sys.exit(simple_switch_cli())"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install thrift" in done.stderr


def test_a_shell_finds_the_programs_first(tmp_path: Path) -> None:
    """By the lines that are printed, whatever characters the folder's name has."""
    made = install.install(tmp_path / "it's here")
    script = f"{made.exports()}\ncommand -v p4c\ncommand -v simple_switch_grpc\necho $PYTHONPATH"
    said = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True, timeout=10).stdout
    assert str(made.programs / "p4c") in said
    assert str(made.programs / "simple_switch_grpc") in said
    assert str(made.modules) in said


def test_a_long_interpreters_path_is_started_by_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel cuts a first line that is too long, and reads a blank in it as its end."""
    link = tmp_path / ("it's a `fol\"der'" * 10) / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(link))
    made = install.install(tmp_path / "bin")
    assert (made.programs / "p4c").read_text().startswith("#!/bin/sh\n")
    done = subprocess.run([made.programs / "p4c", "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("p4c "), done.stderr


def test_again_replaces_its_own_files_and_no_others(tmp_path: Path) -> None:
    """A foreign file, also a link, stays, and nothing else is written then; --force replaces it, not its target."""
    folder = tmp_path / "bin"
    install.install(folder)
    (folder / "p4c").write_text((folder / "p4c").read_text() + "# changed\n")
    install.install(folder)
    assert "changed" not in (folder / "p4c").read_text()

    theirs = tmp_path / "theirs"
    theirs.write_text("#!/bin/sh\n")
    (folder / "simple_switch").unlink()
    (folder / "simple_switch").symlink_to(theirs)
    (folder / "p4c").unlink()
    with pytest.raises(install.ForeignFileError, match="simple_switch: not written by `softswitch tools`"):
        install.install(folder)
    assert not (folder / "p4c").exists()

    install.install(folder, force=True)
    assert not (folder / "simple_switch").is_symlink()
    assert theirs.read_text() == "#!/bin/sh\n"
    assert os.access(folder / "simple_switch", os.X_OK)


def test_a_folder_where_others_write_is_refused(tmp_path: Path) -> None:
    """They could replace what is run, or plant what is imported; also in a folder of modules, and before any file."""
    for name in (".", "python", "python/p4", "python/bm_runtime"):
        place = tmp_path / name
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o777)
        with pytest.raises(install.UnsafeError, match="every user may write there"):
            install.install(tmp_path)
        place.chmod(0o755)
    assert not list(tmp_path.glob("p4c*"))


def test_where_it_was_started_and_where_all_write_is_no_part_of_the_installation(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs may run as root, long after."""
    started, shared, library = (tmp_path / name for name in ("started", "shared", "library"))
    for place in (started, shared, library):
        place.mkdir()
    shared.chmod(0o777)
    monkeypatch.setattr(sys, "path", [str(started), str(shared), str(library), *sys.path])
    text = (install.install(tmp_path / "bin").programs / "p4c").read_text()
    assert [str(place) in text for place in (started, shared, library)] == [False, False, True]


def test_modules_for_control_planes_find_this_installation(tmp_path: Path) -> None:
    """In an interpreter that knows nothing of softswitch but the folder in PYTHONPATH."""
    made = install.install(tmp_path)
    script = "import _softswitch, softswitch.runtime.version; print(softswitch.__version__)"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, timeout=60,
                          env={"PYTHONPATH": str(made.modules)}, cwd="/")
    assert done.returncode == 0, done.stderr
