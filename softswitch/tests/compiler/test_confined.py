# SPDX-License-Identifier: Apache-2.0
"""Programs that would take all time and memory are refused, by name, within bounds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from softswitch.compiler import confined, device_config

pytestmark = pytest.mark.slow

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
@TOP@
header a_t { bit<8> x; }
struct headers_t { a_t a; @HEADER@ }
struct meta_t { bit<8> m; }
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    @LOCAL@
    state start { p.extract(h.a); transition accept; }
}
control Check(inout headers_t h, inout meta_t m) { apply {} }
control In(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { @DECLARE@ apply { @BODY@ } }
control Out(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply {} }
control Write(packet_out p, in headers_t h) { apply { p.emit(h.a); } }
V1Switch(Parse(), Check(), In(), Out(), Check(), Write()) main;
"""
_TABLE = "table t {{ key = {{ h.a.x: exact; }} actions = {{ NoAction; }} size = {}; }}"


def program(**parts: str) -> str:
    """PROGRAM with these parts."""
    text = PROGRAM
    for place in ("TOP", "HEADER", "LOCAL", "DECLARE", "BODY"):
        text = text.replace(f"@{place}@", parts.get(place, ""))
    return text


def doubling(n: int, first: str, step: str) -> str:
    """n declarations, each of which uses the one before twice: `step` has {this} and {last}."""
    return "\n".join([first, *(step.format(this=i, last=i - 1) for i in range(1, n))])


BOMBS = {
    "a stack of 10^9": (program(HEADER="a_t[1000000000] st;"), "a stack of 1000000000 elements"),
    "a stack of 65536": (program(HEADER="a_t[65536] st;"), r"a_t\[65536\] takes .* bytes"),
    "bit<2^31>": (program(TOP="header w_t { bit<2147483648> x; }"), "at most 65536 bits"),
    "10^11w1": (program(BODY="m.m = (bit<8>)(100000000000w1);"), "a literal of 100000000000 bits"),
    "a width of 5000 digits": (program(BODY=f"m.m = {'9' * 5000}w1;"), "at most 65536 are supported"),
    "a number of 50000 digits": (program(BODY=f"m.m = {'9' * 50000};"), "is not a number of at most"),
    "a table of 2^40": (program(DECLARE=_TABLE.format(1 << 40), BODY="t.apply();"), "size of 1099511627776"),
    "a table of 10^30": (program(DECLARE=_TABLE.format(10**30), BODY="t.apply();"), "size of 1000000000000000000"),
    "a register of 10^12": (program(DECLARE="register<bit<32>>(1000000000000) r;"), "expected a number up to"),
    "registers of 1 TiB": (
        program(DECLARE="".join(f"register<bit<65536>>(1000000) r{i};" for i in range(100))), "more than 4 GiB"),
    "a value set of 10^20": (program(LOCAL=f"value_set<bit<8>>({10**20}) vs;"), "size of 100000000000000000000"),
    "an id of 10^20": (program(DECLARE=f"@id({10**20}) {_TABLE.format(1)}", BODY="t.apply();"), "does not fit P4Info"),
    "macros that double": (
        doubling(60, "#define a0 1+1", "#define a{this} a{last} + a{last}") + program(BODY="m.m = a59;"),
        "expands to more than"),
    "a line of macros, a thousand times": (
        doubling(14, "#define a0 1+1", "#define a{this} a{last} + a{last}") + program(BODY="m.m = a13;\n" * 1000),
        "expands to more than"),
    "20000 macros deep": (
        doubling(20000, "#define a0 1", "#define a{this} a{last}") + program(BODY="m.m = a19999;"), "400 deep"),
    "#if of 100000 parentheses": ("#if " + "(" * 100000 + "\n#endif\n" + program(), "nests too deeply"),
    "100000 parentheses": (program(BODY="m.m = " + "(" * 100000 + "1" + ")" * 100000 + ";"), "nests too deeply"),
    "100000 blocks": (program(BODY="{" * 100000 + "}" * 100000), "nests too deeply"),
    "a sum of 20000": (program(BODY="m.m = " + "m.m + " * 20000 + "1;"), "nests too deeply"),
    "constants that square": (
        program(TOP=doubling(60, "const int c0 = 3;", "const int c{this} = c{last} * c{last};")), "is too large"),
    "structs that double": (
        program(TOP=doubling(40, "struct s0 { bit<64> a; }", "struct s{this} {{ s{last} a; s{last} b; }}"),
                BODY="s39 v; s39 w = v;"), "takes .* bytes"),
    "controls that double": (
        program(TOP=doubling(40, "control C0() { apply {} }",
                             "control C{this}() {{ C{last}() a; C{last}() b; apply {{}} }}"),
                DECLARE="C39() c;"), "more than 10000 instances"),
    "functions that double": (
        program(TOP=doubling(40, "bit<8> f0(in bit<8> x) { return x + 1; }",
                             "bit<8> f{this}(in bit<8> x) {{ return f{last}(x) + f{last}(x); }}"),
                BODY="m.m = f39(m.m);"), "grows beyond 200000 statements"),
}


FORKS = """
import json, os, sys
from softswitch.compiler import confined, driver, preprocess

def file(data):
    made = os.memfd_create("")
    os.write(made, data)
    os.lseek(made, 0, os.SEEK_SET)
    return made

for text in json.load(sys.stdin):
    program, said = file(text.encode()), file(b"")
    pid = os.fork()
    if pid == 0:
        os.dup2(program, 0)
        os.dup2(said, 1)
        sys.stdin, sys.stdout = open(0), open(1, "w")
        status = confined._main(confined.CPU_SECONDS, confined.MEMORY, 0)
        sys.stdout.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.lseek(said, 0, os.SEEK_SET)
    print(json.dumps([status, os.read(said, 1 << 20).decode()]), flush=True)
    os.close(program)
    os.close(said)
"""
"""The compiler's process as often as there are programs, each a fork of one that has imported the compiler."""


@pytest.fixture(scope="module")
def refusals() -> dict[str, tuple[int, str]]:
    """The status of the compiler's process for each bomb, and what it says."""
    texts = json.dumps([text for text, _ in BOMBS.values()])
    done = subprocess.run([sys.executable, "-P", "-c", FORKS], input=texts, capture_output=True, text=True, check=True,
                          timeout=confined.WALL_SECONDS)
    return dict(zip(BOMBS, (json.loads(line) for line in done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_by_name(bomb: str, refusals: dict[str, tuple[int, str]]) -> None:
    """No message tells of a limit of the kernel: the compiler itself sees what is too large."""
    status, said = refusals[bomb]
    assert status == confined.REFUSED
    assert re.search(BOMBS[bomb][1], said)


def test_a_refusal_is_an_error_that_says_what_the_compiler_does() -> None:
    """The compiler's process hands its words on, and no other error than for a program with a mistake."""
    text, says = BOMBS["bit<2^31>"]
    with pytest.raises(confined.NotCompiled, match=says) as refused:
        confined.compile_program(text.encode())
    assert type(refused.value) is confined.NotCompiled


def test_what_the_compiler_does_not_see_ends_by_the_kernels_limits() -> None:
    """Processor time, time on the wall and memory; the message says which of them."""
    slow = program(TOP=doubling(60, "typedef tuple<bit<8>, bit<8>> t0;", "typedef tuple<t{last}, t{last}> t{this};"),
                   BODY="t59 v;")
    with pytest.raises(confined.TooCostly, match="1 s of processor time"):
        confined.compile_program(slow.encode(), cpu_seconds=1)
    with pytest.raises(confined.TooCostly, match="more than 0 s, and was ended"):
        confined.compile_program(slow.encode(), wall_seconds=0.3)
    with pytest.raises(confined.TooCostly, match="more than the 100 MiB of memory"):
        confined.compile_program(program(BODY="m.m = m.m + 1;" * 20000).encode(), memory=100 << 20)
    with pytest.raises(confined.TooCostly, match="may have 4194304"):
        confined.compile_program(b" " * (device_config.TEXT_MAX + 1))


def test_a_good_program_is_what_it_is_without_limits() -> None:
    """The process returns the C text and P4Info of the compiler, here for time enough."""
    from softswitch.compiler.driver import compile_source

    start = time.monotonic()
    made, plain = confined.compile_program(program().encode()), compile_source(program(), confined.NAME)

    assert (made.c_source, made.p4info) == (plain.c_source, plain.p4info)
    assert time.monotonic() - start < confined.WALL_SECONDS


@pytest.mark.parametrize(("text", "name"), [
    ("control c() {}", confined.NAME), ('#line 6 "<core.p4>"\nx\n', confined.NAME),
    ('#line 6 "<core.p4>"\nx\n#line 1 "lib/a.p4"\ny\n#line 2 "/home/me/l3-v2.p4"\nz', "l3-v2.p4"),
    ('#line 1 "a*/ b.p4"\n', confined.NAME), ('#line 1 "l3.p4', confined.NAME),
])
def test_a_pushed_program_is_named_as_its_file_was(text: str, name: str) -> None:
    """By its last mark of a line, which pages and traces show; other than plain characters are no name."""
    assert confined.main_file(text) == name


def test_a_folder_named_softswitch_where_it_runs_is_not_imported(tmp_path: Path) -> None:
    """The compiler's process takes its modules from where the switch has them, not from where it was started."""
    (tmp_path / "softswitch").mkdir()
    (tmp_path / "softswitch" / "__init__.py").write_text("raise SystemExit('planted')\n")
    script = "import sys; from softswitch.compiler import confined; confined.compile_program(sys.stdin.buffer.read())"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    subprocess.run([sys.executable, "-P", "-c", script], input=program(), text=True, check=True, cwd=tmp_path,
                   env=environment, timeout=60)
