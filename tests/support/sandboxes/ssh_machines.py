# SPDX-License-Identifier: Apache-2.0
"""Machines whose launcher is ssh itself: an sshd of OpenSSH in each, with keys that last as long as they do.

    with SshMachines(2, folder) as machines:
        machines.launcher      # what `--launcher ssh` runs, but with a configuration of its own
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType

from netfold.topo.machines.fleet import LAUNCHERS
from support.sandboxes.machines import SECONDS, Machines

SERVER = """
Port 22
ListenAddress 10.99.0.{n}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""
CLIENT = """
User root
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
"""


class SshMachines(Machines):
    """Namespaces that are reached by ssh alone.  Needs root, as sshd changes to a user of its own."""

    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count, folder)
        self._keys = folder / "ssh"
        self.launcher = LAUNCHERS["ssh"].replace("ssh ", f"ssh -F {self._keys / 'client'} ", 1)
        self._sshds: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SshMachines:
        super().__enter__()
        self._keys.mkdir()
        Path("/run/sshd").mkdir(mode=0o755)  # where it confines itself before a user is known; /run is this test's own
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._keys / name)], check=True,
                           timeout=30)
        public = (self._keys / "host_key.pub").read_text()
        (self._keys / "known_hosts").write_text("".join(f"10.99.0.{n} {public}" for n in self.numbers))
        (self._keys / "client").write_text(CLIENT.format(folder=self._keys))
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"  # it insists on an absolute path
        for n in self.numbers:
            config = self._keys / f"server{n}"
            config.write_text(SERVER.format(folder=self._keys, n=n))
            with (self._keys / f"sshd{n}.log").open("wb") as log:
                self._sshds.append(subprocess.Popen(["ip", "netns", "exec", f"m{n}", sshd, "-D", "-e", "-f",
                                                     str(config)], stdin=subprocess.DEVNULL, stderr=log))
        for n in self.numbers:
            self._wait_listening(n)
        return self

    def _wait_listening(self, number: int) -> None:
        until, log = time.monotonic() + SECONDS, self._keys / f"sshd{number}.log"
        while "Server listening" not in log.read_text():
            assert self._sshds[number - 1].poll() is None, log.read_text()
            assert time.monotonic() < until, f"sshd of machine {number} does not listen: {log.read_text()}"
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sshd in self._sshds:
            sshd.kill()
            sshd.wait()
        super().__exit__(kind, error, trace)
