# SPDX-License-Identifier: Apache-2.0
"""Machines that Slurm starts programs on: a controller, and a slurmd in each, all inside a sandbox.

    with SlurmMachines(2, folder) as machines:
        machines.launcher      # "srun", as it is
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from support.sandboxes.machines import SECONDS, Machines

CONFIG = """
ClusterName=test
SlurmctldHost={controller}(10.99.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldTimeout=300
SlurmdTimeout=300
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
"""


class SlurmMachines(Machines):
    """Namespaces that are reached by srun alone, named m1, m2, ...  Needs root, which Slurm's daemons are."""

    def __init__(self, count: int, folder: Path) -> None:
        super().__init__(count, folder)
        self.launcher = "srun"
        self._folder = folder / "slurm"
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the launcher finds this cluster."""
        return {**os.environ, "SLURM_CONF": str(self._folder / "slurm.conf")}

    def __enter__(self) -> SlurmMachines:
        super().__enter__()
        self._folder.mkdir(mode=0o755)
        (self._folder / "state").mkdir()
        nodes = "\n".join(f"NodeName=m{n} NodeAddr=10.99.0.{n} CPUs=16 State=UNKNOWN" for n in self.numbers)
        (self._folder / "slurm.conf").write_text(CONFIG.format(
            folder=self._folder, nodes=nodes, controller=socket.gethostname().partition(".")[0]))
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for n in self.numbers:
            (self._folder / f"spool-m{n}").mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._start("munged", "--foreground", "--force", "--num-threads", "2", "--key-file", str(key),
                    "--socket", str(self._folder / "munge.socket"), "--pid-file", str(self._folder / "munged.pid"),
                    "--seed-file", str(self._folder / "munged.seed"))
        self._start("slurmctld", "-D", "-i")
        for n in self.numbers:
            self._start("slurmd", "-D", "-N", f"m{n}", namespace=f"m{n}")
        self.list.write_text("".join(f"m{n} address=10.99.0.{n}\n" for n in self.numbers))
        self._wait_idle()
        return self

    def _start(self, program: str, *options: str, namespace: str = "") -> None:
        path = shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")
        enter = ["ip", "netns", "exec", namespace] if namespace else []
        with (self._folder / f"{program}{namespace}.log").open("wb") as log:
            self._daemons.append(subprocess.Popen([*enter, str(path), *options], stdin=subprocess.DEVNULL, stdout=log,
                                                  stderr=log, env=self.environment))

    def _wait_idle(self) -> None:
        until = time.monotonic() + SECONDS
        while True:
            done = subprocess.run(["sinfo", "--noheader", "--Node", "--format", "%N %T"], env=self.environment,
                                  capture_output=True, text=True, timeout=SECONDS, check=False)
            states = sorted(done.stdout.split("\n")[:-1])
            if states == [f"m{n} idle" for n in self.numbers]:
                return
            logs = "\n".join(file.read_text()[-1500:] for file in sorted(self._folder.glob("*.log")))
            assert all(daemon.poll() is None for daemon in self._daemons), logs
            assert time.monotonic() < until, f"Slurm is not ready: {done.stdout}{done.stderr}\n{logs}"
            time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(SECONDS)
        super().__exit__(kind, error, trace)
