# SPDX-License-Identifier: Apache-2.0
"""Where files are written, whoever has put what in their place."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netfold.disk import files
from support import ROOT, SWITCH

NOBODY = 65534


def created(path: Path) -> None:
    """Write a new file by `create`."""
    with files.create(path) as file:
        file.write(b"new")


def appended(path: Path) -> None:
    """Write to a file's end by `append`."""
    with files.append(path) as file:
        file.write(b"new")


WRITERS: list[Callable[[Path], None]] = [lambda path: files.replace(path, b"new"), created, appended]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder where everybody may write, as /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.needs("root")
@pytest.mark.parametrize("write", WRITERS)
def test_nothing_is_written_through_another_users_link(write: Callable[[Path], None], shared: Path,
                                                       tmp_path: Path) -> None:
    """Neither to what the link names, nor below a folder that it names: the error names the link's owner."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("old")
    for name, target in (("file", precious / "file"), ("dir", precious), ("dangling", precious / "more")):
        (shared / name).symlink_to(target)
        os.chown(shared / name, NOBODY, NOBODY, follow_symlinks=False)
    for path in (shared / "file", shared / "dir" / "file", shared / "dir" / "other", shared / "dangling"):
        with pytest.raises(OSError, match=f"belongs to user {NOBODY}, who may exchange it: '{path}'"):
            write(path)
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert (precious / "file").read_text() == "old"


@pytest.mark.parametrize("write", WRITERS)
def test_links_of_ones_own_are_followed(write: Callable[[Path], None], shared: Path, tmp_path: Path) -> None:
    """A user's own link to a file, or to a folder, leads where it always did, and stays."""
    (tmp_path / "place").mkdir()
    (shared / "dir").symlink_to(tmp_path / "place")
    (shared / "link").symlink_to("dir/file")
    write(shared / "link")
    assert (tmp_path / "place" / "file").read_text() == "new"
    assert (shared / "link").is_symlink()


@pytest.mark.needs("root")
def test_another_users_file_is_replaced_and_not_written_to(shared: Path) -> None:
    """Who made the file before keeps the old one, and gets no permission to the new one; nothing is added to theirs."""
    path = shared / "log"
    path.write_text("theirs")
    path.chmod(0o666)
    os.chown(path, NOBODY, NOBODY)
    with path.open() as theirs:
        with pytest.raises(OSError, match="it is another user's"):
            appended(path)
        for write in WRITERS[:2]:
            write(path)
            status = path.stat()
            assert (status.st_uid, status.st_mode & 0o022, path.read_text()) == (0, 0, "new")
            os.chown(path, NOBODY, NOBODY)
        assert theirs.read() == "theirs"
    assert [entry.name for entry in shared.iterdir()] == ["log"]


def test_permissions_are_there_from_the_first_byte(tmp_path: Path) -> None:
    """A secret's file is never readable by others, whatever the umask and the file before."""
    path = tmp_path / "key"
    path.write_text("old")
    path.chmod(0o644)
    with files.create(path, mode=0o600) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    files.replace(path, b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    files.replace(path, b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("write", WRITERS)
def test_a_pipe_is_written_to(write: Callable[[Path], None], tmp_path: Path) -> None:
    """A file that is not regular is not replaced: a reader is there."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write(pipe)
    reader.join(60)
    assert got == ["new"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.needs("root")
def test_another_users_pipe_in_a_shared_folder_is_refused(shared: Path) -> None:
    """Its owner would read what is written, and could make the writer wait."""
    os.mkfifo(shared / "pipe")
    os.chown(shared / "pipe", NOBODY, NOBODY)
    for write in WRITERS:
        with pytest.raises(OSError, match="another user's pipe"):
            write(shared / "pipe")


@pytest.mark.needs("root")
def test_another_users_socket_in_a_shared_folder_is_refused(shared: Path) -> None:
    """Whatever is no regular file may be exchanged for a link before it is opened."""
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(shared / "socket"))
    os.chown(shared / "socket", NOBODY, NOBODY)
    for write in WRITERS:
        with pytest.raises(OSError, match="another user's special file"):
            write(shared / "socket")


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("write", WRITERS)
def test_what_is_exchanged_before_it_is_opened_is_not_written_to(
    write: Callable[[Path], None], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that becomes a link to another file, or another pipe, after it was looked at."""
    precious, place = tmp_path / "precious", tmp_path / "place"
    precious.write_text("old")
    os.mkfifo(place)
    os.mkfifo(tmp_path / "other")
    reader = os.open(tmp_path / "other", os.O_RDONLY | os.O_NONBLOCK)
    special = files.open_special

    def exchanging(*args: Any) -> int:
        if kind == "link":
            place.unlink()
            place.symlink_to(precious)
        else:
            (tmp_path / "other").rename(place)
        return special(*args)

    monkeypatch.setattr(files, "open_special", exchanging)
    with pytest.raises(OSError, match=r"exchanged|symbolic links"):
        write(place)
    assert precious.read_text() == "old"
    assert os.read(reader, 9) == b""
    os.close(reader)


def test_standard_output_is_written_to_by_its_name() -> None:
    """/dev/stdout is a link to a link that leads to what has no path."""
    program = ("from netfold.disk import files; files.replace('/dev/stdout', 'a'); "
               "files.create('/dev/stdout').write(b'b')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "ab"


def test_no_more_is_read_than_was_said(tmp_path: Path) -> None:
    """A file that is larger, or has no end, is an error with the number; lines end as Python's do."""
    path = tmp_path / "file"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    assert files.read_text(path, 15) == "one\ntwo\nthree\n"
    with pytest.raises(OSError, match="expected at most 14 bytes, got more"):
        files.read(path, 14)
    with pytest.raises(OSError, match="expected at most 1,024 bytes, got more"):
        files.read("/dev/zero", 1024)


@pytest.mark.parametrize(("path", "why"), [
    ("/proc/self", "Is a directory"), ("/proc/self/mem", "Input/output error"), ("/none", "No such file")])
def test_what_cannot_be_read_is_named_and_not_left_open(path: str, why: str) -> None:
    """A folder, and a file that opens but gives nothing, as one that is missing."""
    for named in (path, Path(path)):
        with pytest.raises(OSError, match=why) as caught:
            files.read(named)
        assert caught.value.filename == path
    assert os.path.realpath(path) not in [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]


def test_the_switch_writes_files_in_the_same_way() -> None:
    """NetFold and softswitch have a copy each, since neither needs the other: who changes one changes both."""
    copy = SWITCH / "src" / "softswitch" / "runtime" / "files.py"
    assert copy.read_text() == (ROOT / "disk" / "files.py").read_text()
