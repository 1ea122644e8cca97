# SPDX-License-Identifier: Apache-2.0
"""Fabric files that nobody would write: each is read, or refused with a FabricError that names the file."""

from __future__ import annotations

import random

import pytest

from netfold.fabric.file import dumps, loads
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError
from switch_support import fuzz

_FILES = [fuzz.pieces(dumps(leafspine(2, 1, 2, loss=0.5, rate="1gbit"))), fuzz.pieces(dumps(leafspine(3, 2, 5)))]
_WORDS = ["1e30", "-1", "9" * 30, "9" * 5000, "nan", "inf", "true", "[]", "{}", "[[", "]]", '""', '"\\u0000"',
          '"\\ud800"', "1979-05-27", '"[/x]"', "'''", '"unix:"', '"leaf1:1"', '"h1:0"', '"0.0.0.0"', '"../../x"',
          "[fabric]", "[[link]]", "[[switch]]",
          "[[host]]", "[[tenant]]", "a.b.c = 1\n", "=", "\n", "[" * 3000, "\0", "é", "0x7fffffffffffffff"]


def spoiled(draw: random.Random) -> str:
    """A fabric file with words exchanged, numbers replaced, lines repeated and removed."""
    tokens = list(draw.choice(_FILES))
    for _ in range(draw.choice([0, 1, 1, 3])):
        tokens[draw.randrange(len(tokens))] = draw.choice(_WORDS)
    return fuzz.mutate(draw, tokens, draw.choice(_FILES)) if draw.random() < 0.7 else "".join(tokens)


@pytest.mark.fuzz
def test_a_spoiled_file_is_read_or_refused_by_name(fuzzing: fuzz.Fuzz) -> None:
    """No other exception than FabricError, whose message begins with the name of the file."""
    read = 0
    for draw in fuzzing.inputs(600):
        text = spoiled(draw)
        try:
            loads(text, "lab.toml")
        except FabricError as error:
            said = str(error)
        except Exception as error:
            raise AssertionError(f"input {fuzzing.tried}: {text!r}") from error
        else:
            read += 1
            continue
        assert "lab.toml" in said, f"input {fuzzing.tried}: {said!r}: {text!r}"
    print(f"fuzz: {read} of them were read")
    assert 0 < read < fuzzing.tried
