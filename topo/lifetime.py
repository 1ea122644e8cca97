# SPDX-License-Identifier: Apache-2.0
"""What is started and stopped: real processes and interfaces, which must go whatever happens in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """A context manager: ``with`` starts it, and stops it at the end, also what came up of it where starting failed."""

    @abstractmethod
    def start(self) -> None:
        """Bring everything up."""

    @abstractmethod
    def stop(self) -> None:
        """Take down what is up; safe to call twice."""

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
