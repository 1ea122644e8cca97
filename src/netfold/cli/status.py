# SPDX-License-Identifier: Apache-2.0
"""Requests to a running controller about switches and jobs: `netfold status`, `slots`, `stall` and `drop`."""

from __future__ import annotations

from typing import Annotated

import typer

from netfold import plain_text
from netfold.cli.common import CANNOT, awaited, fail
from netfold.cli.controllers import controller_of
from netfold.cli.options import Address, FabricOption, Json, RunningFabric


def status(
    file: RunningFabric = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Show what a running controller sees: switches, links with their traffic, jobs with their trees."""
    from netfold.controller import client

    asked = controller_of(file, controller)
    answer = awaited(client.status(asked.address, token=asked.token))
    if json:
        print(plain_text.json_line(answer))
    else:
        from netfold.cli.show import show

        show(answer)


def slots(
    switch: Annotated[str, typer.Argument(help="The switch's name.")],
    job: Annotated[str | None, typer.Argument(help="The job's name; default: all.")] = None,
    fabric: FabricOption = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Show the open slots of a switch: which contributions have come, and which are missing.

    A slot is open while its result has not arrived. A job that runs has some at any moment; one that hangs has the same
    ones each time.
    """
    from netfold.controller import client

    asked = controller_of(fabric, controller)
    answer = awaited(client.slots(asked.address, switch, job, token=asked.token))
    if json:
        print(plain_text.json_line(answer))
    else:
        from netfold.cli.show import show_slots

        show_slots(switch, answer)


def stall(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    file: RunningFabric = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Show which ranks a job waits for, with the switch, the slot and its bitmap."""
    from netfold.controller import client

    asked = controller_of(file, controller)
    answer = awaited(client.stall(asked.address, job, token=asked.token))
    print(plain_text.json_line(answer) if json else plain_text.clean("\n".join(map(str, answer))))


def drop(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    file: RunningFabric = None,
    controller: Address = None,
) -> None:
    """End a job whose ranks are dead, and free its slots."""
    from netfold.controller import client

    asked = controller_of(file, controller)
    if not awaited(client.drop(asked.address, job, token=asked.token)):
        fail(CANNOT, f"drop: there is no job {job}; `netfold status` lists them")
