# SPDX-License-Identifier: Apache-2.0
"""Makes a program that p4c compiled for BMv2 cheaper to run, with the same bytes out.

What BMv2 takes time for is not the work of a program but its pieces: each field of metadata, each table, each step; and
for each step, where BMv2's log is compiled in (that is the default), the text of its source, even if nothing logs.  p4c
makes many pieces.  So what it made is worked over, a step of its own each:

    source       where a step stands in the P4 source: left out
    decisions    tables of constants become comparisons (decide.py)
    masks        those that change nothing go (masks.py)
    fields       copies, and values computed twice, go (fields.py)

Tables, keys and actions that P4Runtime knows stay as they are.
"""

from __future__ import annotations

import json
from typing import Any

from netfold.bmv2_json import decide, fields, masks


def lighten(text: str) -> str:
    """Work over a program in BMv2's JSON format, as p4c-bm2-ss writes it."""
    program: dict[str, Any] = _without_source(json.loads(text))
    widths = fields.widths(program)
    decide.decide(program, widths)
    masks.unmask(program, widths)
    fields.lessen(program)
    return json.dumps(program, separators=(",", ":"))


def _without_source(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_source(value) for key, value in node.items() if key != "source_info"}
    if isinstance(node, list):
        return [_without_source(value) for value in node]
    return node
