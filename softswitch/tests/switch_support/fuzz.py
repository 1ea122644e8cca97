# SPDX-License-Identifier: Apache-2.0
"""How long fuzzers go on, and mutations of bytes and of P4 programs.

In the suite a fuzzer tries a fixed number of inputs from a fixed seed, and LONG times as many with `--long`;
`make fuzz` gives each of them minutes and a new seed. A finding prints its seed and number, and becomes a test of its
own.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SEED = 20261122
LONG = 10
"""How many times as many inputs a long run of the suite tries."""


@dataclass
class Fuzz:
    """The time of one fuzzer: `seconds`, or where it is 0 as many inputs as the suite has time for."""

    seconds: float
    seed: int
    tried: int = 0
    long: bool = False
    """True if the suite has more time."""

    def inputs(self, few: int) -> Iterator[random.Random]:
        """A generator of numbers for each input: the n-th depends on the seed and n alone."""
        start = time.monotonic()
        few *= LONG if self.long else 1
        print(f"fuzz: seed {self.seed}")
        while (time.monotonic() - start < self.seconds) if self.seconds else (self.tried < few):
            yield random.Random(f"{self.seed}/{self.tried}")
            self.tried += 1
        print(f"fuzz: {self.tried} inputs in {time.monotonic() - start:.1f} s, seed {self.seed}")


def spoil(draw: random.Random, data: bytes, *, most: int = 1 << 16) -> bytes:
    """The bytes with some bits turned, bytes replaced, and parts removed, repeated, moved or cut off."""
    out = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 3, 8])):
        at = draw.randrange(len(out) + 1)
        end = min(len(out), at + draw.choice([1, 2, 4, 16, 256]))
        match draw.randrange(7):
            case 0 if at < len(out):
                out[at] ^= 1 << draw.randrange(8)
            case 1 if at < len(out):
                out[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
            case 2:
                del out[at:end]
            case 3:
                out[at:at] = out[at:end] * draw.choice([1, 2, 30])
            case 4:
                out[at:at] = draw.randbytes(draw.choice([1, 3, 40]))
            case 5:
                del out[at:]
            case _:
                out[at:end] = draw.choice([b"\0", b"\xff"]) * (end - at)
    return bytes(out[:most])


_TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*|[A-Za-z_]\w*|\d\w*|\s+|<<|>>|[=!<>]=|&&|\|\||.', re.DOTALL)
_NUMBERS = ["0", "1", "-1", "8w255", "4s7", "65536", "4294967296", "0x" + "f" * 32, "1000000000000", "8w0", "65537w1",
            "1w2", "0b2", "3 << 70000", "9" * 40, "9" * 6000]
_WORDS = [
    "in", "out", "inout", "apply", "table", "key", "actions", "default_action", "exact", "lpm", "ternary", "header",
    "struct", "header_union", "enum", "bit<8>", "int<7>", "bit<129>", "varbit<64>", "bool", "error", "tuple<bit<3>>",
    "const", "return;", "exit;", "transition accept;", "hdr", "meta", ".setValid();", ".isValid()", ".next", ".last",
    "[3:1]", "[0]", "{", "}", "(", ")", ";", ",", "++", "? 1 : 0", "@name(\"*/\")", "@id(5)", "\"\\\"", "...", "_",
    "#define X X X\n", "#if 1\n", "#endif\n", "#line 3 \"*/\"\n", "#include \"/etc/passwd\"\n", "\0", "é",
    "NoAction()", "for (bit<8> i in 1..9)", "switch (1) { default: { } }", "mark_to_drop();", "log_msg(\"{}\", {1});",
    "register<bit<200>>(9) r;",
]


def pieces(text: str) -> list[str]:
    """The tokens of a program, white space included."""
    return _TOKEN.findall(text)


def mutate(draw: random.Random, tokens: Sequence[str], others: Sequence[str]) -> str:
    """A program with some tokens removed, repeated, exchanged, nested, or replaced by numbers and words of P4."""
    out = list(tokens)
    for _ in range(draw.choice([1, 1, 1, 2, 3, 6])):
        at = draw.randrange(len(out))
        end = min(len(out), at + draw.choice([1, 1, 2, 5, 30, 200]))
        match draw.randrange(9):
            case 0:
                del out[at:end]
            case 1:
                out[at:at] = out[at:end]
            case 2:
                other = draw.randrange(len(out))
                out[at], out[other] = out[other], out[at]
            case 3:
                out[at] = draw.choice(_WORDS)
            case 4:
                out[at:at] = [draw.choice(_WORDS)]
            case 5:
                number = [i for i, piece in enumerate(out) if piece[0].isdigit()]
                out[draw.choice(number) if number else at] = draw.choice(_NUMBERS)
            case 6:
                name = [i for i, piece in enumerate(out) if piece[0].isalpha()]
                out[draw.choice(name)] = out[draw.choice(name)]
            case 7:
                start = draw.randrange(len(others))
                out[at:at] = others[start : start + draw.choice([1, 5, 60])]
            case _:
                depth = draw.choice([2, 40, 3000])
                out[at:end] = ["("] * depth + out[at:end] + [")"] * depth
        if not out:
            out = list(tokens)
    return "".join(out)
