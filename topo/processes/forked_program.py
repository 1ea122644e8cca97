# SPDX-License-Identifier: Apache-2.0
"""A Python program that runs in a fork of a process that has imported what it needs: which programs can, and what makes
the fork a process as `python PROGRAM` and `python -m MODULE` start it.

A program runs in a fork where it cannot notice that: it is one of this very interpreter, without options, and with the
same environment while modules are imported (FREE); and nothing beside it takes the name of a module that is imported by
now.  Forks of one process have in common their hash seed and where libraries lie in memory; random numbers differ, as
after any start.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import os
import re
import runpy
import shutil
import signal
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Final, NamedTuple

FREE: Final = re.compile("PATH|NETFOLD_.*|(LOCAL_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|GLOO_SOCKET_IFNAME")
"""Environment variables that no module reads when it is imported: those of a job and its ranks."""
WARMED: Final = ("netfold", "numpy", "scipy", "sklearn", "torch")
"""Packages that take long to import.  A program's own modules are never imported for it, since they may have side
effects."""
TRAINING: Final = "torch._dynamo"
"""Imported by torch at a program's first optimizer or DistributedDataParallel, for 1.5 s of processor time."""
TRAINS: Final = {"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "optim"}
"""Names of torch, of which a program for which TRAINING is imported has one."""
JOINING: Final = ("netfold.host.api.verbs", "netfold.host.api.objects", "grpc._channel", "grpc.experimental")
"""Modules that ranks import when they join, whatever they import first."""
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14
_NO_FILE = (1 << 32) - 1
_SET: Final[dict[str, str]] = {}
"""Environment variables that modules set when they were imported here."""
_KEPT: Final[list[object]] = []
"""Keeps alive the memory that /proc shows of this process."""

_libc = ctypes.CDLL(None, use_errno=True)


class Program(NamedTuple):
    """A program of this interpreter: a script, or a module where ``path`` is None.

    words  the command line as the interpreter has it
    """

    module: str
    path: str | None
    arguments: Sequence[str]
    words: Sequence[str]

    def folder(self) -> str:
        """Where it finds modules first."""
        return os.getcwd() if self.path is None else os.path.dirname(os.path.realpath(self.path))


def of(command: Sequence[str], environment: Mapping[str, str], folder: str) -> Program | None:
    """The program of this interpreter that a command runs in a folder; None where it runs something else, or gives
    options to the interpreter."""
    name, path = command[0], environment.get("PATH")
    found = shutil.which(os.path.join(folder, name) if "/" in name else name, path=path)
    if found is None:
        return None
    if not _is_ours(found):
        if not _is_ours(_interpreter(found, path) or ""):
            return None
        script = name if "/" in name else found
        return Program("__main__", script, command[1:], [sys.executable, script, *command[1:]])
    if command[1:2] == ["-m"] and len(command) > 2:
        return Program(command[2], None, command[3:], command)
    if command[1:] and not command[1].startswith("-") and command[1].endswith(".py"):
        return Program("__main__", command[1], command[2:], command)
    return None


def _is_ours(path: str) -> bool:
    """True if a path leads to this interpreter in the same environment: the link of another environment does not
    count."""
    ours = Path(sys.executable)
    return Path(path).parent == ours.parent and os.path.realpath(path) == os.path.realpath(ours)


def _interpreter(path: str, search: str | None) -> str | None:
    """The interpreter in a script's first line; None where it has none, or may be run and not be read."""
    try:
        with open(path, "rb") as script:
            words = script.readline(256).decode(errors="replace").split()
    except OSError:
        return None
    if not words or not words[0].startswith("#!"):
        return None
    if words[0] == "#!/usr/bin/env" and len(words) == 2:
        return shutil.which(words[1], path=search)
    return words[0][2:] if len(words) == 1 else None


def would_notice(program: Program, environment: Mapping[str, str]) -> bool:
    """True if a program would import other modules, or import them in another way, than this process has."""
    ours = {name: value for name, value in os.environ.items() if name not in _SET or name in environment}
    names = {name for name in environment.keys() | ours.keys() if environment.get(name) != ours.get(name)}
    return any(not FREE.fullmatch(name) for name in names) or _hides(program.folder())


def _hides(folder: str) -> bool:
    """True if a folder has a module with the name of an imported module, but in another file."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return False
    for entry in entries:
        module = sys.modules.get(entry.name.partition(".")[0])
        if module is None or entry.name == "__pycache__":
            continue
        file = os.path.join(entry.path, "__init__.py") if entry.is_dir() else entry.path
        if file.endswith((".py", ".pyc", ".so")) and os.path.exists(file):
            known = getattr(module, "__file__", None)
            if known is None or os.path.realpath(known) != os.path.realpath(file):
                return True
    return False


# ---- what is imported for it ----------------------------------------------------------------------------------------


def import_all(modules: Sequence[str]) -> None:
    """Import modules for all programs, those that are there and can be imported."""
    with _settings_kept():
        for module in modules:
            with contextlib.suppress(Exception):  # a program that needs it tells so itself
                importlib.import_module(module)


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Programs get the environment variables that modules set when this block imports them.

    Meanwhile there is no search for garbage, which takes a tenth of torch's import and finds none."""
    before, searched = dict(os.environ), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()
    _SET.update({name: value for name, value in os.environ.items() if before.get(name) != value})


@_settings_kept()
def warm(program: Program, folder: str) -> None:
    """Import those modules that take long and that a program which is started in a folder imports at its top, or torch
    for it when it trains."""
    with contextlib.suppress(SyntaxError, ValueError):  # which it tells itself
        tree = ast.parse(_source(program, folder))
        for module, names in _imports(tree):
            with contextlib.suppress(Exception):  # likewise
                importlib.__import__(module, fromlist=names)
                if module.partition(".")[0] == "netfold" and not module.startswith("netfold.topo.rxe."):
                    for joining in JOINING:
                        importlib.import_module(joining)
        if "torch" in sys.modules and _trains(tree):
            with contextlib.suppress(Exception):  # likewise
                importlib.import_module(TRAINING)


def _source(program: Program, folder: str) -> str:
    """The text of a program; "" where it is none of the files that it is likely to be."""
    path = program.path and os.path.join(folder, program.path)
    if path is None:
        with contextlib.suppress(Exception):  # the import of a package that it is in: likewise
            if program.module.partition(".")[0] in WARMED:
                spec = importlib.util.find_spec(program.module)
                path = None if spec is None else spec.origin
        path = path or os.path.join(folder, *program.module.split(".")) + ".py"
    with contextlib.suppress(OSError, ValueError):
        return Path(path).read_text()
    return ""


def _imports(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """The modules of WARMED that a program imports whatever happens, and the names that it takes from each."""
    for node in tree.body:
        found: list[tuple[str, list[str]]] = []
        if isinstance(node, ast.Import):
            found = [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [(node.module, [alias.name for alias in node.names])]
        yield from (one for one in found if one[0].partition(".")[0] in WARMED)


def _trains(tree: ast.Module) -> bool:
    """True if a program has names of TRAINS, and none of torch's environment variables, which it may set before."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and str(node.value).startswith("TORCH"):
            return False
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            paths = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            names.update(part for path in paths for part in path.split("."))
    return not names.isdisjoint(TRAINS)


# ---- what makes a fork of it -----------------------------------------------------------------------------------------


def become(program: Program, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Give this process, a fork, what a start by a command in an environment gives: all but the program itself."""
    os.environ.clear()
    os.environ.update(_SET | dict(environment))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    # no two forks draw the same numbers (Python's own generator sees to that; torch starts with the same seed in every
    # process), or know each other's keys
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    importlib.invalidate_caches()
    with open("/proc/self/comm", "wb") as name:
        name.write(os.fsencode(os.path.basename(command[0])))
    _tell_proc(program.words, environment)
    sys.orig_argv = list(program.words)


class _MemoryMap(ctypes.Structure):
    """struct prctl_mm_map of linux/prctl.h."""

    _fields_ = [*((name, ctypes.c_uint64) for name in (
        "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
        "arg_start", "arg_end", "env_start", "env_end", "auxv",
    )), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]


def _tell_proc(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have `ps` and /proc tell this command line and environment, not those of the process that has forked.  A kernel
    that cannot (without CONFIG_CHECKPOINT_RESTORE) goes on telling those."""
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    text = ctypes.create_string_buffer(line + variables)
    _KEPT.append(text)
    at = ctypes.addressof(text)
    stat = [b"", b"", b"", *Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()]  # proc(5) counts from 1
    _libc.sbrk.restype = ctypes.c_void_p
    layout = _MemoryMap(
        *map(int, (*stat[26:28], *stat[45:48])), _libc.sbrk(0), int(stat[28]),
        at, at + len(line), at + len(line), at + len(line) + len(variables), 0, 0, _NO_FILE,
    )
    _libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(layout), ctypes.sizeof(layout), 0)


def run(program: Program) -> None:
    """Run a program as the interpreter does, in a main module of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if not sys.flags.safe_path:
        sys.path.insert(0, program.folder())
    sys.argv = [program.path or "-m", *program.arguments]
    try:
        if program.path is None:
            runpy._run_module_as_main(program.module)  # type: ignore[attr-defined]  # what python -m calls
        else:
            path = os.path.join(os.getcwd(), program.path)
            main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
            exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        if not (isinstance(error, KeyboardInterrupt) and _imports_now(trace)):
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.excepthook = lambda *_: None  # the interpreter only ends the process as it does after an error
        raise


def _imports_now(trace: types.TracebackType | None) -> bool:
    """True if an error came up while a module was imported; such a traceback is useless after Ctrl-C."""
    while trace is not None:
        code, name = trace.tb_frame.f_code, trace.tb_frame.f_globals.get("__name__")
        if code.co_filename.startswith("<frozen importlib") or (code.co_name == "<module>" and name != "__main__"):
            return True
        trace = trace.tb_next
    return False
