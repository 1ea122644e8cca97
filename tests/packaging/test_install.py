# SPDX-License-Identifier: Apache-2.0
"""What is built from the repository holds everything, works in a fresh environment, and needs what it declares."""

from __future__ import annotations

import os
import re
import sys
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.cli import extras
from support import RANKS, ROOT, needs
from support.installed import Environment, build, checked, clone, contents, metadata_of, requirements

pytest.importorskip("pip", reason=needs.reason("pip"))

ALONE = "packaging/softswitch"


def sources(*folders: str) -> Iterator[str]:
    """The files below these folders of src/ that an installation needs, as paths in a wheel."""
    src = ROOT / "src"
    for folder in folders:
        for home, _, files in os.walk(src / folder, followlinks=True):
            for file in files:
                if file.endswith((".py", ".c", ".h", ".p4", ".typed", ".html", ".css", ".js", ".svg", ".sh", ".lua",
                                  ".stf")):
                    yield str((Path(home) / file).relative_to(src))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything of this file lies."""
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="module")
def tree(home: Path) -> Path:
    """A clone of the repository, in a folder named netfold."""
    return clone(home / "netfold")


@pytest.fixture(scope="module")
def wheel(tree: Path, home: Path) -> Path:
    """The wheel of the library, built from what the sdist holds."""
    with tarfile.open(build("sdist", tree, home / "sdist")) as archive:
        archive.extractall(home / "unpacked", filter="data")
    (unpacked,) = (home / "unpacked").iterdir()
    return build("wheel", unpacked, home / "wheel")


@pytest.fixture(scope="module")
def switch_wheel(tree: Path, home: Path) -> Path:
    """The wheel of the switch alone, built from what its sdist holds."""
    with tarfile.open(build("sdist", tree / ALONE, home / "switch-sdist")) as archive:
        archive.extractall(home / "switch-unpacked", filter="data")
    (unpacked,) = (home / "switch-unpacked").iterdir()
    return build("wheel", unpacked, home / "switch-wheel")


@pytest.fixture(scope="module")
def alone(switch_wheel: Path, home: Path) -> Environment:
    """A stranger's environment: the switch, and neither NetFold nor numpy."""
    return Environment(home / "alone", switch_wheel)


@pytest.fixture(scope="module")
def base(wheel: Path, home: Path) -> Environment:
    """A training host: the library without extras."""
    return Environment(home / "base", wheel)


@pytest.fixture(scope="module")
def control(wheel: Path, home: Path) -> Environment:
    """A host that controls a fabric: the library with the command."""
    return Environment(home / "control", wheel, "control")


def test_the_wheel_holds_every_source_once(wheel: Path, tree: Path, home: Path) -> None:
    """Python, and what is compiled on first use; the same files whether built from the clone or from the sdist."""
    expected = set(sources("netfold", "softswitch", "cbuild"))
    assert {Path(name).suffix for name in expected} >= {".py", ".c", ".h", ".p4", ".typed"}
    assert contents(wheel) == expected
    assert contents(build("wheel", tree, home / "direct")) == expected


def test_the_switch_alone_holds_nothing_of_the_library(switch_wheel: Path) -> None:
    """Its wheel has its own folder, and the one that compiles C."""
    assert contents(switch_wheel) == set(sources("softswitch", "cbuild"))


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_a_training_host_sums(base: Environment, rail: str) -> None:
    """The base installation needs nothing of the control plane, between the hosts and through a switch (in Python)."""
    assert base.run("python", str(RANKS / "sums_installed.py"), rail).strip() == "exact"


@pytest.mark.parametrize("command", ["netfold", "softswitch"])
def test_a_command_without_its_extra_says_what_to_type(base: Environment, command: str) -> None:
    """The error is one line, and the exit status that of a command that cannot start."""
    said = base.run(command, "--help", status=2)
    assert re.fullmatch(rf"{command}: not installed: .*typer; type: pip install finsy .*typer\n", said)


def test_the_torch_backend_without_torch_says_what_to_type(base: Environment) -> None:
    """An error that names the package, not one from the depth of an import."""
    said = base.run("python", "-c", "import netfold.torch", status=1)
    assert "ModuleNotFoundError: netfold.torch needs PyTorch: pip install torch" in said


def test_doctor_tells_the_extras_that_are_missing(control: Environment, base: Environment) -> None:
    """The command's own extra is there, the demo's is not, and what to type for it comes whole."""
    said = control.run("netfold", "doctor", status=1)
    assert re.search(r"ok +netfold\[control\]", said)
    assert re.search(r"missing +netfold\[demo\]", said)
    assert "get it: pip install scikit-learn" in said
    assert "make demo does not run here: netfold[demo]" in said


@pytest.mark.netns
@pytest.mark.needs("namespaces", "mininet")
def test_ranks_without_extras_fold_on_a_fabric_of_the_control_plane(control: Environment, base: Environment) -> None:
    """Two installed ranks sum through an installed switch under an installed controller."""
    example = str(ROOT / "examples" / "allreduce.py")
    run = ["run", "-np", "2", "--topo", "leafspine,1,1,2", "--", base.python, example]
    said = control.run("netfold", *run)
    assert len(re.findall(r"rank [01] of 2: exact; .*", said)) == 2, said
    assert "innet" in said


def test_the_switch_alone_does_what_its_readme_says(alone: Environment, tmp_path: Path) -> None:
    """The examples come out of it, a packet test passes, and a program compiles, where nothing else is installed."""
    alone.run("python", "-c", "import netfold", status=1)
    alone.run("python", "-c", "import numpy", status=1)
    told = (ROOT / ALONE / "README.md").read_text()
    said = alone.run("softswitch", "examples", "examples", cwd=tmp_path)
    assert f"    $ softswitch examples\n{textwrap.indent(said, '    ')}\n" in told
    said = alone.run("softswitch", "stf", "examples/firewall.p4", "examples/firewall.stf", cwd=tmp_path)
    assert f"    {said}\n" in told
    alone.run("softswitch", "compile", "examples/router.p4", "--p4info", "router.txtpb", cwd=tmp_path)
    assert "own_addresses" in (tmp_path / "router.txtpb").read_text()
    said = alone.run("softswitch", "examples", "examples", cwd=tmp_path, status=2)
    assert "nothing was copied" in said


def test_the_switch_alone_declares_what_an_index_shows(switch_wheel: Path) -> None:
    """Name, license and readme; the extras are those that messages name; nothing points at where it was built."""
    declared = metadata_of(switch_wheel)
    assert declared["Name"] == "softswitch"
    assert declared["License-Expression"] == "Apache-2.0"
    assert set(declared.get_all("Provides-Extra")) == {"compiler", "tools"}
    assert len(declared.get_all("Classifier")) > 10
    assert str(ROOT) not in str(declared)


@pytest.mark.netns
@pytest.mark.needs("namespaces")
@pytest.mark.parametrize(("example", "expected"), [
    ("router", ["6 entries written", "10.0.1.0/24: 4 packets, 392 bytes", "10.0.3.0/24: 2 packets, 196 bytes"]),
    ("learning", ["02:00:00:00:01:01 is at port 1", "02:00:00:00:01:03 is at port 3", "3 received"]),
])
def test_the_examples_of_the_switch_run(alone: Environment, example: str, expected: list[str]) -> None:
    """Hosts in namespaces reach each other through the switch under the example's controller."""
    script = ROOT / "softswitch" / "examples" / "run.sh"
    said = alone.run("python", "-c", "import os, subprocess, sys\n"
                     "sys.exit(subprocess.run(['sh', *sys.argv[1:]], env={**os.environ, 'PYTHON': sys.executable,\n"
                     "    'PATH': os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']}).returncode)",
                     str(script), example)
    for text in expected:
        assert text in said


def test_a_clone_beside_a_script_does_not_hide_an_editable_installation(tree: Path, wheel: Path, home: Path) -> None:
    """The clone's folder is named netfold like the package, and lies in the script's folder and the current one."""
    editable = Environment(home / "editable", build("editable", tree, home / "editable-wheel"))
    script = tree.parent / "script.py"
    script.write_text("import netfold; netfold.init; print(netfold.__file__)\n")
    for arguments in ([str(script)], ["-c", script.read_text()]):
        assert editable.run("python", *arguments, cwd=tree.parent).strip() == str(tree / "src/netfold/__init__.py")


def test_extras_that_commands_name_are_those_that_are_declared(wheel: Path) -> None:
    """The table behind the messages and `netfold doctor` says what the wheel says."""
    declared: dict[str, set[str]] = {}
    for requirement in requirements(wheel):
        extra = re.search(r"extra == ['\"](\w+)", str(requirement.marker))
        if requirement.name != "netfold":
            declared.setdefault(extra[1] if extra else "", set()).add(requirement.name)
    told = {"": set(extras.BASE.values())} | {extra.name: set(extra.packages.values()) for extra in extras.EXTRAS}
    assert {name: declared[name] for name in declared.keys() - {"test", "site", "lint"}} == told


@pytest.mark.needs("ruff")
def test_every_file_is_linted_once() -> None:
    """ruff does not follow the links in src/ and see a file twice, and leaves no room out."""
    listed = checked([sys.executable, "-m", "ruff", "check", "--show-files", "."], cwd=ROOT).split()
    seen = [Path(file).resolve() for file in listed]
    assert len(seen) == len(set(seen))
    assert set(seen) >= {(ROOT / "src" / name).resolve() for name in sources("netfold") if name.endswith(".py")}
