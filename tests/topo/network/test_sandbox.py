# SPDX-License-Identifier: Apache-2.0
"""The sandbox: what is inside is isolated, and is removed whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.topo.network import sandbox
from support.sandboxes import no_namespaces

pytestmark = [pytest.mark.netns, pytest.mark.needs("namespaces", "mininet")]
BOUND = 60.0


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_status_and_output_of_the_command_come_back() -> None:
    """A command's exit status, output and errors are the sandbox's."""
    done = sandbox.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=BOUND)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_death_by_signal_comes_back_as_shells_tell_it() -> None:
    """A command that a signal kills ends with 128 and the signal's number."""
    assert sandbox.run(["sh", "-c", "kill -KILL $$"], timeout=BOUND).returncode == 128 + signal.SIGKILL


def test_a_command_that_does_not_exist_is_named() -> None:
    """The error names the command."""
    done = sandbox.run(["no-such-command"], timeout=BOUND)
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


def test_wrong_usage_is_refused() -> None:
    """Without a command there is a usage line and status 2."""
    done = subprocess.run([*sandbox.command([])], capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_inside_there_is_nothing_but_a_loopback_that_is_up() -> None:
    """A fresh network namespace has one interface, and packets to 127.0.0.1 arrive."""
    code = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(5); s.bind(('127.0.0.1', 0)); "
        "s.sendto(b'x', s.getsockname()); print(s.recv(9), socket.if_nameindex())"
    )
    done = sandbox.run(python(code), timeout=BOUND)
    assert done.stdout == "b'x' [(1, 'lo')]\n", done.stderr


def test_inside_only_its_own_processes_are_seen() -> None:
    """/proc shows only init and the command."""
    code = "import os; print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))"
    assert sandbox.run(python(code), timeout=BOUND).stdout == "[1, 2]\n"


def test_it_knows_when_it_is_inside() -> None:
    """`inside` compares the namespace, so that a variable that leaked from a sandbox does not count."""
    code = (
        "from netfold.topo.network import sandbox as s; import os; print(s.inside(), s.rundir().is_dir()); "
        "os.environ[s.INSIDE] = 'net:[1]'; print(s.inside())"
    )
    assert sandbox.run(python(code), timeout=BOUND).stdout == "True True\nFalse\n"
    assert not sandbox.inside()


def test_the_run_folder_goes_with_it() -> None:
    """The folder for sockets is removed when the command has ended."""
    folder = sandbox.run(["sh", "-c", f"touch ${sandbox.RUNDIR}/socket; echo ${sandbox.RUNDIR}"], timeout=BOUND).stdout
    assert folder.strip()
    assert not Path(folder.strip()).exists()


def test_the_run_folder_goes_also_after_several_fabrics() -> None:
    """Each tells the sandbox's programs the names of its hosts, by one file that stands in the place of /etc/hosts."""
    code = (
        "from netfold.fabric.generate import leafspine; from netfold.topo.network import host_names, sandbox\n"
        "for hosts in (2, 3):\n"
        "    host_names.tell([leafspine(1, 0, hosts)])\n"
        "print(sandbox.rundir(), *(line.split()[1] for line in open('/etc/hosts') if line.startswith('10.0.')))"
    )
    done = sandbox.run(python(code), timeout=BOUND)
    folder, *names = done.stdout.split()
    assert (names, done.stderr) == (["h1", "h2", "h3"], "")
    assert not Path(folder).exists()


# Every process inside holds the pipe's writing end: end of file means that all have ended.
CROWD = "import os, time; [os.fork() for _ in range(3)]; os.write(1, b'.'); time.sleep(600)"
MEMBERS = 8


@pytest.fixture
def crowd() -> Iterator[subprocess.Popen[bytes]]:
    """A sandbox with 8 processes that want to sleep for 10 minutes; one of them has left its parent's session."""
    launcher = subprocess.Popen(
        sandbox.command(["setsid", "--fork", "--wait", *python(CROWD)], with_parent=True),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )
    assert launcher.stdout is not None
    try:
        seen = b""
        while len(seen) < MEMBERS:
            data = os.read(launcher.stdout.fileno(), MEMBERS)
            assert data, "the crowd did not come up"
            seen += data
        yield launcher
    finally:
        launcher.kill()
        launcher.wait(BOUND)
        launcher.stdout.close()


@pytest.mark.timeout(150)
def test_kill_9_on_the_launcher_takes_everything_along(crowd: subprocess.Popen[bytes]) -> None:
    """No process survives the launcher, although it could not do anything itself."""
    crowd.kill()
    assert crowd.stdout is not None
    assert crowd.stdout.read() == b""
    assert crowd.wait(BOUND) == -signal.SIGKILL


@pytest.mark.timeout(150)
def test_sigterm_is_handed_on_and_takes_everything_along(crowd: subprocess.Popen[bytes]) -> None:
    """SIGTERM ends the command and everything else in the sandbox."""
    crowd.terminate()
    assert crowd.stdout is not None
    assert crowd.stdout.read() == b""
    assert crowd.wait(BOUND) == 128 + signal.SIGTERM


@pytest.mark.timeout(150)
def test_ctrl_c_while_the_launcher_is_imported_ends_it_without_a_traceback() -> None:
    """A program that enters a sandbox blocks SIGINT; the launcher ends by one that has come, and starts nothing."""
    code = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}); os.kill(os.getpid(), signal.SIGINT)\n"
        f"os.execv(sys.executable, {sandbox.command(python('print(1)'))!r})"
    )
    done = subprocess.run(python(code), capture_output=True, timeout=BOUND, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, b"", b"")


@pytest.mark.timeout(150)
def test_ctrl_c_is_the_commands_alone() -> None:
    """SIGINT to the whole foreground group reaches the command; the launcher outlives it and returns its status."""
    code = (
        "import sys, time\n"
        "try:\n print('up', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n print('tidied up', flush=True); sys.exit(130)"
    )
    launcher = subprocess.Popen(
        sandbox.command(python(code), with_parent=True),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"up\n"
        os.killpg(launcher.pid, signal.SIGINT)
        assert launcher.stdout.read() == b"tidied up\n"
        assert launcher.wait(BOUND) == 130
    finally:
        launcher.kill()
        launcher.wait(BOUND)
        assert launcher.stdout is not None
        launcher.stdout.close()


@pytest.mark.timeout(150)
def test_what_the_launcher_was_to_ignore_ends_nothing() -> None:
    """Started by nohup, or by a shell's `&`, launcher and command outlive the terminal's signals."""
    ignoring = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh"]
    launcher = subprocess.Popen(
        [*ignoring, *sandbox.command(["sh", "-c", "echo up; read line; echo $line"], with_parent=True)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )
    with launcher:
        try:
            assert launcher.stdout is not None
            assert launcher.stdout.readline() == b"up\n"
            os.killpg(launcher.pid, signal.SIGINT)
            os.killpg(launcher.pid, signal.SIGHUP)
            assert launcher.communicate(b"on\n", BOUND) == (b"on\n", None)
            assert launcher.wait(BOUND) == 0
        finally:
            launcher.kill()


@pytest.mark.parametrize(("uid", "advice"), [(1000, "run it with sudo"), (0, "as in a container without privileges")])
def test_a_refusal_says_what_this_user_can_do(uid: int, advice: str) -> None:
    """Root that may make no namespaces is not told to become root."""
    with pytest.raises(sandbox.SandboxError, match=advice):
        no_namespaces.ask_in_vain(uid)


@pytest.mark.needs("root")
def test_a_cache_that_another_user_could_exchange_is_not_used_inside(tmp_path: Path) -> None:
    """Inside, an ordinary user cannot tell other users from root: the sandbox's own folder takes the cache's place."""
    os.chown(tmp_path, 65534, 65534)
    done = sandbox.run(["sh", "-c", 'echo "$XDG_CACHE_HOME" "$NETFOLD_RUNDIR"'], timeout=BOUND,
                       env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    place, rundir = done.stdout.split()
    assert place == f"{rundir}/cache"
    assert f"{tmp_path} belongs to user 65534, who may exchange it" in done.stderr
