# SPDX-License-Identifier: Apache-2.0
"""Hook of mkdocs: pages of the site that are generated from the code: api.md from docstrings, options.md from the
commands' own help."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import typer
from mkdocs.structure.files import File, Files

from netfold.cli.app import app
from netfold.host import errors


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    for name, text in (("api.md", api()), ("options.md", options())):
        files.append(File.generated(config, name, content=text))
    return files


def api() -> str:
    """The public names of each package, with the methods and properties of classes; then the errors."""
    parts = ["# The Python interface", "The docstrings of all public names. [The host library](host.md) and "
             "[PyTorch](torch.md) explain how to use them, and [failures](failures.md) has the remedies for errors. "
             "softswitch has no Python interface, only its [command](softswitch/docs/softswitch.md) and P4Runtime."]
    for module in ("netfold", "netfold.torch", "netfold.mpi", "netfold.testing"):
        parts.append(f"## {module}")
        if module == "netfold.torch" and find_spec("torch") is None:
            parts.append("This site was built without PyTorch, which this section needs.")
            continue
        package = importlib.import_module(module)
        for name in sorted(package.__all__):
            parts += _entry(f"{module}.{name}", getattr(package, name))
    parts.append("## Errors")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__:
            parts += [f"### {name}", *_body(value, set())]
    return "\n\n".join(parts) + "\n"


def _entry(title: str, value: Any) -> Iterator[str]:
    """A function, a class with its members, or a constant."""
    yield f"### {title}"
    if inspect.isfunction(value):
        yield _signature(value.__name__, value)
        yield from _body(value, set(inspect.signature(value).parameters))
    elif isinstance(value, type):
        yield from _body(value, set(inspect.signature(value.__init__).parameters))
        for name, member in _members(value):
            yield f"#### {name}"
            if isinstance(member, property):
                yield f"`{name}`"
                yield from _body(member, set())
            else:
                yield _signature(name, member)
                yield from _body(member, set(inspect.signature(member).parameters))
    else:
        yield f"A constant: `{value!r}`."


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
    lines: list[str] = []
    for one in written.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not any(line.startswith("    *") for line in lines):
            lines.append("    *,")
        if one.name not in ("self", "cls"):
            lines.append("    " + re.sub(r": '(.*?)'(?= = |$)", r": \1", str(one)) + ",")
    result = "" if written.return_annotation is inspect.Signature.empty else f" -> {written.return_annotation}"
    between = "\n".join(["", *lines, ""]) if lines else ""
    return f"```python\n{name}({between}){result}\n```"


def _body(value: Any, parameters: set[str]) -> Iterator[str]:
    """The paragraphs of a docstring.  Lines that describe parameters become a table; others with columns or an indent
    are shown as they are."""
    for paragraph in (inspect.getdoc(value) or "").split("\n\n"):
        text: list[str] = []
        rows: list[list[str]] = []
        for line in paragraph.splitlines():
            # the longest name has one space behind it; it counts below other parameters only
            described = re.fullmatch(r"(\w+) ( *)(\S.*)", line)
            if described and described[1] in parameters and (described[2] or rows):
                rows.append([described[1], described[3]])
            elif rows and line.startswith(" "):
                rows[-1].append(line.strip())
            else:
                text.append(line)
        if any(re.search(r"[^\s.:?!]  +\S|^    ", line) for line in text):
            yield "```text\n" + "\n".join(text).replace("``", "") + "\n```"
        elif text:
            yield _plain("\n".join(text))
        if rows:
            yield "\n".join(["| parameter | meaning |", "|---|---|",
                             *(f"| `{name}` | {_cell(' '.join(meaning))} |" for name, *meaning in rows)])


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
