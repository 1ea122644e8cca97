# SPDX-License-Identifier: Apache-2.0
"""cbuild.cache: which folders are used for what is compiled, and which are not, whoever owns what is around them."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cbuild import cache, cc
from cbuild.cache import Cache

NOBODY = 65534
ANSWER = ["int answer(void) { return 42; }"]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home, temporary folder and /var/tmp of a process that has said nothing and made no folder yet."""
    for name in ("home", "tmp", "var"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(cache, "VAR_TMP", tmp_path / "var")
    monkeypatch.setattr(cache, "_own", cache._Own())
    monkeypatch.setattr(cache, "_said", set())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(path: Path) -> int:
    """What a library answers."""
    found = ctypes.CDLL(str(path)).answer()
    assert isinstance(found, int)
    return found


def test_the_first_safe_folder_is_taken_and_said(places: Path, caplog: pytest.LogCaptureFixture) -> None:
    """XDG_CACHE_HOME or ~/.cache, then the temporary folder, then /var/tmp; another one than the first is logged once,
    with the reason."""
    assert Cache().folder() == places / "home" / ".cache" / "softswitch"
    assert not caplog.text
    (places / "home").chmod(0o777)
    ours = f"softswitch-{os.geteuid()}"
    assert Cache().folder() == Cache().folder() == places / "tmp" / ours
    assert (places / "tmp" / ours).stat().st_mode & 0o777 == 0o700
    (places / "tmp").chmod(0o777)
    assert Cache().folder() == places / "var" / ours
    assert [len(re.findall("not in", record.message)) for record in caplog.records] == [1, 2]
    assert "anyone may exchange what is in" in caplog.text


def test_without_a_safe_folder_a_process_has_one_of_its_own(places: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Home and temporary folders of mode 0777 without the sticky bit, as Kubernetes' emptyDir is: what is built works,
    also once somebody has exchanged the folder under its name; a program that this one starts reaches it."""
    for name in ("home", "tmp", "var"):
        (places / name).chmod(0o777)
    library = cc.build(ANSWER, kind="shared")
    assert "for this process alone" in caplog.text
    (folder,) = (places / "tmp").iterdir()
    folder.rename(places / "tmp" / "away")
    folder.mkdir()
    (folder / library.name).write_bytes(b"evil")
    assert cc.build(ANSWER, kind="shared") == library
    assert answer(library) == 42
    program = cc.build(["int main(void) { return 42; }"], kind="exe")
    assert subprocess.run([program], check=False, timeout=60).returncode == 42
    with pytest.raises(PermissionError, match="set XDG_CACHE_HOME"):
        Cache().folder(lasting=True)


def test_without_a_temporary_folder_the_others_serve(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's disk is full or read-only, and no temporary folder takes a file: home serves, and where that cannot be
    written to either, the error says what to set."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc"])
    assert Cache().find("x") is None
    assert Cache().unsafe() is None
    assert answer(cc.build(ANSWER, kind="shared")) == 42
    for name in ("home", "var"):
        (places / name).chmod(0o777)
    with pytest.raises(PermissionError, match=r"No usable temporary directory.*set XDG_CACHE_HOME"):
        Cache().folder()
    with pytest.raises(cc.BuildError, match="set XDG_CACHE_HOME"):
        cc.build(["int other;"], kind="object")


def test_a_process_removes_its_own_folder(places: Path) -> None:
    """It ends with the process, and with none of the processes that it has forked."""
    for name in ("home", "tmp", "var"):
        (places / name).chmod(0o777)
    program = ("import os, sys, tempfile, pathlib; from cbuild import cache; cache.VAR_TMP = pathlib.Path('var');"
               "tempfile.tempdir = 'tmp'; f = cache.Cache().folder(); (f / 'x').touch(); (f / 'd').mkdir();"
               "pid = os.fork(); pid or sys.exit(); os.waitpid(pid, 0); print(len(os.listdir(f)), os.listdir('tmp'))")
    done = subprocess.run([sys.executable, "-c", program], cwd=places, capture_output=True, text=True, timeout=60,
                          check=True)
    assert re.fullmatch(r"2 \['softswitch-.*'\]\n", done.stdout), done.stderr
    assert not list((places / "tmp").iterdir())


@pytest.mark.needs("root")
def test_what_an_image_brings_is_used(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What root has built is used by another user, who can write nowhere, also where there is no compiler by then."""
    image = places / "image"
    monkeypatch.setenv("XDG_CACHE_HOME", str(image))
    before = os.umask(0o022)  # as in what builds images
    try:
        library = cc.build(ANSWER, kind="shared")
    finally:
        os.umask(before)
    for path in (places, *places.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o011)
    euid = os.geteuid()
    monkeypatch.setattr(cache.folders, "trusted", lambda status: status.st_uid in {0, NOBODY})
    try:
        os.seteuid(NOBODY)
        assert cc.build(ANSWER, kind="shared") == library
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(cc.sys, "executable", "/nowhere/python")
        assert cc.build(ANSWER, kind="shared") == library
        with pytest.raises(cc.BuildError, match="no working C compiler"):
            cc.build(ANSWER, kind="shared", optional_flags=["-march=native"])
    finally:
        os.seteuid(euid)


@pytest.mark.needs("root")
def test_what_others_could_change_is_built_again(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder below one of another user's, a file that others may write to, one of another user's, and a link."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(places / "x"))
    library = cc.build(ANSWER, kind="shared")
    os.chown(places / "x", NOBODY, NOBODY)
    elsewhere = cc.build(ANSWER, kind="shared")
    assert elsewhere.parent == places / "tmp" / f"softswitch-{os.geteuid()}"
    os.chown(places / "x", 0, 0)
    assert cc.build(ANSWER, kind="shared") == library
    for spoil in (lambda: library.chmod(0o757), lambda: os.chown(library, NOBODY, NOBODY),
                  lambda: (library.unlink(), library.symlink_to(elsewhere))):
        spoil()
        assert Cache(only=library.parent).find(library.name) is None
        library.unlink()
        library.write_bytes(elsewhere.read_bytes())
        library.chmod(0o755)


def test_what_is_built_is_nobody_elses_whatever_the_umask(places: Path) -> None:
    """With umask 0 the result would be everybody's to write."""
    before = os.umask(0)
    try:
        assert cc.build(ANSWER, kind="shared").stat().st_mode & 0o777 == 0o755
        assert cc.build(ANSWER, kind="object").stat().st_mode & 0o777 == 0o644
        assert not any(path.stat().st_mode & 0o022 for path in cc.default_cache_dir().iterdir())
    finally:
        os.umask(before)


@pytest.mark.needs("namespaces")
def test_a_folder_whose_programs_may_not_run_is_passed_over(places: Path) -> None:
    """A file system that is mounted noexec: another folder is taken; one that was asked for is a named error."""
    program = ("import sys; from cbuild import cc, cache; from pathlib import Path\n"
               "cache.VAR_TMP = Path(sys.argv[1], 'var')\n"
               "print(cc.build(['int a;'], kind='shared').parent)\n"
               "try: cc.build(['int a;'], kind='shared', cache_dir=Path(sys.argv[1], 'home', 'c'))\n"
               "except cc.BuildError as error: print(error)")
    shell = ('mount -t tmpfs -o noexec,mode=755 none "$0/home" && HOME="$0/home" TMPDIR="$0/tmp" '
             'exec "$1" -c "$2" "$0"')
    done = subprocess.run(["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else []), "sh", "-c",
                           shell, places, sys.executable, program], capture_output=True, text=True, timeout=120,
                          check=False)
    where, said = done.stdout.splitlines()
    assert where == str(places / "tmp" / f"softswitch-{0}"), done.stderr
    assert "programs in it may not be run (noexec)" in said
    assert "set XDG_CACHE_HOME" in said


def test_without_a_home_no_folder_is_made_where_one_stands(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME and without an entry in the passwd file has no ~, which is no folder's name either."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert Cache().folder() == places / "tmp" / f"softswitch-{os.geteuid()}"
    assert not (places / "~").exists()


def test_a_name_of_the_log_is_no_part_of_what_is_built(places: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the first folder serves, nothing is said."""
    with caplog.at_level(logging.INFO):
        cc.build(ANSWER, kind="shared")
    assert not caplog.records
