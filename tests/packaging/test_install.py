# SPDX-License-Identifier: Apache-2.0
"""The packages built from the three projects of the repository hold everything once, works in fresh environments, alone
and together, and needs what it declares."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from netfold.cli import extras
from netfold.host.capi import library
from support import RANKS, ROOT, SWITCH, needs
from support.hosts.c_programs import linked
from support.installed import PROJECTS, Built, Environment, build, checked, contents, metadata_of, requirements

pytestmark = pytest.mark.slow

pytest.importorskip("pip", reason=needs.reason("pip"))

PACKAGES = {"netfold": "src/netfold", "netfold-softswitch": "softswitch/src/softswitch",
            "netfold-cbuild": "cbuild/src/cbuild"}
"""Distribution -> the folder of its package."""
TYPES = (".py", ".c", ".h", ".p4", ".typed", ".html", ".css", ".js", ".svg", ".sh", ".lua", ".stf")


def sources(name: str) -> Iterator[str]:
    """The files of a distribution's package that an installation needs, as paths in its wheel."""
    package = ROOT / PACKAGES[name]
    for home, _, files in os.walk(package, followlinks=True):
        for file in files:
            if file.endswith(TYPES):
                yield str((Path(home) / file).relative_to(package.parent))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the environments of this file lie."""
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A clone of the repository, in a folder named netfold, and the three wheels: once for all workers."""
    base = tmp_path_factory.getbasetemp()
    return Built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built")


@pytest.fixture(scope="module")
def alone(built: Built, home: Path) -> Environment:
    """A stranger's environment: the switch, and neither NetFold nor numpy."""
    return Environment(home / "alone", built.wheels("netfold-softswitch", "netfold-cbuild"))


@pytest.fixture(scope="module")
def base(built: Built, home: Path) -> Environment:
    """A training host: the library without extras, and without the switch."""
    return Environment(home / "base", built.wheels("netfold", "netfold-cbuild"))


@pytest.fixture(scope="module")
def control(built: Built, home: Path) -> Environment:
    """A host that controls a fabric: the library with the command, and the switch."""
    return Environment(home / "control", built.wheels(*PROJECTS), "control")


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_holds_every_source(built: Built, name: str) -> None:
    """Python, and what is compiled on first use; nothing else, such as what `make library` has built in the clone."""
    expected = set(sources(name))
    assert {Path(file).suffix for file in expected} >= {".py", ".h", ".typed"}
    assert contents(built.wheel(name)) == expected


@pytest.mark.parametrize("name", PROJECTS)
def test_a_source_distribution_holds_what_a_wheel_is_built_from(built: Built, name: str, tmp_path: Path) -> None:
    """Every source, the project's file, its readme and its licence."""
    with tarfile.open(build("sdist", built.clone / PROJECTS[name], tmp_path)) as archive:
        held = {file.partition("/")[2] for file in archive.getnames()}
    assert held >= {"pyproject.toml", "README.md", "LICENSE"} | {f"src/{file}" for file in sources(name)}


def test_no_file_is_in_two_wheels(built: Built) -> None:
    """So that each can be installed and removed without the others."""
    for one, other in combinations(PROJECTS, 2):
        assert not contents(built.wheel(one)) & contents(built.wheel(other))


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_declares_what_an_index_shows(built: Built, name: str) -> None:
    """Name, licence, with its text, and readme; nothing points at where it was built."""
    declared = metadata_of(built.wheel(name))
    assert declared["Name"] == name
    assert declared["License-Expression"] == "Apache-2.0"
    assert declared.get_all("License-File") == ["LICENSE"]
    assert "# " in str(declared)
    assert str(ROOT) not in str(declared)


@pytest.mark.needs("libpython")
def test_a_wheel_builds_the_library_for_c_programs(
    base: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed sources give a header and a library with which the example in C compiles and links."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # each environment has a library of its own
    options = base.run("python", "-m", "netfold.host.capi", "c", cwd=tmp_path)
    assert {file.name for file in (tmp_path / "c").iterdir()} == {library.HEADER, library.LIBRARY, library.PLUGIN}
    linked(tmp_path, ROOT / "examples" / "allreduce.c", shlex.split(options))


def test_the_script_for_accelerators_installs_from_a_folder_and_goes_on_there(tmp_path: Path) -> None:
    """The wheel in the folder is what the script then imports, with the other arguments; its status is the script's."""
    pytest.importorskip("ensurepip", reason="apt install python3-venv")
    with zipfile.ZipFile(tmp_path / "netfold-9999-py3-none-any.whl", "w") as wheel:
        wheel.writestr("netfold/__init__.py", "import sys\nprint(sys.prefix, *sys.argv[1:])\nsys.exit(7)")
        wheel.writestr("netfold-9999.dist-info/METADATA", "Metadata-Version: 2.1\nName: netfold\nVersion: 9999\n")
        wheel.writestr("netfold-9999.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("netfold-9999.dist-info/RECORD", "")
    script = ROOT / "bench" / "scripts" / "accelerator.py"
    command = [sys.executable, str(script), "--only", "checks", "--wheels", str(tmp_path), "--limit", "9"]
    prefix, *others = checked(command, cwd=tmp_path, status=7).splitlines()[-1].split()
    assert others == ["--only", "checks", "--limit", "9"]
    assert not Path(prefix).exists()  # the environment ends with the run


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_a_training_host_sums(base: Environment, rail: str) -> None:
    """The base installation needs nothing of the control plane, between the hosts and through a switch (in Python)."""
    base.run("python", "-c", "import softswitch", status=1)
    assert base.run("python", str(RANKS / "sums_installed.py"), rail).strip() == "exact"


def test_the_command_without_its_extra_says_what_to_type(base: Environment, built: Built) -> None:
    """The error is one line, and the exit status that of a command that cannot start; the switch, which no index has,
    is named by the wheel that lies beside NetFold's."""
    said = base.run("netfold", "--help", status=2)
    found = re.fullmatch(r"netfold: not installed: finsy, .*typer; type: (pip install finsy .*)\n", said)
    assert found, said
    assert shlex.split(found[1])[-1] == str(built.wheel("netfold-softswitch"))


def test_the_torch_backend_without_torch_says_what_to_type(base: Environment) -> None:
    """An error that names the package, not one from the depth of an import."""
    said = base.run("python", "-c", "import netfold.torch", status=1)
    assert "ModuleNotFoundError: netfold.torch needs PyTorch: pip install torch" in said


def test_doctor_tells_the_extras_that_are_missing(control: Environment) -> None:
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
    run = ["run", "-np", "2", "--topo", "leafspine,1,0,2", "--", base.python, example]
    said = control.run("netfold", *run)
    assert len(re.findall(r"rank [01] of 2: exact; .*", said)) == 2, said
    assert "innet" in said


def test_the_switch_can_be_removed_and_is_missed_by_name(control: Environment) -> None:
    """The library stays whole, the command says what is missing, and what it says brings the switch back."""
    control.pip("uninstall", "--yes", "netfold-softswitch")
    assert control.run("python", str(RANKS / "sums_installed.py"), "tcp").strip() == "exact"
    said = control.run("netfold", "--help", status=2)
    found = re.fullmatch(r"netfold: not installed: netfold-softswitch; type: pip (install .*)\n", said)
    assert found, said
    control.pip("--no-cache-dir", *shlex.split(found[1]), "--no-index")
    assert "Usage: netfold" in control.run("netfold", "--help")


def test_the_switch_alone_does_what_its_readme_says(alone: Environment, tmp_path: Path) -> None:
    """The examples come out of it, a packet test passes, and a program compiles, where nothing else is installed."""
    alone.run("python", "-c", "import netfold", status=1)
    alone.run("python", "-c", "import numpy", status=1)
    told = (SWITCH / "README.md").read_text()
    said = alone.run("softswitch", "examples", "examples", cwd=tmp_path)
    assert f"    $ softswitch examples\n{textwrap.indent(said, '    ')}\n" in told
    said = alone.run("softswitch", "stf", "examples/firewall.p4", "examples/firewall.stf", cwd=tmp_path)
    assert f"    {said}\n" in told
    alone.run("softswitch", "compile", "examples/router.p4", "--p4info", "router.txtpb", cwd=tmp_path)
    assert "own_addresses" in (tmp_path / "router.txtpb").read_text()
    said = alone.run("softswitch", "examples", "examples", cwd=tmp_path, status=2)
    assert "nothing was copied" in said


def test_the_switch_has_the_extras_that_its_messages_name(built: Built) -> None:
    """And it needs nothing of NetFold but what both compile with."""
    declared = metadata_of(built.wheel("netfold-softswitch"))
    assert set(declared.get_all("Provides-Extra")) == {"compiler", "test", "tools"}
    assert len(declared.get_all("Classifier")) > 10
    needed = {requirement.name for requirement in requirements(built.wheel("netfold-softswitch"))}
    assert {name for name in needed if name.startswith("netfold")} == {"netfold-cbuild", "netfold-softswitch"}


@pytest.mark.netns
@pytest.mark.needs("namespaces")
@pytest.mark.parametrize(("example", "expected"), [
    ("router", ["6 entries written", "10.0.1.0/24: 4 packets, 392 bytes", "10.0.3.0/24: 2 packets, 196 bytes"]),
    ("learning", ["02:00:00:00:01:01 is at port 1", "02:00:00:00:01:03 is at port 3", "3 received"]),
])
def test_the_examples_of_the_switch_run(alone: Environment, example: str, expected: list[str]) -> None:
    """Hosts in namespaces reach each other through the switch under the example's controller."""
    script = SWITCH / "examples" / "run.sh"
    said = alone.run("python", "-c", "import os, subprocess, sys\n"
                     "sys.exit(subprocess.run(['sh', *sys.argv[1:]], env={**os.environ, 'PYTHON': sys.executable,\n"
                     "    'PATH': os.path.dirname(sys.executable) + os.pathsep + os.environ['PATH']}).returncode)",
                     str(script), example)
    for text in expected:
        assert text in said


def test_a_clone_beside_a_script_does_not_hide_an_editable_installation(built: Built, home: Path) -> None:
    """The clone's folder is named netfold like the package, and has folders that are named like the other two; it, or
    what is in it, lies in the script's folder and the current one."""
    wheels = [build("editable", built.clone / project, home / "editable-wheels") for project in PROJECTS.values()]
    editable = Environment(home / "editable", wheels)
    names = ("netfold", "softswitch", "cbuild")
    code = "; ".join(f"import {name}; print({name}.__file__)" for name in names)
    expected = [str(built.clone / place / "__init__.py") for place in PACKAGES.values()]
    for folder in (built.clone.parent, built.clone):
        script = folder / "script.py"
        script.write_text(code)
        for arguments in ([str(script)], ["-c", code]):
            assert editable.run("python", *arguments, cwd=folder).split() == expected
        script.unlink()


def test_extras_that_commands_name_are_those_that_are_declared(built: Built) -> None:
    """The table behind the messages and `netfold doctor` says what the wheel says."""
    declared: dict[str, set[str]] = {}
    for requirement in requirements(built.wheel("netfold")):
        extra = re.search(r"extra == ['\"](\w+)", str(requirement.marker))
        if requirement.name != "netfold":
            declared.setdefault(extra[1] if extra else "", set()).add(requirement.name)
    told = {"": set(extras.BASE.values())} | {extra.name: set(extra.packages.values()) for extra in extras.EXTRAS}
    assert {name: declared[name] for name in declared.keys() - {"all", "test", "site", "lint"}} == told


@pytest.mark.needs("ruff")
def test_every_file_is_linted_once() -> None:
    """ruff does not follow the links in src/ and see a file twice, and leaves no room out."""
    listed = checked([sys.executable, "-m", "ruff", "check", "--show-files", "."], cwd=ROOT).split()
    seen = [Path(file).resolve() for file in listed]
    assert len(seen) == len(set(seen))
    for name, package in PACKAGES.items():
        top = (ROOT / package).parent
        assert set(seen) >= {(top / file).resolve() for file in sources(name) if file.endswith(".py")}
