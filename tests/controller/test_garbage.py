# SPDX-License-Identifier: Apache-2.0
"""What a controller makes when it starts is left out of garbage collections."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from netfold.controller import garbage


class Node:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def frozen_again() -> Iterator[None]:
    """Later collections leave out the imports of the tests' process, which take them seconds otherwise."""
    yield
    gc.freeze()


def test_nothing_is_collected_meanwhile_and_what_is_there_is_not_walked() -> None:
    """A cycle that a collection would free stays, also in a whole collection afterwards; later ones are freed, and it
    is where a next controller starts."""
    gc.enable()
    with garbage.kept_out():
        assert not gc.isenabled()
        kept = weakref.ref(Node())
    assert gc.isenabled()
    later = weakref.ref(Node())
    gc.collect()
    assert kept() is not None
    assert later() is None
    with garbage.kept_out():
        pass
    assert kept() is None, "it was of a controller that has ended"


def test_what_a_process_was_forked_with_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server has frozen it, and no page of it is touched: a first controller neither unfreezes nor collects."""
    def refused() -> None:
        raise AssertionError("the pages that the fork shares are touched")

    monkeypatch.setattr(garbage, "kept", False)
    gc.freeze()
    with monkeypatch.context() as patched:
        patched.setattr(gc, "unfreeze", refused)
        patched.setattr(gc, "collect", refused)
        with garbage.kept_out():
            pass


def test_a_start_that_fails_leaves_the_collector_as_it_was() -> None:
    """It collects again where it did before, and does not where it did not."""
    for was_enabled in (True, False):
        (gc.enable if was_enabled else gc.disable)()
        try:
            with pytest.raises(OSError, match="no"), garbage.kept_out():
                raise OSError("no")
            assert gc.isenabled() == was_enabled
        finally:
            gc.enable()
