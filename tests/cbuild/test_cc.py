# SPDX-License-Identifier: Apache-2.0
"""cbuild.cc: builds, caches, and says what went wrong."""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cbuild import cc


def test_shared_library_from_text_is_loadable(tmp_path: Path) -> None:
    """C text becomes a library whose functions ctypes can call."""
    library = cc.build(["int answer(void) { return 42; }"], kind="shared", name="t", cache_dir=tmp_path)

    assert ctypes.CDLL(str(library)).answer() == 42


def test_program_from_files_with_header(tmp_path: Path) -> None:
    """A program is linked from several sources with an include directory."""
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "three.h").write_text("#define THREE 3\n")
    source = tmp_path / "main.c"
    source.write_text('#include "three.h"\nint two(void);\nint main(void) { return THREE + two(); }\n')

    program = cc.build(
        [source, "int two(void) { return 2; }"],
        kind="exe",
        include=[tmp_path / "inc"],
        cache_dir=tmp_path / "c",
    )

    assert subprocess.run([program], timeout=10).returncode == 5


def test_objects_of_several_files_are_linked_into_both_kinds(tmp_path: Path) -> None:
    """Files become one object, with their own headers; a library and a program are made of the same one."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "two.h").write_text("#define TWO 2\n")
    (tmp_path / "a" / "two.c").write_text('#include "two.h"\nint two(void) { return TWO; }\n')
    (tmp_path / "three.c").write_text("int three(void) { return two() + 1; }\n")  # declared by the file before it
    cache = tmp_path / "c"
    part = cc.build([tmp_path / "a" / "two.c", tmp_path / "three.c"], kind="object", cache_dir=cache)

    library = cc.build([part, "int three(void); int six(void) { return 2 * three(); }"], kind="shared", cache_dir=cache)
    program = cc.build([part, "int three(void); int main(void) { return three(); }"], kind="exe", cache_dir=cache)
    assert ctypes.CDLL(str(library)).six() == 6
    assert subprocess.run([program], timeout=10).returncode == 3

    (tmp_path / "a" / "two.h").write_text("#define TWO 5\n")
    changed = cc.build([tmp_path / "a" / "two.c", tmp_path / "three.c"], kind="object", cache_dir=cache)
    again = cc.build([changed, "int three(void); int main(void) { return three(); }"], kind="exe", cache_dir=cache)
    assert subprocess.run([again], timeout=10).returncode == 6


def test_equal_build_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second build of the same sources runs no compiler."""
    counted, runs = tmp_path / "counted", tmp_path / "runs"
    counted.write_text(f'#!/bin/sh\necho "$@" >> {runs}\nexec {shlex.join(cc.find_compiler().command)} "$@"\n')
    counted.chmod(0o755)
    monkeypatch.setenv("SOFTSWITCH_CC", str(counted))
    first = cc.build(["int a;"], kind="shared", cache_dir=tmp_path / "c")
    before = runs.read_text()
    assert "-shared" in before

    assert cc.build(["int a;"], kind="shared", cache_dir=tmp_path / "c") == first
    assert runs.read_text() == before


def test_equal_sources_in_other_folders_are_taken_from_the_cache(tmp_path: Path) -> None:
    """Another clone or installation of the same version compiles nothing again; a header beside a source counts."""
    results = []
    for folder, value in (("one", 1), ("two", 1), ("three", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
        source = tmp_path / folder / "value.c"
        source.write_text('#include "value.h"\nint value(void) { return VALUE; }\n')
        results.append(cc.build([source], kind="shared", cache_dir=tmp_path / "c"))

    assert results[0] == results[1]
    assert [ctypes.CDLL(str(result)).value() for result in results] == [1, 1, 3]


def test_header_flag_and_source_changes_rebuild(tmp_path: Path) -> None:
    """Whatever enters the result enters the key: sources, headers, flags."""
    (tmp_path / "h.h").write_text("#define V 1\n")

    def run(text: str = '#include "h.h"\nint v(void) { return V; }', flags: tuple[str, ...] = ()) -> Path:
        return cc.build([text], kind="shared", include=[tmp_path], flags=flags, cache_dir=tmp_path / "c")

    results = [run(), run(flags=("-DX",)), run('#include "h.h"\nint v(void) { return -V; }')]
    (tmp_path / "h.h").write_text("#define V 2\n")
    results.append(run())

    assert len(set(results)) == 4
    assert ctypes.CDLL(str(results[-1])).v() == 2


def test_what_a_compiler_finds_by_its_environment_is_part_of_the_key(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another header by CPATH is another result; so is another compiler behind a wrapper."""
    built = []
    for value in (1, 2):
        (tmp_path / str(value)).mkdir()
        (tmp_path / str(value) / "value.h").write_text(f"#define VALUE {value}\n")
        monkeypatch.setenv("CPATH", str(tmp_path / str(value)))
        text = '#include "value.h"\nint value(void) { return VALUE; }\n'
        built.append(cc.build([text], kind="shared", cache_dir=tmp_path / "c"))
    assert [ctypes.CDLL(str(library)).value() for library in built] == [1, 2]

    monkeypatch.delenv("CPATH")
    inner = tmp_path / "inner"
    inner.write_text('#!/bin/sh\nexec cc -DVALUE=3 "$@"\n')
    inner.chmod(0o755)
    monkeypatch.setenv("SOFTSWITCH_CC", f"env {inner}")
    asks = [sys.executable, "-c", "import sys; from pathlib import Path; from cbuild import cc; "
            "from cbuild.cache import Cache; print(cc.find_compiler(Cache(only=Path(sys.argv[1]))).identity)",
            str(tmp_path / "c")]
    before, again = (subprocess.check_output(asks, timeout=60) for _ in range(2))
    assert before == again
    inner.write_text('#!/bin/sh\nexec cc -DVALUE=42 "$@"\n')
    assert subprocess.check_output(asks, timeout=60) != before


def test_failure_shows_command_and_compiler_output(tmp_path: Path) -> None:
    """A C error comes back with the command line and the compiler's own words."""
    with pytest.raises(cc.BuildError, match=r"(?s)exit status.*-O2.*undeclared_thing"):
        cc.build(["int f(void) { return undeclared_thing; }"], kind="shared", cache_dir=tmp_path)


def test_unknown_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SOFTSWITCH_CC that does not exist is refused by name, not replaced silently."""
    monkeypatch.setenv("SOFTSWITCH_CC", "no-such-cc -m32")

    with pytest.raises(cc.BuildError, match="no-such-cc"):
        cc.build(["int a;"], kind="shared", cache_dir=tmp_path)


def test_no_compiler_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a system's compiler nor the wheel: the message has a command for each, and what was tried."""
    monkeypatch.delenv("SOFTSWITCH_CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(cc.BuildError, match=r"(?s)apt install gcc.*pip install ziglang.*gcc: not on PATH"):
        cc.build(["int a;"], kind="shared", cache_dir=tmp_path)


def test_flag_that_compiler_refuses_is_left_out(tmp_path: Path) -> None:
    """Optional flags fall away where the compiler does not know them; plain flags do not."""
    cc.build(["int a;"], kind="shared", optional_flags=["-fno-such-flag-here"], cache_dir=tmp_path)

    with pytest.raises(cc.BuildError, match="no-such-flag-here"):
        cc.build(["int a;"], kind="shared", flags=["-fno-such-flag-here"], cache_dir=tmp_path)


def test_concurrent_builds_agree(tmp_path: Path) -> None:
    """Starts that race for one cache entry all get the same, whole file."""
    code = (
        "import sys; from pathlib import Path; from cbuild import cc\n"
        "print(cc.build(['int f(void) { return 7; }'], kind='shared', cache_dir=Path(sys.argv[1])))"
    )

    def start(_: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        results = set(pool.map(start, range(4)))

    assert len(results) == 1
    assert ctypes.CDLL(results.pop()).f() == 7


def test_a_compiler_that_takes_too_much_is_ended_by_name(tmp_path: Path) -> None:
    """A source that grows without end: the limits hold for the compiler's own processes, and the error is theirs."""
    endless = '#include "/dev/zero"\n'
    with pytest.raises(cc.LimitError, match="400 MiB"):
        cc.build([endless], kind="shared", cache_dir=tmp_path, limits=cc.Limits(60, 400 << 20))


def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """What lies in the cache is run: a folder that others may write to, or exchange, is none."""
    cache = tmp_path / "c"
    cc.build(["int a;"], kind="shared", cache_dir=cache)
    cache.chmod(0o777)
    with pytest.raises(cc.BuildError, match="anyone may exchange what is in"):
        cc.build(["int a;"], kind="shared", cache_dir=cache)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(cc.BuildError, match="anyone may exchange what is in"):
        cc.build(["int a;"], kind="shared", cache_dir=tmp_path / "open" / "c")
