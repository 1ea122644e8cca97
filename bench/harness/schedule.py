# SPDX-License-Identifier: Apache-2.0
"""Which faults `netfold bench soak` knows, when each of a round begins and ends, and the thread that injects them."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args

from netfold.bench.harness.stranger import Attack

if TYPE_CHECKING:  # Mininet may be absent, and is imported inside the sandbox
    from netfold.topo.faults.injector import FaultInjector
    from netfold.topo.processes.ranks import Ranks

Fault = Literal["spine", "leaf", "cut", "silent", "stop", "controller", "standby", "spoof", "flood", "mesh", "service",
                "disk"]
FAULTS: Final[Mapping[Fault, str]] = {
    "spine": "a spine is killed, and started again later",
    "leaf": "a leaf is killed and started again",
    "cut": "a link between leaf and spine is down for a while",
    "silent": "it drops packets silently",
    "stop": "a rank is stopped for 3 s",
    "controller": "the controller is killed, and started again later",
    "standby": "it is killed, and the standby takes over; later another controller is started",
    "spoof": "a host outside the job sends results and contributions",
    "flood": "it floods the group of link probes",
    "mesh": "it connects to the ranks' TCP ports",
    "service": "it sends requests to the controller",
    "disk": "the disk of logs, flight files and the controller's state is full",
}
STOPPED: Final = 3.0
"""Seconds that a rank is stopped."""


class FaultStep(NamedTuple):
    """A fault, or the end of one: ``do`` is called ``at`` seconds after the ranks have begun."""

    at: float
    name: str
    do: Callable[[], None]


class Controllers(Protocol):
    """The controller of a fabric, and its standby."""

    def kill(self) -> None:
        """Kill the controller."""

    def start(self) -> None:
        """Start a controller, and wait until it serves jobs."""

    def take_over(self) -> None:
        """Kill the controller, and wait until the standby serves jobs."""


class Attackers(Protocol):
    """Strangers, as `strangers.Strangers`."""

    def begin(self, attack: Attack, seed: int, seconds: float) -> None:
        """Start an attack."""

    def end(self, attack: Attack) -> None:
        """Wait for its end."""


class Disk(Protocol):
    """A disk that can be full."""

    def fill(self) -> None:
        """Leave no room."""

    def clear(self) -> None:
        """Make room again."""


class Victims(NamedTuple):
    """The possible victims of faults."""

    switches: FaultInjector
    ranks: Ranks
    controllers: Controllers
    attackers: Attackers
    disk: Disk


class StepFailed(RuntimeError):
    """A fault could not be injected or undone, or an outsider could do something forbidden.

    Remedy: a step of the schedule failed: read its cause in the message, and the logs beside it.
    """


class StepRunner(threading.Thread):
    """A thread that takes each step when its time has come; the last one tells the ranks to end.

    done  receives a line for each step: its time and name
    """

    def __init__(self, steps: Sequence[FaultStep], done: list[str]) -> None:
        super().__init__(name="soak", daemon=True)
        self._steps, self._done = steps, done
        self._enough = threading.Event()
        self._failed: Exception | None = None

    def run(self) -> None:
        began = time.monotonic()
        for step in self._steps:
            if self._enough.wait(began + step.at - time.monotonic()):
                return
            self._done.append(f"{time.monotonic() - began:.2f} {step.name}")
            try:
                step.do()
            except Exception as error:
                self._failed = error
                return

    def stop(self) -> None:
        """Take no further step, because the ranks have ended or failed.  Raises StepFailed."""
        self._enough.set()
        if self.ident:
            self.join()
        if self._failed is not None:
            raise StepFailed(f"{self._done[-1]}: {self._failed!r}") from self._failed


def schedule(rng: random.Random, kinds: Sequence[Fault], victims: Victims, number: int, over: Callable[[], None]
             ) -> list[FaultStep]:
    """Draw ``number`` faults of these kinds and the end of each, which may be after the start of the next one.

    No switch, link or rank is hit twice, and each attack comes once; controllers die one after the other.  A second
    after the last step ``over`` is called.
    """
    do = victims.switches
    fabric = do.network.fabric
    uplinks = [end for link in fabric.links for end in link.ends if end.node.startswith("spine")]
    spines = [switch.name for switch in fabric.switches if switch.name.startswith("spine")]
    leaves = [switch.name for switch in fabric.switches if switch.name.startswith("leaf")]
    stopped = list(range(len(victims.ranks.processes)))
    for names in (uplinks, spines, leaves, stopped):
        rng.shuffle(names)
    once: list[Fault] = ["controller", "standby", "disk", *get_args(Attack)]
    steps: list[FaultStep] = []
    now, no_controller = 0.5, 0.0
    for _ in range(number):
        room: dict[Fault, list[object]] = {"spine": [*spines], "leaf": [*leaves], "cut": [*uplinks],
                                           "silent": [*uplinks], "stop": [*stopped]}
        left = [kind for kind in kinds if room.get(kind) or kind in once]
        if not left:
            break
        kind = rng.choice(left)
        lasts = rng.uniform(0.1, 3.0)
        if kind in once:
            once.remove(kind)
        if kind == "leaf":
            name = leaves.pop()
            steps += [FaultStep(now, f"{name} killed and started", partial(do.restart, name))]
        elif kind == "spine":
            name = spines.pop()
            steps += [FaultStep(now, f"{name} killed", partial(do.kill, name)),
                      FaultStep(now + lasts, f"{name} started", partial(do.start, name))]
        elif kind == "stop":
            rank = stopped.pop()
            send = victims.ranks.processes[rank].send_signal
            steps += [FaultStep(now, f"rank {rank} stopped", partial(send, signal.SIGSTOP)),
                      FaultStep(now + STOPPED, f"rank {rank} goes on", partial(send, signal.SIGCONT))]
        elif kind == "cut" or kind == "silent":
            node, port = end = uplinks.pop()
            begin, undo = ((do.link_down, do.link_up) if kind == "cut" else
                           (do.blackhole, do.end_blackhole))
            steps += [FaultStep(now, f"{end} {kind}", partial(begin, node, port)),
                      FaultStep(now + lasts, f"{end} as before", partial(undo, node, port))]
        elif kind == "controller" or kind == "standby":
            what, dies = (("controller killed", victims.controllers.kill) if kind == "controller" else
                          ("controller killed, standby takes over", victims.controllers.take_over))
            dead = max(now, no_controller)
            no_controller = dead + lasts
            steps += [FaultStep(dead, what, dies),
                      FaultStep(no_controller, "controller started", victims.controllers.start)]
        elif kind == "disk":
            steps += [FaultStep(now, "disk full", victims.disk.fill),
                      FaultStep(now + lasts, "disk has room", victims.disk.clear)]
        else:
            attack = partial(victims.attackers.begin, kind, rng.randrange(1 << 32), lasts)
            steps += [FaultStep(now, f"{kind} begins", attack),
                      FaultStep(now + lasts, f"{kind} ends", partial(victims.attackers.end, kind))]
        now += rng.choice([0.0, 0.02, 0.3, 2.0])
    steps.sort(key=lambda step: step.at)
    return [*steps, FaultStep(steps[-1].at + 1, "over", over)]
