# SPDX-License-Identifier: Apache-2.0
"""`netfold fault`: faults on a fabric that runs on this machine, undone by its launcher when their time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, get_args

import typer

from netfold import plain_text
from netfold.cli.common import CANNOT, fail
from netfold.cli.local_fabric import WhichFabric, ask, seconds, socket_of
from netfold.cli.options import Json
from netfold.wire import faults

app = typer.Typer(no_args_is_help=True, help="Break something on a fabric that runs here, for a while: links, "
                                             "switches, controller, ranks.")

CALL_SECONDS: Final = 120.0
"""Seconds for a fault to be injected: a controller that restarts takes some."""

Target = Annotated[str, typer.Argument(metavar="TARGET", help="A switch (spine1), a link (leaf1:3, leaf1-spine1), a "
                                            "host's link (h3), a rank (rank3, JOB/3), controller.")]
For = Annotated[str | None, typer.Option("--for", metavar="DURATION",
    help="500ms, 5s, 2m: undo it after this time, even if this command was ended; default: until `netfold fault end`.")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="The same seed selects the same packets; default: "
                                                                     "the fabric's.")]
Share = Annotated[float, typer.Option(help="Share of the packets, above 0, up to 1.")]
OneWay = Annotated[bool, typer.Option("--one-way", help="Only packets that leave by the named port.")]

WHAT: Final = {
    "loss": "Lose a share of a link's packets, each way.",
    "duplicate": "Let a share of a link's packets arrive twice.",
    "reorder": "Hold back a share of a link's packets until others have overtaken them.",
    "corrupt": "Change a share of the packets on their way from a host to its switch, which drops them.",
    "cut": "Take a link down; both ends see it.",
    "kill": "Kill a switch, the controller or a rank; a switch and the controller start again when the time is over.",
    "restart": "Kill a switch or the controller, and start it again at once.",
    "stop": "Let a switch, the controller or a rank stand still, as if it hung.",
}


def _inject(fabric: str | None, request: faults.Inject) -> None:
    answer, _ = ask(socket_of(fabric), request, CALL_SECONDS)
    ends = (f"; ends by itself after {request.seconds:g} s" if request.seconds is not None
            else f"; `netfold fault end {answer.number}` ends it" if answer.number else "")
    print(plain_text.clean(f"{f'fault {answer.number}: ' * bool(answer.number)}{answer.text}{ends}"))


def _for(text: str | None) -> float | None:
    return None if text is None else seconds(text, "--for")


def _shares(kind: faults.Kind) -> Callable[..., None]:
    def command(target: Target, lasting: For = None, share: Share = faults.DEFAULT_SHARE, seed: Seed = None,
                fabric: WhichFabric = None) -> None:
        if not 0 < share <= 1:
            fail(CANNOT, f"fault {kind}: --share {share:g}: expected a share of the packets, above 0, up to 1")
        _inject(fabric, faults.Inject(kind, target, _for(lasting), share, seed))

    return command


def _plain(kind: faults.Kind) -> Callable[..., None]:
    def command(target: Target, lasting: For = None, fabric: WhichFabric = None) -> None:
        _inject(fabric, faults.Inject(kind, target, _for(lasting)))

    return command


for _kind in get_args(faults.Kind):
    if _kind in WHAT:
        app.command(_kind, help=WHAT[_kind])((_shares if _kind in faults.SHARES else _plain)(_kind))


@app.command()
def flap(
    target: Target, lasting: For = None,
    period: Annotated[str, typer.Option(help="Time that it is down, and then up.")] = "500ms",
    fabric: WhichFabric = None,
) -> None:
    """Take a link down and up again, in turn."""
    _inject(fabric, faults.Inject("flap", target, _for(lasting), seconds(period, "--period")))


@app.command()
def silence(target: Target, lasting: For = None, one_way: OneWay = False, fabric: WhichFabric = None) -> None:
    """Drop every frame of a link, while both ends see it as up."""
    _inject(fabric, faults.Inject("silence", target, _for(lasting), one_way=one_way))


@app.command()
def delay(
    target: Target, lasting: For = None,
    by: Annotated[str, typer.Option(help="Delay of each packet, each way.")] = "10ms",
    one_way: OneWay = False, fabric: WhichFabric = None,
) -> None:
    """Delay every packet of a link, if the kernel has netem."""
    _inject(fabric, faults.Inject("delay", target, _for(lasting), seconds(by, "--by"), one_way=one_way))


@app.command("list")
def list_(fabric: WhichFabric = None, json: Json = False) -> None:
    """Show the present faults."""
    answer: Any = ask(socket_of(fabric), faults.Active(), CALL_SECONDS)[0]
    if json:
        print(plain_text.json_line(answer))
        return
    for fault in answer.faults:
        left = "until it is ended" if fault.left is None else f"{fault.left:.1f} s left"
        problem = f"; {fault.problem}" if fault.problem else ""
        print(plain_text.clean(f"{fault.number:3} {fault.kind:9} {fault.text}; since {fault.since:.1f} s, "
                             f"{left}{problem}"))
    if not answer.faults:
        print(plain_text.clean(f"{answer.fabric}: no faults"))


@app.command()
def end(
    number: Annotated[str, typer.Argument(metavar="NUMBER|all", help="Number in `netfold fault list`.")],
    fabric: WhichFabric = None,
) -> None:
    """End a fault now, or all."""
    if number != "all" and not (number.isdecimal() and 0 < int(number) < 2**31):
        fail(CANNOT, f"fault end {number!r}: expected the number of a fault (`netfold fault list`), or all")
    answer: Any = ask(socket_of(fabric), faults.Undo(None if number == "all" else int(number)), CALL_SECONDS)[0]
    for text in answer.texts or ["no faults"]:
        print(plain_text.clean(f"ended: {text}" if answer.texts else text))
