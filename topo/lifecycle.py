# SPDX-License-Identifier: Apache-2.0
"""The lifecycle of real processes and interfaces, which must be removed whatever happens in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifecycle(ABC):
    """A context manager that starts and stops something; where starting fails, what did start is stopped."""

    @abstractmethod
    def start(self) -> None:
        """Start everything."""

    @abstractmethod
    def stop(self) -> None:
        """Stop whatever is running; may be called twice."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
