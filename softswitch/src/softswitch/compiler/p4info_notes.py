# SPDX-License-Identifier: Apache-2.0
"""Annotations in P4Info: as text, structured, or as documentation, the way p4c writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler.diagnostics import P4Error

_ELSEWHERE = frozenset({"name", "id", "brief", "description"})
"""Annotations for which every P4Info message has a field of its own."""

# p4c parses these as expressions, and writes ", " between them; of others it writes the tokens with spaces between.
_PARSED = frozenset({
    "deprecated", "noWarn", "length", "synchronous", "field_list", "match", "command_line", "controller_header",
    "max_group_size", "selector_size_semantics", "max_member_weight", "p4runtime_translation",
})


Evaluate = Callable[[A.Expr], Any]
"""Returns the value of an expression that is known at compile time, or None."""


def add(message: Any, notes: Sequence[A.Annotation], evaluate: Evaluate, *, without: Iterable[str] = ()) -> None:
    """Adds annotations, and those that document what they stand at, to a message with fields for them."""
    for note in notes:
        if note.structured:
            _structured(note, message.structured_annotations.add(), evaluate)
        elif note.name not in _ELSEWHERE and note.name not in without:
            message.annotations.append(_text(note))
    if not hasattr(message, "doc"):
        return
    for note in notes:
        if note.name in ("brief", "description") and note.args and isinstance(note.args[0], A.StrLit):
            setattr(message.doc, note.name, note.args[0].value)


def of(decl: Any) -> list[A.Annotation]:
    """The annotations of a declaration; none of what was made without one."""
    return getattr(decl, "annotations", None) or []


def pairs(note: A.Annotation) -> Iterator[tuple[str, str]]:
    """The keys and values of @name(key = value, ...), values as they are written."""
    for part in _parts(note.text):
        if len(part) >= 3 and part[1] == "=":
            yield part[0], " ".join(part[2:])


def string(text: str) -> str:
    """The value of a string literal."""
    return text[1:-1]


def parts(note: A.Annotation) -> list[list[str]]:
    """The tokens of each argument."""
    return list(_parts(note.text))


def _parts(text: list[str]) -> Iterator[list[str]]:
    """Splits tokens at the commas that are not in brackets."""
    part: list[str] = []
    depth = 0
    for token in text:
        if token == "," and depth == 0:
            yield part
            part = []
            continue
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        part.append(token)
    if part:
        yield part


def _text(note: A.Annotation) -> str:
    if not note.text:
        return f"@{note.name}"
    inner = " ".join(note.text)
    return f"@{note.name}({inner.replace(' , ', ', ') if note.name in _PARSED else inner})"


def _structured(note: A.Annotation, message: Any, evaluate: Evaluate) -> None:
    message.name = note.name
    if note.keys:
        for key, value in zip(note.keys, note.args, strict=True):
            _literal(evaluate(value), value, message.kv_pair_list.kv_pairs.add(key=key).value)
        return
    message.expression_list.SetInParent()
    for value in note.args:
        _literal(evaluate(value), value, message.expression_list.expressions.add())


def _literal(value: Any, e: A.Expr, message: Any) -> None:
    match value:
        case bool():
            message.bool_value = value
        case str():
            message.string_value = value
        case int() if -(1 << 63) <= value < 1 << 63:
            message.int64_value = value
        case _:
            raise P4Error(e.pos, "in a structured annotation: expected a string, bool or number of 64 bits that is "
                                 "known at compile time")
