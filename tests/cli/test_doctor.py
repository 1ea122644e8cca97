# SPDX-License-Identifier: Apache-2.0
"""`netfold doctor` tells what is there from what is not, and says what to do."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from netfold.cli import doctor
from netfold.cli.app import app
from netfold.cli.common import FAILED
from netfold.cli.doctor import Check, Finding, Missing
from netfold.fabric.folding.slots import sizes_of
from netfold.host.innet.opening import SKB_BYTES
from netfold.plain_console import Terminal


def text_of(findings: list[Finding]) -> tuple[bool, str]:
    """The verdict of `netfold doctor` on these findings, and what it prints."""
    out = io.StringIO()
    doctor.show(findings, Terminal(file=out, width=160))
    return not doctor.lacking(findings), out.getvalue()


def failing(error: Exception, *, required: bool) -> Check:
    """A check that does not find what it looks for."""

    def look() -> str:
        raise error

    return Check("thing", "a purpose", "apt install thing[1]", look, required)


def test_what_is_missing_comes_with_its_purpose_and_its_remedy() -> None:
    """Required or not, also where a check fails in a way that nobody foresaw; brackets survive."""
    for error, says in ((Missing("not on PATH [here]"), "not on PATH [here]"), (OSError("odd"), "OSError: odd")):
        verdict, text = text_of(doctor.examine([failing(error, required=True)]))
        assert not verdict
        for words in ("missing", "thing", says, "needed for a purpose", "apt install thing[1]", "does not run here"):
            assert words in text
        verdict, text = text_of(doctor.examine([failing(error, required=False)]))
        assert verdict
        assert "make demo runs here" in text


@pytest.mark.slow
@pytest.mark.without("torch", "bmv2")
def test_this_machine_is_examined_by_trying() -> None:
    """The interpreter and packages that run this test are found; every check ends, with words."""
    findings = {finding.check.name: finding for finding in doctor.examine(doctor.checks())}
    assert findings["Python"].ok
    assert findings["netfold"].ok
    assert "numpy" in findings["netfold"].detail
    assert findings["netfold[control]"].ok
    assert "typer" in findings["netfold[control]"].detail
    assert findings["C compiler"].ok
    assert all(finding.detail for finding in findings.values())


def test_a_missing_p4runtime_shell_is_told_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, however narrow the terminal; and found where that puts it."""
    monkeypatch.delenv("P4RUNTIME_SHELL_PYTHON", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    checks = [check for check in doctor.checks() if check.name == "p4runtime-shell"]
    out = io.StringIO()
    doctor.show(doctor.examine(checks), Terminal(file=out, width=60))
    typed = f"python3 -m venv {tmp_path}/netfold/p4runtime-shell && {tmp_path}/netfold/p4runtime-shell/bin/pip install"
    assert typed.replace(" ", "") in "".join(out.getvalue().split())
    python = tmp_path / "netfold" / "p4runtime-shell" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (finding,) = doctor.examine(checks)
    assert (finding.ok, finding.detail) == (True, str(python))


def test_programs_off_the_path_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is there but does not run is missing as well, and its words are shown."""
    monkeypatch.setenv("PATH", str(tmp_path))
    look = doctor.program("p4c-bm2-ss", "--version")
    with pytest.raises(Missing, match="not on PATH"):
        look()
    program = tmp_path / "p4c-bm2-ss"
    program.write_text("#!/bin/sh\necho library not found >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(Missing, match="status 3: library not found"):
        look()
    program.write_text("#!/bin/sh\necho p4c\necho Version 1.2.5\n")
    assert look() == f"{program}: Version 1.2.5"


def test_no_compiler_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are those of the builder itself."""
    monkeypatch.setenv("SOFTSWITCH_CC", "no-such-compiler")
    with pytest.raises(Missing, match="no program 'no-such-compiler' on PATH"):
        doctor.compiler()


def test_the_exit_status_is_for_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 where the demo runs, 1 where something required is missing."""
    monkeypatch.setattr(doctor, "checks", lambda: [failing(Missing("gone"), required=False)])
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    monkeypatch.setattr(doctor, "checks", lambda: [failing(Missing("gone"), required=True)])
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == FAILED
    assert "gone" in result.output


def test_the_receive_buffer_asked_for_is_what_the_windows_of_two_trees_want() -> None:
    """A machine that has it is not told that its ranks narrow their windows, and one that has less is."""
    wanted = []
    for path_mtu, charge in SKB_BYTES.items():
        for trees in (1, 2):
            sizes = sizes_of("softswitch", path_mtu).fitted(trees)
            wanted.append(trees * (sizes.data // 2 + sizes.agreement // 2) * charge)
    assert max(wanted) == doctor.RECEIVE_BYTES
