# SPDX-License-Identifier: Apache-2.0
"""Reads the options of a switch that starts with argparse: typer, with what it imports, would take a third of the time
until the switch is ready. Both know the options from SwitchOptions.

What argparse does not understand is left to typer: a request for help, and mistakes, whose messages are typer's then.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NoReturn, get_args, get_origin

from softswitch.cli import run as running
from softswitch.cli.options import CliOption
from softswitch.cli.switch_options import SwitchOptions


class _NotUnderstood(Exception):
    """The words are not those of a switch that starts."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _NotUnderstood(message)


def run(options: SwitchOptions) -> None:
    """Runs a switch with the options that `read` returned."""
    try:
        running.run(options)
    except KeyboardInterrupt:  # before run() handles the signal
        sys.exit(130)


def read(words: Sequence[str]) -> SwitchOptions | None:
    """The options that the words give; None: typer has to read them."""
    if "--" in words:
        return None
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for name, parameter in inspect.signature(SwitchOptions, eval_str=True).parameters.items():
        kind, declared = get_args(parameter.annotation)
        if isinstance(declared, CliOption):
            _add(parser, name, _required(kind), declared)
    try:
        options, others = parser.parse_known_args(words)
    except _NotUnderstood:
        return None
    if len(others) > 1 or any(word.startswith("-") for word in others):
        return None
    program = {"program": Path(others[0])} if others else {}
    return SwitchOptions(**(vars(options) | program))


def _required(kind: Any) -> Any:
    """The type without None: `int` of `int | None`."""
    return next(one for one in get_args(kind) if one is not NoneType) if isinstance(kind, UnionType) else kind


def _add(parser: argparse.ArgumentParser, name: str, kind: Any, declared: CliOption) -> None:
    names = declared.names or (f"--{name.replace('_', '-')}",)
    if kind is bool:
        parser.add_argument(*names, dest=name, action="store_true")
    elif get_origin(kind) is list:
        parser.add_argument(*names, dest=name, action="append", type=get_args(kind)[0])
    elif kind is int:
        parser.add_argument(*names, dest=name, type=_number(declared))
    else:  # str, Path, enumerations
        parser.add_argument(*names, dest=name, type=kind)


def _number(declared: CliOption) -> Callable[[str], int]:
    """Reads a number within the limits of an option."""

    def read(text: str) -> int:
        value = int(text)
        if not (text.isascii() and text.isdigit()) or value < (declared.min or 0):
            raise ValueError
        if declared.max is not None and value > declared.max:
            raise ValueError
        return value

    return read
