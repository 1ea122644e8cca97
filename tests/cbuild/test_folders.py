# SPDX-License-Identifier: Apache-2.0
"""cbuild.folders: in which folders nobody else can exchange anything."""

from __future__ import annotations

import grp
import os
import pwd
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cbuild import folders

NOBODY = 65534


def folder(path: Path, mode: int = 0o755, owner: int | None = None) -> Path:
    """A folder with these permissions, and another owner where the test is about one."""
    path.mkdir(exist_ok=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


@pytest.mark.parametrize(("above", "says"), [
    (0o777, "anyone may exchange what is in .*/above, which has no sticky bit"), (0o1777, None), (0o755, None),
])
def test_a_folder_above_that_all_may_write_to_needs_the_sticky_bit(
    above: int, says: str | None, tmp_path: Path
) -> None:
    """Without it everybody can rename what is in it; missing folders are made below the others alone."""
    inner = folder(tmp_path / "above", above) / "a" / "b"
    if says is None:
        assert folders.refusal(inner, make=0o700) is None
        assert inner.is_dir()
    else:
        with pytest.raises(PermissionError, match=says):
            folders.opened(inner, make=0o700)
        assert not list((tmp_path / "above").iterdir())


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """Others could add files to it, also where the sticky bit keeps them from replacing any."""
    assert folders.refusal(folder(tmp_path / "a", 0o1777)) == "others may write to it"
    assert folders.refusal(folder(tmp_path / "b", 0o775)) == "others may write to it"


@pytest.mark.needs("root")
def test_the_owner_of_any_folder_on_the_way_could_exchange_what_is_in_it(tmp_path: Path) -> None:
    """Each folder and each link on the way belongs to root or to this user."""
    theirs = folder(tmp_path / "theirs", owner=NOBODY)
    inner = folder(theirs / "ours")
    assert folders.refusal(inner) == f"{theirs} belongs to user {NOBODY}, who may exchange it"
    assert folders.refusal(theirs) is not None
    shared = folder(tmp_path / "shared", 0o1777)
    ours = folder(tmp_path / "ours")
    (shared / "link").symlink_to(ours)
    assert folders.refusal(shared / "link") is None
    os.chown(shared / "link", NOBODY, NOBODY, follow_symlinks=False)
    assert "the link" in str(folders.refusal(shared / "link"))
    (shared / "there").symlink_to(inner)
    assert folders.refusal(shared / "there") == f"{theirs} belongs to user {NOBODY}, who may exchange it"


@pytest.mark.needs("root")
def test_a_group_that_may_write_is_the_users_own_or_roots(tmp_path: Path) -> None:
    """A shared group's members could exchange folders; a group that has the user's name has no other members."""
    above = folder(tmp_path / "above", 0o775)
    inner = folder(above / "inner")
    assert folders.refusal(inner) is None
    os.chown(above, 0, 100)
    assert folders.refusal(inner) == f"group 100 may exchange what is in {above}"


@pytest.mark.needs("root")
def test_a_list_that_lets_another_user_write_is_found(tmp_path: Path) -> None:
    """With a list (acl(5)) the group's bits are what any entry may have; one that lets others read alone changes
    nothing."""
    above = folder(tmp_path / "above")
    inner = folder(above / "inner")

    def let(permissions: int) -> None:
        entries = [(1, 7, -1), (2, permissions, NOBODY), (4, 5, -1), (16, permissions, -1), (32, 5, -1)]
        said = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
        try:
            os.setxattr(above, "system.posix_acl_access", said)
        except OSError as error:
            pytest.skip(f"no access control lists in {tmp_path}: {error.strerror}")

    let(5)
    assert folders.refusal(inner) is None
    let(7)
    assert folders.refusal(inner) == (
        f"an access control list lets others exchange what is in {above}: see `getfacl {above}`")


def test_a_users_group_with_other_members_is_none_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was added to the group that has the user's name may write where it may."""
    user = "netta"
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd((user, "x", uid, 1234, "", "/", "/bin/sh")))
    for members, expected in (([], True), ([user, "root"], True), (["another"], False)):
        entry = grp.struct_group((user, "x", 1234, members))
        monkeypatch.setattr(grp, "getgrgid", lambda group, entry=entry: entry)
        assert folders.group_is_ours(1234) is expected


def test_links_are_followed_by_what_they_lead_through(tmp_path: Path) -> None:
    """Relative and absolute links, links to links and dots lead to the folder; a loop is an error."""
    inner = folder(folder(tmp_path / "a") / "inner")
    (tmp_path / "one").symlink_to("a/../a/inner")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "loop").symlink_to("loop")
    for path in (inner, tmp_path / "one", tmp_path / "two", tmp_path / "two" / ".." / "inner"):
        opened = folders.opened(path)
        assert os.path.samestat(os.fstat(opened), inner.stat())
        os.close(opened)
    assert folders.refusal(tmp_path / "loop") == os.strerror(40)
    (tmp_path / "file").touch()
    assert folders.refusal(tmp_path / "file" / "x", make=0o700) == "file is no folder"
    assert folders.refusal(tmp_path / "missing") == "No such file or directory"


@pytest.mark.needs("root")
def test_roots_folders_count_in_a_user_namespace_too() -> None:
    """Where root has no number, as in an ordinary user's sandbox, what was root's still counts."""
    program = (
        "import ctypes, os; from pathlib import Path; from cbuild import folders; libc = ctypes.CDLL(None)\n"
        "os.setgroups([]); os.setresgid(1, 1, 1); os.setresuid(1, 1, 1)\n"
        "assert libc.prctl(4, 1) == 0 and libc.unshare(0x10000000) == 0\n"  # dumpable; a user namespace
        "Path('/proc/self/uid_map').write_text('0 1 1')\n"
        "print(os.geteuid(), os.stat('/').st_uid, folders.refusal(Path('/usr')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["0", str(NOBODY), "None"], done.stderr
