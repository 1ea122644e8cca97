# SPDX-License-Identifier: Apache-2.0
"""`netfold drain` and `netfold undrain`: take a switch or link out of use for maintenance, and back into use."""

from __future__ import annotations

from typing import Annotated

import typer

from netfold import plain_text
from netfold.cli.options import Address, Json, RunningFabric

Name = Annotated[str, typer.Argument(metavar="SWITCH|SWITCH:PORT", help="A switch, or either end of a link between "
                                                                       "switches.")]


def drain(
    name: Name,
    file: RunningFabric = None,
    controller: Address = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait until no job is on it.")] = 30.0,
    json: Json = False,
) -> None:
    """Take a switch or link out of use, without loss: routes, paths and trees go around it, running jobs move away.

    When this ends with status 0, nothing uses it any more. It is refused if a host would be cut off.
    """
    _set(name, file, controller, drained=True, wait=timeout, json=json)


def undrain(name: Name, file: RunningFabric = None, controller: Address = None, json: Json = False) -> None:
    """Use a drained switch or link again; running jobs move back if that is better for them."""
    _set(name, file, controller, drained=False, wait=0.0, json=json)


def _set(name: str, file: RunningFabric, controller: Address, *, drained: bool, wait: float, json: bool) -> None:
    from netfold.cli.common import FAILED, awaited, fail
    from netfold.cli.controllers import controller_of
    from netfold.controller import client
    from netfold.wire import operator

    address, token = controller_of(file, controller)
    done: operator.Drained = awaited(client.drain(address, name, drained, wait=wait, token=token))
    print(plain_text.json_line(done) if json else
          plain_text.clean(f"{done.name} is {'drained' if drained else 'in use again'}; now drained: "
                           f"{', '.join(done.names) or 'nothing'}"))
    if done.still:
        fail(FAILED, f"drain: nothing new goes there, but after {wait:g} s {done.name} still carries\n  "
                  + "\n  ".join(done.still))
