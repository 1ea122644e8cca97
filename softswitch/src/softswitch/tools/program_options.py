# SPDX-License-Identifier: Apache-2.0
"""Reads command lines as Boost's program_options does, with which BMv2's programs read theirs.

    options = [Option("device-id", "", "arg", "...", int), Option("log-console", "", None, "...", bool)]
    values, rest = parse(["--device-id=3", "prog.json", "--log-con"], options)

A long option may be cut to any beginning that no other one shares; options and other words come in any order.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class OptionError(Exception):
    """The command line is wrong; the message is Boost's."""


@dataclass(frozen=True)
class Option:
    """One option.

    name      its long name, without dashes
    short     its letter, or ""
    kind      bool for one without a value, else the type of its value: str or int
    help      what --help says
    implicit  the value where the option stands alone: such a value is optional
    many      whether it may come several times, which makes its value a list
    """

    name: str
    short: str
    kind: type
    help: str
    implicit: str | None = None
    many: bool = False

    def usage(self) -> str:
        """Its lines in --help."""
        names = f"-{self.short} [ --{self.name} ]" if self.short else f"--{self.name}"
        value = "" if self.kind is bool else f" [=arg(={self.implicit})]" if self.implicit is not None else " arg"
        return textwrap.fill(self.help, 100, initial_indent=f"  {names + value:<30} ", subsequent_indent=" " * 33,
                             break_on_hyphens=False)


def parse(words: Sequence[str], options: Sequence[Option]) -> tuple[dict[str, Any], list[str]]:
    """The values of the options that were given, by name, and the words that are none. Raises OptionError."""
    values: dict[str, Any] = {}
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if len(word) < 2 or not word.startswith("-"):
            others.append(word)
            continue
        option, value = _option(word, options)
        said = f"--{option.name}"
        if option.kind is bool:
            if value is not None:
                raise OptionError(f"option '{said}' does not take any arguments")
            values[option.name] = True
            continue
        if value is None and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        if value is None:
            value = option.implicit
        if value is None:
            raise OptionError(f"the required argument for option '{said}' is missing")
        _store(values, option, value)
    return values, others


def _option(word: str, options: Sequence[Option]) -> tuple[Option, str | None]:
    """The option that a word names, and the value in the same word."""
    if not word.startswith("--"):
        found = [option for option in options if option.short == word[1]]
        if not found:
            raise OptionError(f"unrecognised option '{word}'")
        return found[0], word[2:] or None
    name, equals, value = word[2:].partition("=")
    found = [option for option in options if option.name == name] or [o for o in options if o.name.startswith(name)]
    if not found:
        raise OptionError(f"unrecognised option '{word}'")
    if len(found) > 1:
        names = "' and '--".join(option.name for option in found)
        raise OptionError(f"option '{word}' is ambiguous and matches '--{names}'")
    return found[0], value if equals else None


def _store(values: dict[str, Any], option: Option, text: str) -> None:
    value: Any = text
    if option.kind is int:
        if not text.isascii() or not text.isdigit():
            raise OptionError(f"the argument ('{text}') for option '--{option.name}' is invalid")
        value = int(text)
    if option.many:
        values.setdefault(option.name, []).append(value)
    elif option.name in values:
        raise OptionError(f"option '--{option.name}' cannot be specified more than once")
    else:
        values[option.name] = value
