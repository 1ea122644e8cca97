# SPDX-License-Identifier: Apache-2.0
"""Imports one part of a package without running the package's `__init__`, until somebody asks for more of it.

finsy's generated P4Runtime messages are in `finsy.proto`, but to import it Python first runs the `__init__` of finsy,
which imports a whole controller: a third of the time that a switch takes to start, for nothing that it uses.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # importlib.abc imports a dozen modules that nothing else needs
    from importlib.abc import Loader

_loading = threading.RLock()
"""Held while the `__init__` of a deferred package runs."""


class _Deferred(ModuleType):
    """A package whose `__init__` runs when a name of it is asked for that is not there yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # the import system and inspect look for some
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _loading:  # one who asks while another thread runs the `__init__` waits for its end
            if not _run_init(self):
                raise AttributeError(f"partially initialized module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)


_running: set[ModuleType] = set()
"""The packages whose `__init__` is being run by the thread that holds `_loading`."""


def _run_init(module: ModuleType) -> bool:
    """Runs the `__init__` of a deferred package, if that was not done; False where this very thread is at it.

    The caller holds `_loading`. Raises what the `__init__` raises; the next one to ask tries again.
    """
    if module in _running:
        return False
    if type(module) is _Deferred:
        spec = module.__spec__
        assert spec is not None
        assert spec.loader is not None
        _running.add(module)
        try:
            spec.loader.exec_module(module)
            module.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            _running.discard(module)
    return True


class _Imported:
    """Loads what the `__init__` has imported meanwhile: the import system takes it from the module's `__spec__`."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__
        module.__spec__ = ModuleSpec(module.__name__, cast("Loader", self))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


class _Finder:
    """Runs the `__init__` before any other part than `part` is imported: those rely on the order of its imports."""

    def __init__(self, module: _Deferred, part: str) -> None:
        self.module = module
        self.part = part

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.module.__name__}.") or f"{fullname}.".startswith(f"{self.part}."):
            return None
        # The import system calls this with a lock of `fullname` held, for which the `__init__` of another thread may
        # wait: to wait for that thread would be for ever. The import goes on as Python's own then.
        if not _loading.acquire(blocking=False):
            return None
        try:
            if _run_init(self.module):
                with contextlib.suppress(ValueError):  # others removed it
                    sys.meta_path.remove(self)
        finally:
            _loading.release()
        imported = sys.modules.get(fullname)
        return None if imported is None else ModuleSpec(fullname, cast("Loader", _Imported(imported)))


def defer(part: str) -> None:
    """Lets `part` ("finsy.proto") be imported without the `__init__` of its package; does nothing where that is
    imported already, or missing."""
    name = part.partition(".")[0]
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None or not spec.submodule_search_locations:
        return
    module = _Deferred(name)
    module.__spec__, module.__loader__ = spec, spec.loader
    module.__file__, module.__path__ = spec.origin, list(spec.submodule_search_locations)
    module.__package__ = name
    sys.modules[name] = module
    sys.meta_path.insert(0, _Finder(module, part))
