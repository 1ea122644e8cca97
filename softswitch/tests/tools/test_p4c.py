# SPDX-License-Identifier: Apache-2.0
"""p4c-bm2-ss and p4c: options, files, exit status and words are those of p4c."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from finsy.proto import p4i
from google.protobuf import json_format, text_format

from softswitch.compiler.driver import compile_file
from softswitch.tools import p4c
from switch_support.p4 import basic

BROKEN = basic().replace("s.egress_spec = port;", "s.egress_spec = prot;")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a folder where commands run."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "prog.p4"
    path.write_text(basic())
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, name: str = "p4c-bm2-ss") -> int:
    """Runs one of the programs in this process; the exit status."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        return p4c.p4c() if name == "p4c" else p4c.p4c_bm2_ss()
    except SystemExit as ended:
        return int(ended.code or 0)


def test_every_option_of_p4c_is_done_accepted_or_refused() -> None:
    """The three tables share no option, and a refused one is refused by its name."""
    assert not set(p4c.HANDLED) & set(p4c.ACCEPTED)
    assert not (set(p4c.HANDLED) | set(p4c.ACCEPTED)) & set(p4c.REFUSED)
    for option, argument in p4c.REFUSED.items():
        with pytest.raises(p4c.UsageError, match=f"Option {option}: this compiler"):
            p4c.parse([option, *([argument] if argument else []), "prog.p4"])
    for option, (argument, _) in p4c.ACCEPTED.items():
        parsed = p4c.parse([option, *([argument] if argument not in ("", "=", "attached") else []), "prog.p4"])
        assert parsed.inputs == ["prog.p4"]


@pytest.mark.needs("bmv2")
def test_the_options_are_those_that_p4c_lists() -> None:
    """Each that p4c-bm2-ss --help names is in one of the tables."""
    said = subprocess.run(["p4c-bm2-ss", "--help"], capture_output=True, text=True, timeout=30, check=True).stderr
    listed = {re.split(r"[ =\[]", line)[0] for line in said.splitlines() if line.startswith("-")}
    assert len(listed) > 40
    assert listed - (set(p4c.HANDLED) | set(p4c.ACCEPTED) | set(p4c.REFUSED)) == set()


def test_options_are_read_in_p4cs_forms() -> None:
    """With the argument in the same word, after an equals sign or in the next word; options after the program too."""
    parsed = p4c.parse(["-Iinc", "-I", "other", "-DA", "-D", "B=2", "-UA", "--p4v=16", "--std", "p4-16", "prog.p4",
                        "-o", "out.json", "--Wdisable=unused", "-O2", "-Wall", "--p4runtime-files",
                        "a.txtpb,b.bin,c.json"])
    assert (parsed.inputs, parsed.output) == (["prog.p4"], "out.json")
    assert parsed.include == [Path("inc"), Path("other")]
    assert parsed.defines == {"__TARGET_BMV2__": "1", "B": "2"}
    assert parsed.p4info == [("a.txtpb", "text"), ("b.bin", "binary"), ("c.json", "json")]


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "No input files specified"), (["a.p4", "b.p4"], "Only one input file must be specified: a.p4,b.p4"),
    (["--bogus", "a.p4"], "Unknown option --bogus"), (["-b", "bmv2", "a.p4"], "Unknown option -b"),
    (["a.p4", "-o"], "Option -o is missing required argument outfile"),
    (["--std", "p4-14", "a.p4"], "Illegal language version p4-14"),
    (["--p4runtime-files", "a.xyz", "a.p4"], "a.xyz: unknown file kind; known suffixes are"),
    (["--p4runtime-format", "xml", "a.p4"], "Illegal P4Runtime format xml"),
    (["missing.p4"], "missing.p4"), (["prog.p4", "-o", "no/such/folder.json"], "Error writing output to file"),
])
def test_what_p4c_refuses_is_refused(
    arguments: list[str], says: str, program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit status 1 and p4c's words on stderr."""
    assert program.exists()
    assert run(monkeypatch, *arguments) == 1
    said = capsys.readouterr()
    assert says in said.err
    assert not said.out


def test_errors_of_a_program_have_p4cs_form(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """file(line): [--Werror=...] error: ..., the line, and a mark below the place, which editors read."""
    program.write_text(BROKEN)
    assert run(monkeypatch, "prog.p4", "-o", "out.json") == 1
    head, line, mark, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"prog\.p4\(\d+\): \[--Werror=\S+\] error: 'prot' is not declared.*", head)
    assert line[mark.index("^") :].startswith("prot")
    assert not Path("out.json").exists()


def test_the_outputs_of_a_compilation(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON for the switch, and P4Info in every format; the switch that is given the JSON need not compile it."""
    from softswitch.compiler import confined
    from softswitch.p4runtime import program as builder

    files = "i.txtpb,i.bin,i.json"
    assert run(monkeypatch, "--p4v", "16", "--p4runtime-files", files, "-o", "prog.json", "prog.p4") == 0

    expected = compile_file(Path("prog.p4"), defines={"__TARGET_BMV2__": "1"})
    assert json.loads(Path("prog.json").read_text()) == json.loads(expected.bmv2_json)
    assert p4i.P4Info.FromString(Path("i.bin").read_bytes()) == expected.p4info
    assert text_format.Parse(Path("i.txtpb").read_text(), p4i.P4Info()) == expected.p4info
    assert json_format.Parse(Path("i.json").read_text(), p4i.P4Info()) == expected.p4info

    monkeypatch.setattr(confined, "compile_program", lambda *_, **__: pytest.fail("it was compiled again"))
    built = builder.Compiler()(Path("prog.json").read_bytes())
    assert built.p4info == expected.p4info
    assert built.json == expected.bmv2_json


def test_the_driver_writes_into_a_folder(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """prog.json and the preprocessed prog.p4i, as p4-utils starts it; macros of BMv2's target are defined."""
    program.write_text("#ifndef __TARGET_BMV2__\n#error no BMv2\n#endif\n" + basic())
    assert run(monkeypatch, str(program), "--target", "bmv2", "--arch", "v1model", "--std", "p4-16", "-E", "-o",
               "build", "--p4runtime-files", "build/prog_p4rt.txt", name="p4c") == 0
    assert "control V" in Path("build/prog.p4i").read_text()


@pytest.mark.parametrize(("arguments", "status", "says"), [
    ([], 2, "No input specified."), (["missing.p4"], 1, "Input file missing.p4 does not exist"),
    (["--target", "tofino", "--arch", "tna", "prog.p4"], 2, "Unknown backend: tofino-tna"),
    (["--std", "p4-14", "prog.p4"], 2, "Illegal language version p4-14"), (["--bogus", "prog.p4"], 2, "--bogus"),
    (["--toJson", "x", "prog.p4"], 2, "intermediate representation"),
])
def test_what_the_driver_refuses(
    arguments: list[str], status: int, says: str, program: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:
    """With the driver's exit status: 2 for a wrong command line, 1 for a file that is not there."""
    assert program.exists()
    assert run(monkeypatch, *arguments, name="p4c") == status
    assert says in capsys.readouterr().err
