# SPDX-License-Identifier: Apache-2.0
"""Processes that are forked: switches and Python programs are what their command lines say, and their ends are seen."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from netfold.topo.processes import forked_program
from netfold.topo.processes.forks import UNKNOWN_STATUS, Forked, Forks
from netfold.topo.processes.ranks import SETTINGS
from support import needs

SOFTSWITCH = str(Path(sys.prefix) / "bin" / "softswitch")
SECONDS = 60.0
"""Seconds within which a process must end."""

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


@pytest.fixture
def forks() -> Iterator[Forks]:
    """A server that ends with the test."""
    server = Forks("softswitch.cli.run", environment=SETTINGS)
    yield server
    server.close()


def start(forks: Forks, folder: Path, *words: str) -> tuple[Forked, Path]:
    """A softswitch with these arguments, and its log."""
    log = folder / "log"
    with log.open("wb") as output:
        return forks.start([SOFTSWITCH, *words], output, output), log


def ready(log: Path) -> None:
    """Wait until a switch says that it is ready."""
    with subprocess.Popen(["tail", "-n", "+1", "-f", str(log)], stdout=subprocess.PIPE, text=True) as lines:
        assert lines.stdout is not None
        said = lines.stdout.readline()
        lines.kill()
    assert "softswitch: ready" in said, log.read_text()


def test_a_forked_switch_is_one_like_others(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its arguments, this process's environment and folder, a session and a name of its own; it ends by
    SIGTERM with status 0, and by SIGKILL with that signal."""
    monkeypatch.chdir(tmp_path)
    for number, status in ((signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        monkeypatch.setenv("NETFOLD_TEST", number.name)
        child, log = start(forks, tmp_path, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/{number.name}")
        ready(log)
        proc = Path(f"/proc/{child.pid}")
        assert proc.joinpath("comm").read_text() == "softswitch\n"
        assert proc.joinpath("cwd").resolve() == tmp_path.resolve()
        assert os.getsid(child.pid) == child.pid
        assert child.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.send_signal(number)
        assert child.wait(SECONDS) == status
        assert child.poll() == status
        child.kill()  # it has ended: nothing


def test_a_forked_switch_that_cannot_start_says_why(tmp_path: Path, forks: Forks) -> None:
    """Its status is the command's own, and its reason in its log."""
    child, log = start(forks, tmp_path, "--no-p4", "-i", "1@nowhere")
    assert child.wait(SECONDS) == 2
    assert "there is no interface nowhere" in log.read_text()


def test_a_start_that_is_given_up_leaves_no_switch(
    tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server forks after the launcher has lost its patience ends before it is a switch."""
    monkeypatch.setattr("netfold.topo.processes.forks.START_SECONDS", 0.0)
    reads, writes = os.pipe()
    with open(writes, "wb") as output, pytest.raises(ChildProcessError, match="started nothing"):
        forks.start([SOFTSWITCH, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/switch"], output, output)
    with open(reads, "rb") as said:
        assert said.read() == b""  # until every process that has the other end has ended


def test_an_environment_may_be_large(tmp_path: Path, forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of pods are, with variables for each service of a cluster."""
    for number in range(10):
        monkeypatch.setenv(f"NETFOLD_TEST_{number}", 100_000 * "x")
    child, log = start(forks, tmp_path, "--no-p4", "-i", "1@nowhere")
    assert child.wait(SECONDS) == 2
    assert "there is no interface nowhere" in log.read_text()


def test_switches_outlive_their_server_which_is_replaced(tmp_path: Path, forks: Forks) -> None:
    """The next switch starts all the same; the status of one whose server has gone cannot be known, its end can."""
    first, log = start(forks, tmp_path, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/first")
    ready(log)
    assert forks.server is not None
    os.kill(forks.server, signal.SIGKILL)
    second, log = start(forks, tmp_path, "--no-p4", "--grpc-server-addr", f"unix:{tmp_path}/second")
    ready(log)
    assert first.poll() is None
    for child, status in ((first, UNKNOWN_STATUS), (second, -9)):
        child.kill()
        assert child.wait(SECONDS) == status


def test_a_server_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    """Nothing hangs where it ends without a word, as where its interpreter is broken."""
    with (tmp_path / "log").open("wb") as log, pytest.raises(OSError, match=r"started nothing|Broken pipe|refused"):
        Forks(environment={"PYTHONHOME": "/nowhere"}).start(["/bin/true"], log, log)


def test_modules_that_cannot_be_imported_end_no_server(tmp_path: Path) -> None:
    """The others are imported: a package that is missing, has no such part as an older release, or fails, is passed
    over, as is a program's own."""
    for package, text in (("older", ""), ("torch", "raise OSError('no library')")):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(text)
    (tmp_path / "there.py").touch()
    (tmp_path / "program.py").write_text("import sys; print('there' in sys.modules)")
    server = Forks("no_such_package", "older.newer_part", "torch", "there", environment={"PYTHONPATH": str(tmp_path)})
    try:
        for words, status, said in ((["program.py"], 0, "True\n"), (["-m", "torch.part"], 1, "OSError: no library\n")):
            with (tmp_path / "log").open("w+b") as log:
                program = server.start([sys.executable, *words], log, log, folder=str(tmp_path))
                assert program.wait(SECONDS) == status
                assert Path(log.name).read_text().endswith(said)
    finally:
        server.close()


# ---- programs of Python ----------------------------------------------------------------------------------------------

PROBE = '''
import atexit, json, os, pickle, sys, threading
import numpy.random

class Mine: pass

def thread():
    ended.wait()
    sys.stderr.write(f"still main: {sys.modules['__main__'].Mine is Mine}\\n")

def status(name):
    with open("/proc/self/status") as lines:
        return next(line for line in lines if line.startswith(name))

def read(name):
    with open(f"/proc/self/{name}", "rb") as file:
        return file.read().decode()

main = sys.modules["__main__"]
print(json.dumps([
    "forked" if "netfold.topo.processes.fork_server" in sys.modules else "executed", numpy.random.random(), {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": repr(sys.flags),
        "main": {name: str(value) for name, value in vars(main).items() if name in (
                 "__name__", "__file__", "__package__", "__cached__", "__doc__")},
        "spec": getattr(main.__spec__, "name", None), "loader": type(main.__loader__).__name__,
        "pickled": pickle.dumps(Mine).decode("latin"), "builtins": __builtins__.__name__,
        "environ": sorted(read("environ").split("\\0")), "os.environ": sorted(os.environ.items()),
        "cmdline": read("cmdline"), "comm": read("comm"), "cwd": os.getcwd(), "leads": os.getsid(0) == os.getpid(),
        "signals": [status(name) for name in ("SigBlk", "SigIgn", "SigCgt", "Threads", "Umask")],
        "files": sorted(os.listdir("/proc/self/fd")), "input": sys.stdin.read(),
        "streams": [(file.write_through, file.line_buffering, file.encoding) for file in (sys.stdout, sys.stderr)],
    }]), flush=True)
ended = threading.Event()
other = threading.Thread(target=thread)
other.start()
atexit.register(sys.stderr.write, "at exit\\n")
ended.set()
how = sys.argv[1]
if how:
    other.join()  # else it goes on after the main thread
if how == "raise":
    def wrong(): raise ValueError("so")
    wrong()
elif how == "interrupt":
    raise KeyboardInterrupt
elif how == "abort":
    os.abort()
elif how == "exit":
    sys.exit("so")
elif how:
    sys.exit(int(how))
'''


class Ended(NamedTuple):
    """A process that has ended."""

    status: int
    said: str
    errors: str

    @property
    def probed(self) -> tuple[str, float, dict[str, Any]]:
        """What PROBE says: whether it was forked, a random number, and how it was started."""
        how, number, state = json.loads(self.said)
        return how, number, state


def forked(
    forks: Forks, command: Sequence[str], environment: Mapping[str, str] | None = None, given: bytes = b""
) -> Ended:
    """A program that a fork server starts."""
    child = forks.start(command, subprocess.PIPE, subprocess.PIPE, input=subprocess.PIPE, environment=environment)
    assert child.stdin and child.stdout and child.stderr  # noqa: PT018
    with child.stdin, child.stdout, child.stderr:
        with contextlib.suppress(BrokenPipeError):  # it may have ended without reading
            child.stdin.write(given)
            child.stdin.close()
        return Ended(said=child.stdout.read().decode(), errors=child.stderr.read().decode(), status=child.wait(SECONDS))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with PROBE as a script, a module of a package, and a command."""
    (tmp_path / "package").mkdir()
    for path, first in (("probe.py", ""), ("package/probe.py", ""), ("probe", f"#!{sys.executable}\n")):
        (tmp_path / path).write_text(first + PROBE)
    (tmp_path / "probe").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(program: Ended) -> list[str]:
    """What it wrote of errors, without addresses; the two threads write in any order."""
    return sorted(re.sub("0x[0-9a-f]+", "0x", program.errors).splitlines())


def test_a_controller_that_a_network_starts_has_imported_what_it_needs(tmp_path: Path) -> None:
    """Imports are most of its start, for which jobs wait whose trees have broken meanwhile: nothing that is listed is
    passed over but what other versions of typer need."""
    pytest.importorskip("mininet.net", reason=needs.reason("mininet"))
    from netfold.topo.network import switches

    (tmp_path / "up.py").write_text("import sys; print(set(sys.argv[1:]) - set(sys.modules))")
    listed = [module for module in switches.FORKS.modules if not module.startswith("pydantic.")]
    server = Forks(*switches.FORKS.modules, environment=SETTINGS)
    try:
        assert forked(server, [sys.executable, str(tmp_path / "up.py"), *listed]).said == "set()\n"
    finally:
        server.close()


@pytest.mark.needs("root")
def test_what_may_be_run_and_not_be_read_is_no_program_of_ours(programs: Path) -> None:
    """It is executed as any other command; its first line would tell who interprets it."""
    assert forked_program.of(["./probe"], {}, str(programs)) is not None
    (programs / "probe").chmod(0o711)
    for path in (programs, *programs.parents[:-2]):
        path.chmod(path.stat().st_mode | 0o011)
    euid = os.geteuid()
    try:
        os.seteuid(65534)
        assert forked_program.of(["./probe"], {}, str(programs)) is None
    finally:
        os.seteuid(euid)


@pytest.mark.parametrize("program", [(sys.executable, "probe.py"), (sys.executable, "-m", "package.probe"),
                                     ("./probe",)])
def test_a_forked_program_notices_no_difference(program: tuple[str, ...], programs: Path, forks: Forks) -> None:
    """It has all that an executed one has, and ends as that does: its main module, arguments, paths, environment,
    descriptors and signals, in /proc too; its status, what it writes of an error, and what it still does at its end."""
    for how in ("", "7", "exit", "raise", "interrupt", "abort"):
        command = [*program, how]
        executed = subprocess.run(command, input=b"words", capture_output=True, timeout=SECONDS, check=False,
                                  start_new_session=True, env={**os.environ, **SETTINGS})
        expected = Ended(executed.returncode, executed.stdout.decode(), executed.stderr.decode())
        got = forked(forks, command, given=b"words")
        assert got.probed[0] == "forked"
        assert got.probed[2] == expected.probed[2]
        assert got.status == expected.status
        # a crash shows all frames, and those that started the program come after its own
        own = [line for line in lines(got) if "/topo/processes/fork" not in line and '"<string>"' not in line]
        assert own == lines(expected)


def test_ctrl_c_while_it_imports_is_no_traceback(programs: Path, forks: Forks) -> None:
    """Each rank would print one of a module that is none of the user's; a program's own is printed as ever."""
    (programs / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (programs / "main.py").write_text("import numpy, slow\n")
    found = forked(forks, [sys.executable, "main.py"])
    assert (found.status, found.errors) == (-signal.SIGINT, "")
    assert "KeyboardInterrupt" in forked(forks, [sys.executable, "probe.py", "interrupt"], given=b"words").errors


def test_no_two_forks_draw_the_same_random_numbers(programs: Path, forks: Forks) -> None:
    """Numpy's generator had its seed when it was imported, once for all of them."""
    ended = [forked(forks, [sys.executable, "probe.py", ""]).probed for _ in range(2)]
    assert [how for how, _, _ in ended] == ["forked", "forked"]
    assert ended[0][1] != ended[1][1]


def test_a_program_that_would_notice_is_executed(programs: Path, forks: Forks) -> None:
    """With options of the interpreter, by another one, with another environment of what is imported, and beside a
    module of its own that has the name of an imported one."""
    ranks = {**os.environ, **SETTINGS}
    assert forked(forks, [sys.executable, "probe.py", ""], {**ranks, "RANK": "1"}).probed[0] == "forked"
    (programs / "other").symlink_to(sys.executable)
    for command, environment in (
        ([sys.executable, "-u", "probe.py", ""], {}),
        ([str(programs / "other"), "probe.py", ""], {"PYTHONPATH": os.pathsep.join(sys.path)}),
        ([sys.executable, "probe.py", ""], {"OMP_NUM_THREADS": "3"}),
        ([sys.executable, "probe.py", ""], {"PYTHONPATH": str(programs)}),
    ):
        assert forked(forks, command, {**ranks, **environment}).probed[0] == "executed", (command, environment)
    (programs / "json").mkdir()
    # a folder without __init__.py is found last
    assert forked(forks, [sys.executable, "probe.py", ""]).probed[0] == "forked"
    (programs / "json" / "__init__.py").write_text("def dumps(what): return 'ours'\n")
    assert forked(forks, [sys.executable, "probe.py", ""]).said == "ours\n"


def test_what_a_program_imports_is_imported_once(programs: Path, forks: Forks, tmp_path: Path) -> None:
    """Packages that take long are, by the server; of the program's own modules none is, before it runs."""
    (programs / "mine.py").write_text("import os; print(os.getppid())")
    (programs / "probe.py").write_text("import numpy, mine, os, sys\nprint(numpy.__name__, os.getpid())")
    forks.warm([sys.executable, "probe.py"])
    for _ in range(2):
        server, name, _ = forked(forks, [sys.executable, "probe.py"]).said.split()
        assert (int(server), name) == (forks.server, "numpy")


def test_what_torch_imports_when_a_program_trains_is_imported_once(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server imports it, for programs alone that name an optimizer and none of torch's environment variables; a
    variable that it sets is there in the program, and is not taken for another environment of what is imported."""
    torch = tmp_path / "libraries" / "torch"
    (torch / "optim").mkdir(parents=True)
    (torch / "__init__.py").touch()
    (torch / "optim" / "__init__.py").touch()
    (torch / "_dynamo.py").write_text("import os; os.environ['_DYNAMO_SETS'] = str(os.getpid())\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(torch.parent), os.environ.get("PYTHONPATH", "")]))
    shows = "import os, sys\nprint('torch._dynamo' in sys.modules, os.environ.get('_DYNAMO_SETS'))\n"
    for name, text in (("sums", "import torch"), ("trains", "import torch.optim as optim"),
                       ("chooses", "import torch.optim\nimport os\nos.environ['TORCHDYNAMO_DISABLE'] = '1'")):
        (programs / f"{name}.py").write_text(f"{text}\n{shows}")
    server = Forks(environment=SETTINGS)
    try:
        for name in ("sums", "chooses"):
            assert forked(server, [sys.executable, f"{name}.py"]).said == "False None\n"
        for _ in range(2):
            assert forked(server, [sys.executable, "trains.py"]).said == f"True {server.server}\n"
    finally:
        server.close()


@pytest.mark.parametrize(("command", "status", "said"), [
    (["sh", "-c", "read word; echo $word; exit 3"], 3, ("words\n", "")),
    (["sh", "-c", "kill -9 $$"], -9, ("", "")),
    (["no-such-program"], 127, ("", "netfold: cannot run no-such-program: No such file or directory\n")),
])
def test_what_is_no_program_of_python_is_executed(
    command: list[str], status: int, said: tuple[str, str], forks: Forks
) -> None:
    """With its input, output and status; one that is not there says so."""
    assert forked(forks, command, given=b"words\n") == (status, *said)


def test_the_number_of_a_process_is_its_own_until_its_end_is_taken(forks: Forks) -> None:
    """So that a signal to its group cannot meet another process."""
    child = forks.start(["sh", "-c", "exit 4"], subprocess.DEVNULL, subprocess.DEVNULL)
    while child.ended() is None:
        assert os.getpgid(child.pid) == child.pid
    assert (child.ended(), child.returncode) == (4, None)
    assert os.getpgid(child.pid) == child.pid
    assert (child.poll(), child.returncode) == (4, 4)
    while Path(f"/proc/{child.pid}").exists():
        os.sched_yield()


def test_a_host_that_cannot_be_entered_is_an_error(forks: Forks) -> None:
    """The program does not run outside of it."""
    child = forks.start(["echo", "ran"], subprocess.PIPE, subprocess.PIPE, namespaces=["/proc/self/ns/none"])
    assert child.stdout and child.stderr  # noqa: PT018
    with child.stdout, child.stderr:
        assert child.wait(SECONDS) == 127
        assert child.stdout.read() == b""
        assert child.stderr.read() == b"netfold: entering a host by /proc/self/ns/none: No such file or directory\n"


INTERRUPTED_AT_EXIT = """
import os, signal
from netfold.topo.processes.forks import Forks
class Interrupted(Forks):
    def close(self):
        if self.server is not None:
            os.kill(os.getpid(), signal.SIGINT)
        super().close()
Interrupted().start(["true"], 1, 2).wait()
"""


def test_ctrl_c_while_a_fork_server_ends_with_its_launcher_prints_nothing() -> None:
    """The launcher has nothing else to do by then, and goes on waiting for the server."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_AT_EXIT], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
