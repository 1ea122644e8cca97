# SPDX-License-Identifier: Apache-2.0
"""Processes of Mininet's hosts: which ones `netfold run --fabric` enters, and which it does not believe."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.topo.network import host_processes, rundir
from netfold.topo.network.host_processes import HostProcess, HostRecord, began
from netfold.topo.processes.ranks import start
from support import needs

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo import run


@contextlib.contextmanager
def process(*before: str, called: str = "bash") -> Iterator[int]:
    """A process by the command ``before``, with a name of its own as its last argument, that waits to be killed."""
    command = [*before, "sh", "-p", "-c", "echo up; read line", called]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"up\n"
            yield started.pid
        finally:
            started.kill()


JOBS, OTHER = "unix:/one/jobs", "unix:/other/jobs"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of records, in a folder of the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(rundir, "RUN", tmp_path / "run")
    return tmp_path / "netfold" / "hosts"


def test_of_several_hosts_of_a_name_the_fabrics_own_is_taken(records: Path) -> None:
    """Its job service tells which; a host may be on several planes, and the only one of its name is taken anyway."""
    with process() as first, process() as second:
        host_processes.record("h1", first, [OTHER, "unix:/plane"])
        with run.mininet_hosts({"h1"}, JOBS)["h1"] as found:
            assert found.jobs == [OTHER, "unix:/plane"]
        host_processes.record("h1", second, ["unix:/plane", JOBS])
        with run.mininet_hosts({"h1"}, JOBS)["h1"] as found:
            assert found.jobs == ["unix:/plane", JOBS]
        with run.mininet_hosts({"h1"}, OTHER)["h1"] as found:
            assert found.jobs == [OTHER, "unix:/plane"]
        with pytest.raises(run.CannotRun, match="2 Mininet hosts are called h1"):
            run.mininet_hosts({"h1"}, "unix:/third")


def test_hosts_are_those_that_were_recorded(records: Path) -> None:
    """A process that calls itself a host is none, and does not make the real one ambiguous; missing hosts, two hosts of
    one name, and hosts that have ended are told apart."""
    with process(called="mininet:h1"), process() as first:
        with pytest.raises(run.CannotRun, match="no Mininet host here is called h1"):
            run.mininet_hosts({"h1"}, JOBS)
        host_processes.record("h1", first, [OTHER])
        with run.mininet_hosts({"h1"}, JOBS)["h1"] as found:
            assert found.name == "h1"
        with process() as second:
            host_processes.record("h1", second, [OTHER])
            with pytest.raises(run.CannotRun, match="2 Mininet hosts are called h1"):
                run.mininet_hosts({"h1"}, JOBS)
        run.mininet_hosts({"h1"}, JOBS)["h1"].close()
        host_processes.forget(first)
        with pytest.raises(run.CannotRun, match="no Mininet host here is called h1"):
            run.mininet_hosts({"h1"}, JOBS)


def test_a_number_that_another_process_has_by_now_is_no_host(records: Path) -> None:
    """The record says when the process began; one that began at another time has its number by chance."""
    with process() as pid, pytest.raises(ProcessLookupError, match=rf"^process {pid}: it is not the host h1$"):
        HostProcess(HostRecord("h1", pid, began(pid) - 1))


@pytest.mark.needs("root")
@pytest.mark.parametrize("before", [
    ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
    ("setpriv", "--ruid", "65534"),  # what a program with the set-user-ID bit looks like that another user started
    ("unshare", "--user", "--map-root-user", "--mount"),
])
def test_a_process_of_another_user_or_user_namespace_is_no_host(before: tuple[str, ...]) -> None:
    """Its owner could have mounted any program anywhere, which would then be run."""
    with process(*before) as pid, pytest.raises(ProcessLookupError, match="is not the host h1"):
        HostProcess(HostRecord("h1", pid, began(pid)))


@pytest.mark.needs("root")
def test_a_command_runs_in_the_hosts_namespaces_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network and mounts are the host's, the working directory stays; the host may have ended by then."""
    monkeypatch.chdir(tmp_path)
    with process("unshare", "--net", "--mount") as pid:
        host = HostProcess(HostRecord("h1", pid, began(pid)))
        theirs = [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in host_processes.NAMESPACES]
    with host:
        look = "readlink /proc/self/ns/net; readlink /proc/self/ns/mnt; pwd"
        done = start(["sh", "-c", look], host.enter(), {}, subprocess.DEVNULL)
        assert done.wait(60) == 0
    assert done.stdout is not None
    with done.stdout as said:
        assert said.read().decode().split() == [*theirs, str(tmp_path)]


def test_records_that_others_could_write_are_not_believed(records: Path) -> None:
    """A folder that others may write to is refused; a link, a file of nonsense, and numbers that no process has are no
    records."""
    with process() as pid:
        host_processes.record("h1", pid, [OTHER])
        (records / "link.json").symlink_to(records / f"{pid}.json")
        (records / "word.json").write_text("mininet:h1")
        for number in (0, -1, 1 << 31):  # of which the kernel says something else than of a process that has ended
            (records / f"{number}.json").write_text(f'{{"name": "h1", "pid": {number}, "began": 0}}')
        run.mininet_hosts({"h1"}, JOBS)["h1"].close()
        records.chmod(0o777)
        with pytest.raises(run.CannotRun, match="anyone may exchange what is in"):
            run.mininet_hosts({"h1"}, JOBS)


@pytest.mark.parametrize(("of_mn", "of_run"), [("run/user/{}", ""), ("", "run/user/{}"), ("login", "login")])
def test_hosts_of_another_shell_of_this_user_are_found(
    of_mn: str, of_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login has a folder of its own, and sudo another one; where a host is in none, the error names them."""
    monkeypatch.setattr(rundir, "RUN", tmp_path / "run")
    (tmp_path / "run" / "user" / str(os.geteuid())).mkdir(parents=True)
    (tmp_path / "login").mkdir()

    def shell(place: str) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / place.format(os.geteuid())) if place else "")

    with process() as pid:
        shell(of_mn)
        host_processes.record("h1", pid, [OTHER])
        shell(of_run)
        run.mininet_hosts({"h1"}, JOBS)["h1"].close()
        with pytest.raises(run.CannotRun, match=f"called h2, with a record in .*{tmp_path}/run/netfold/hosts: bring"):
            run.mininet_hosts({"h2"}, JOBS)


@pytest.mark.needs("root")
def test_another_users_runtime_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_RUNTIME_DIR of the user who called sudo: he could exchange what is in it."""
    theirs = tmp_path / "run"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    monkeypatch.setattr(rundir, "RUN", tmp_path / "ours")
    assert rundir.socket_folder() == tmp_path / "ours" / "netfold"
    assert not list(theirs.iterdir())
