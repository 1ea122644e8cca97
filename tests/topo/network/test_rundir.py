# SPDX-License-Identifier: Apache-2.0
"""Folders of sandboxes: one that is in use is never removed, one whose holder was killed goes with the next start."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from netfold.topo.network import sandbox
from netfold.topo.network.rundir import LOCK, PREFIX, clear_abandoned, locked_folder

BOUND = 60.0
HOLDER = """
import sys
from pathlib import Path
from netfold.topo.network.rundir import locked_folder
with locked_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def killed_holders_folder(place: Path) -> Path:
    """A folder whose owner was killed by SIGKILL, with a dead socket and a log in it."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
    with holder:
        try:
            assert holder.stdout is not None
            folder = Path(holder.stdout.readline().strip())
            assert clear_abandoned(place) == [], "a folder that another process holds was taken for abandoned"
        finally:
            holder.kill()
        assert holder.wait(BOUND) == -signal.SIGKILL
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
    (folder / "logs-1").mkdir()
    (folder / "logs-1" / "spine1.log").write_text("last words\n")
    return folder


def test_a_folder_goes_with_its_block(tmp_path: Path) -> None:
    """Nobody removes a folder while it is locked; after the block it is gone with everything in it."""
    with locked_folder(tmp_path) as folder:
        (folder / "file").touch()
        assert clear_abandoned(tmp_path) == []
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_holder_leaves_is_removed(tmp_path: Path) -> None:
    """The lock of a killed owner is free, so that its folder is removed; a folder in use stays."""
    dead = killed_holders_folder(tmp_path)
    with locked_folder(tmp_path) as used:
        assert clear_abandoned(tmp_path) == [dead]
        assert list(tmp_path.iterdir()) == [used]


def test_what_could_not_be_removed_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that stays once keeps the lock file, by which the folder is known as a launcher's."""
    unlink, failed = os.unlink, []

    def busy_once(path: str, **at: int) -> None:
        if Path(path).name == "hosts.names" and not failed:
            failed.append(path)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        unlink(path, **at)

    monkeypatch.setattr(os, "unlink", busy_once)
    with locked_folder(tmp_path) as folder:
        for name in ("hosts.names", "other"):
            (folder / name).touch()
        (folder / "logs").mkdir()
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, "hosts.names"]
    assert clear_abandoned(tmp_path) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_a_file_made_while_the_folder_is_removed_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is about to die may make one after the lock file is gone."""
    rmdir = Path.rmdir

    def late(folder: Path) -> None:
        (folder / "late").touch()
        rmdir(folder)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rmdir", late)
        with locked_folder(tmp_path) as folder:
            pass
    assert sorted(path.name for path in folder.iterdir()) == [LOCK, "late"]
    assert clear_abandoned(tmp_path) == [folder]


def test_what_may_be_somebody_elses_stays(tmp_path: Path) -> None:
    """A folder without a lock file, and links in place of either, are left alone."""
    dead = killed_holders_folder(tmp_path)
    elsewhere = dead.rename(tmp_path / "elsewhere")
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}plain").mkdir()
    (tmp_path / f"{PREFIX}sly").mkdir()
    (tmp_path / f"{PREFIX}sly" / LOCK).symlink_to(elsewhere / LOCK)
    (tmp_path / f"{PREFIX}file").touch()
    assert clear_abandoned(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 5
    assert (elsewhere / "logs-1" / "spine1.log").exists()


@pytest.mark.needs("root")
def test_another_users_folder_stays(tmp_path: Path) -> None:
    """A folder of another user is left alone, also by root."""
    dead = killed_holders_folder(tmp_path)
    os.chown(dead, 12345, 12345)
    assert clear_abandoned(tmp_path) == []


@pytest.mark.netns
@pytest.mark.needs("namespaces", "mininet")
def test_a_sandbox_removes_what_a_killed_one_left() -> None:
    """When a launcher was killed by SIGKILL, the next one removes its folder, and keeps its own."""
    launcher = subprocess.Popen(sandbox.command(["sh", "-c", f"echo ${sandbox.RUNDIR}; exec sleep 600"],
                                                with_parent=True), stdout=subprocess.PIPE, text=True)
    with launcher:
        try:
            assert launcher.stdout is not None
            folder = Path(launcher.stdout.readline().strip())
            assert folder.is_dir()
            assert sandbox.run(["test", "-d", str(folder)], timeout=BOUND).returncode == 0, "removed while in use"
        finally:
            launcher.kill()
        assert launcher.stdout.read() == "", "somebody inside survived"
    # init shares the lock, and may still be closing its files
    assert any(sandbox.run(["test", "-e", str(folder)], timeout=BOUND).returncode == 1 for _ in range(20))
