# SPDX-License-Identifier: Apache-2.0
"""Hook of mkdocs: pages of the site that are generated from the code: api.md from docstrings, options.md from the
commands' own help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.structure.files import File, Files

import netfold
from netfold.cli.app import app


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    for name, text in (("api.md", api()), ("options.md", options())):
        files.append(File.generated(config, name, content=text))
    return files


def api() -> str:
    """The public names of the package: functions, then the communicator with its methods and properties."""
    parts = ["# The Python interface", "The docstrings of the public names of `netfold`. [The host library](host.md) "
             "explains how to use them, and [failures](failures.md) has the errors."]
    for name in sorted(netfold.__all__):
        value = getattr(netfold, name)
        if inspect.isfunction(value):
            parts += [f"## netfold.{name}", _signature(name, value), *_body(value)]
    parts += ["## Communicator", *_body(netfold.Communicator)]
    for name, value in _members(netfold.Communicator):
        shown = f"`{name}`" if isinstance(value, property) else _signature(name, value)
        parts += [f"### {name}", shown, *_body(value)]
    return "\n\n".join(parts) + "\n"


def options() -> str:
    """Every command that `netfold --help` shows, with its arguments and options."""
    parts = ["# Options", "All commands of `netfold` with their options, as `--help` prints them. "
             "[Commands](commands.md) is the overview."]
    for words, command in _leaves("netfold", typer.main.get_command(app)):
        parts += [f"## {words}", _plain(command.help or "")]
        rows = [f"| {_names(one)} | {_cell(getattr(one, 'help', None) or '')} | {_default(one)} |"
                for one in command.params if not getattr(one, "hidden", False)]
        if rows:
            parts.append("\n".join(["| option | meaning | default |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class and of NetFold's classes above it, by name."""
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("netfold."):
            found |= {name: value for name, value in vars(one).items() if name[0] != "_"}
    for name, value in sorted(found.items()):
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        if inspect.isfunction(value) or isinstance(value, property):
            yield name, value


def _signature(name: str, function: Any) -> str:
    """A function's parameters, one on each line."""
    written = inspect.signature(function)
    lines = ["    " + re.sub(r": '(.*?)'(?= = |$)", r": \1", str(one)) + "," for one in written.parameters.values()
             if one.name not in ("self", "cls")]
    result = "" if written.return_annotation is inspect.Signature.empty else f" -> {written.return_annotation}"
    between = "\n".join(["", *lines, ""]) if lines else ""
    return f"```python\n{name}({between}){result}\n```"


def _body(value: Any) -> Iterator[str]:
    """The paragraphs of a docstring; those with columns or an indent are shown as they are."""
    for paragraph in (inspect.getdoc(value) or "").split("\n\n"):
        if re.search(r"[^\s.:?!]  +\S|^    ", paragraph, re.M):
            yield "```text\n" + paragraph.replace("``", "") + "\n```"
        else:
            yield _plain(paragraph)


def _leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that do something, by the words that are typed."""
    if command.hidden:
        return
    if not hasattr(command, "commands"):
        yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _leaves(f"{words} {name}", inner)


def _names(parameter: Any) -> str:
    shown = [parameter.metavar or parameter.name.upper()] if parameter.param_type_name == "argument" else parameter.opts
    return ", ".join(f"`{name}`" for name in [*shown, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    value = parameter.default
    return "" if value is None or value is False or callable(value) or value in ("", (), []) else _cell(f"`{value}`")


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text of a docstring as Markdown."""
    return text.replace("``", "`").replace("<", "&lt;").replace("[", "\\[")
