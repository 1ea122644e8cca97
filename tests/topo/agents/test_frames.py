# SPDX-License-Identifier: Apache-2.0
"""Messages between a guest and this machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.topo.agents.frames import HEADER, MOST, BadFrame, Kind, Splitter, pack

FRAMES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(Kind), st.binary(max_size=200)), max_size=8)


@given(FRAMES, st.integers(1, 50))
def test_frames_are_found_wherever_a_stream_is_cut(frames: list[tuple[int, Kind, bytes]], step: int) -> None:
    """What was packed comes out once each, in order, whatever pieces the line hands over."""
    stream = b"".join(pack(*frame) for frame in frames)
    splitter = Splitter()
    found = [frame for at in range(0, len(stream), step) for frame in splitter.feed(stream[at : at + step])]
    assert found == frames


def test_a_frame_that_is_too_long_is_refused_before_it_is_kept() -> None:
    """The length alone is enough."""
    with pytest.raises(BadFrame, match=f"OUTPUT on channel 0x5: expected at most {MOST} bytes, got {MOST + 1}"):
        list(Splitter().feed(HEADER.pack(5, Kind.OUTPUT, MOST + 1)))


def test_an_unknown_kind_is_refused() -> None:
    """The other side speaks something else."""
    with pytest.raises(BadFrame, match="unknown kind 99 on channel 0x1"):
        list(Splitter().feed(HEADER.pack(1, 99, 0)))
