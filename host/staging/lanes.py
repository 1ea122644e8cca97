# SPDX-License-Identifier: Apache-2.0
"""Narrow lanes made by torch, on whatever device the values are: bit for bit those of ``host/native/narrow.c``, where
the arithmetic and its bounds are explained.

The processor need not know lanes then: they cross, and are summed, as int32 of four or two lanes each.  So that no lane
borrows from its neighbour, each has its least value, the negative of the levels, taken from it: what N ranks add stays
within 0 .. 2 N levels, for which a lane has room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

BLOCK: Final = 256
"""Values that share a scale."""
SPECIAL: Final = 0x7F800000
"""Scales from here up stand for Inf or NaN."""
MAGNITUDE: Final = 0x7FFFFFFF
WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True)
class NarrowLanes:
    """How values become lanes.

    bits   16 or 8
    ranks  that add theirs
    key    of stochastic rounding (``nf_key``); None: to the nearest
    """

    bits: int
    ranks: int
    key: int | None = None

    @property
    def levels(self) -> int:
        """Largest lane of one rank."""
        return ((1 << (self.bits - 1)) - 1) // self.ranks

    def integers(self, values: torch.Tensor, scales: torch.Tensor, place: int) -> torch.Tensor:
        """The lanes as int32[blocks, 256].

        values  float32[blocks, 256]
        scales  int32[blocks]
        place   of the first value in its tensor
        """
        exponents = (scales >> 23).clamp(min=1)
        powers = 127 - exponents
        half = torch.div(powers, 2, rounding_mode="trunc")
        up, more = _power_of_two(half), _power_of_two(powers - half)
        unit = scales.view(torch.float32)
        coefficient = _divided(torch.full_like(unit, self.levels), unit * up * more)
        scaled = values * up[:, None] * more[:, None] * coefficient[:, None]
        scaled = scaled.clamp(-self.levels, self.levels)
        if self.key is None:
            rounded = scaled.round()
        else:
            places = torch.arange(values.numel(), device=values.device).view(values.shape)
            drawn = _mix((places + (place + self.key)) & WORD) >> 24
            rounded = (scaled + (drawn.to(torch.float32) * 2**-8 + 2**-9)).floor()
        used = (scales != 0) & (scales < SPECIAL)
        return torch.where(used[:, None], rounded, 0.0).to(torch.int32)

    def left_out(self, values: torch.Tensor, lanes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """The parts of values that lanes drop, float32[blocks, 256]: the residuals of error feedback."""
        used = (scales != 0) & (scales < SPECIAL)
        rest = values - _divided(lanes.to(torch.float32), self.levels) * scales.view(torch.float32)[:, None]
        return torch.where(used[:, None], rest, 0.0)

    def packed(self, lanes: torch.Tensor) -> torch.Tensor:
        """The lanes of one rank as int32[blocks * 256 * bits / 32], which ranks add."""
        narrow = torch.uint8 if self.bits == 8 else torch.int16  # of 16 bits the upper half wraps, and is the same bits
        return (lanes + self.levels).to(narrow).view(-1).view(torch.int32)

    def widened(self, words: torch.Tensor, scales: torch.Tensor, divisor: float = 1.0) -> torch.Tensor:
        """The values of sums of all ranks' words, each divided by ``divisor``; float32[blocks, 256]."""
        narrow, most = (torch.uint8, 0xFF) if self.bits == 8 else (torch.int16, 0xFFFF)
        sums = (words.view(narrow).to(torch.int32) & most) - self.ranks * self.levels
        values = _divided(sums.view(-1, BLOCK).to(torch.float32), self.levels) * scales.view(torch.float32)[:, None]
        values = torch.where((scales != 0)[:, None], values, 0.0)
        values = torch.where((scales < SPECIAL)[:, None], values, torch.nan)
        return values if divisor == 1 else _divided(values, divisor)


def blocks_of(values: torch.Tensor) -> torch.Tensor:
    """A flat tensor as float32[blocks, 256], with zeros behind its end."""
    whole = values.to(torch.float32)
    if len(whole) % BLOCK:
        whole = torch.nn.functional.pad(whole, (0, -len(whole) % BLOCK))
    return whole.view(-1, BLOCK)


def scales_of(blocks: torch.Tensor) -> torch.Tensor:
    """Each block's own scale, the bits of its largest magnitude: int32[blocks]."""
    return (blocks.view(torch.int32) & MAGNITUDE).amax(1)


def _divided(values: torch.Tensor, by: torch.Tensor | float) -> torch.Tensor:
    """A quotient that is rounded once: of a number of Python's, torch takes the reciprocal on some devices."""
    return torch.div(values, by if isinstance(by, torch.Tensor) else values.new_full((1,), by))


def _power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    return ((exponents + 127) << 23).view(torch.float32)


def _mix(words: torch.Tensor) -> torch.Tensor:
    """``mix`` of native/narrow.c on uint32, which are the lower halves of int64."""
    words = ((words ^ words >> 16) * 0x7FEB352D) & WORD
    words = ((words ^ words >> 15) * 0x846CA68B) & WORD
    return words ^ words >> 16
