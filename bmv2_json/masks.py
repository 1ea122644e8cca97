# SPDX-License-Identifier: Apache-2.0
"""Takes masks that change nothing out of the expressions of a program in BMv2's JSON format.

p4c puts `& 0xff..` around each operation, as BMv2's numbers have no width.  That changes nothing where the operands are
no wider anyway, nor around all that a field is set to: BMv2 cuts what it writes into a field to the field's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Node = dict[str, Any]
Widths = Mapping[tuple[str, str], int]


def unmask(program: Node, widths: Widths) -> None:
    """Take the masks out, in place.  widths: the bits of each field of the program, by header and name."""
    for action in program["actions"]:
        for primitive in action["primitives"]:
            primitive["parameters"] = [_without(one, widths) for one in primitive["parameters"]]
            if primitive["op"] == "assign":
                to, value = primitive["parameters"]
                width = widths.get((to["value"][0], to["value"][1])) if to["type"] == "field" else None
                if width is not None and (inner := _masked(value, width)) is not None:
                    primitive["parameters"][1] = inner
    for pipeline in program["pipelines"]:
        for node in pipeline["conditionals"]:
            node["expression"] = _without(node["expression"], widths)


def _masked(node: Node, width: int) -> Node | None:
    """The operand of a mask of at least this many bits, if it can be a parameter by itself; None: no such mask."""
    operation = _operation(node)
    if operation is None or operation["op"] != "&" or not _is_mask(operation["right"], width):
        return None
    inner: Node = operation["left"]
    if _operation(inner) is None:
        return inner if inner["type"] == "field" else None
    return {"type": "expression", "value": inner} if node["value"].get("type") == "expression" else inner


def _without(node: Any, widths: Widths) -> Any:
    if isinstance(node, list):
        return [_without(one, widths) for one in node]
    if not isinstance(node, dict):
        return node
    node = {key: _without(value, widths) if key in ("value", "left", "right", "cond") else value
            for key, value in node.items()}
    operation = node.get("value") if node.get("type") == "expression" else None
    if isinstance(operation, dict) and operation.get("op") == "&":
        bits = _bits(operation["left"], widths)
        inner = operation["left"]
        if bits is not None and _is_mask(operation["right"], bits) and _operation(inner) is not None:
            return inner
    return node


def _operation(node: Any) -> Node | None:
    """The operation that an expression is, whether or not it stands within another one; None: it is none."""
    while isinstance(node, dict) and node.get("type") == "expression":
        node = node["value"]
    return node if isinstance(node, dict) and "op" in node else None


def _is_mask(node: Node, bits: int) -> bool:
    """True if a constant consists of ones in its lowest bits, at least as many as these, and of nothing else."""
    if node["type"] != "hexstr":
        return False
    number = int(node["value"], 16)
    return number & (number + 1) == 0 and number.bit_length() >= bits


def _bits(node: Node, widths: Widths) -> int | None:
    """The bits that a value has at most; None: it may be negative, or that is not known."""
    if node["type"] == "field":
        return widths.get((node["value"][0], node["value"][1]))
    if node["type"] == "hexstr":
        return int(node["value"], 16).bit_length()
    operation = _operation(node)
    if operation is None or operation["op"] not in ("&", "|", "^", "+", ">>", "<<"):
        return None
    left, right = _bits(operation["left"], widths), _bits(operation["right"], widths)
    if operation["op"] == "&":
        # a number that may be negative and has no width is cut to the other one's
        return min((one for one in (left, right) if one is not None), default=None)
    if left is None or right is None:
        return None
    if operation["op"] in ("|", "^"):
        return max(left, right)
    if operation["op"] == "+":
        return max(left, right) + 1
    if operation["right"]["type"] != "hexstr":
        return None
    by = int(operation["right"]["value"], 16)
    return max(left - by, 0) if operation["op"] == ">>" else left + by
