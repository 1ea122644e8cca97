# SPDX-License-Identifier: Apache-2.0
"""Scenes: functions that make an error happen, registered by the error's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

Scene = Callable[[], object]
T = TypeVar("T", bound=Scene)

SCENES: Final[dict[type[BaseException], Scene]] = {}
"""Error -> what makes it happen: raises it, or returns its message where it arrives as text.  A scene runs in an empty
folder of its own, and needs neither root nor namespaces."""


def scene(kind: type[BaseException]) -> Callable[[T], T]:
    """Registers the scene of an error."""

    def register(make: T) -> T:
        assert kind not in SCENES, kind
        SCENES[kind] = make
        return make

    return register


def raise_the(kind: type[Exception], results: Iterable[object]) -> None:
    """Raises the first of several ranks' results that is this error."""
    raise next(result for result in results if type(result) is kind)  # type: ignore[misc]  # it is an exception
