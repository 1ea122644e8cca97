# SPDX-License-Identifier: Apache-2.0
"""Imports a package without running its `__init__`, until somebody asks for what that defines.

finsy's generated P4Runtime messages are in `finsy.proto`, but to import it Python first runs the `__init__` of finsy,
which imports a whole controller: a third of the time that a switch takes to start, for nothing that it uses.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

_loading = threading.RLock()


class _Deferred(ModuleType):
    """A package whose submodules can be imported, and whose own names appear when the first one is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # the import system and inspect look for some
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _loading:
            if type(self) is _Deferred:
                # first, since what it imports may ask it for names, as in any import
                self.__class__ = ModuleType  # type: ignore[assignment]
                spec = self.__spec__
                assert spec is not None
                assert spec.loader is not None
                try:
                    spec.loader.exec_module(self)
                except BaseException:
                    self.__class__ = _Deferred
                    raise
        return getattr(self, name)


def defer(name: str) -> None:
    """Defers the `__init__` of the top-level package `name`; does nothing where it is imported already, or missing."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or not spec.submodule_search_locations:
        return
    module = _Deferred(name)
    module.__spec__, module.__loader__ = spec, spec.loader
    module.__file__, module.__path__ = spec.origin, list(spec.submodule_search_locations)
    module.__package__ = name
    sys.modules[name] = module
