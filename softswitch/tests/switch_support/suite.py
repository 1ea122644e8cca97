# SPDX-License-Identifier: Apache-2.0
"""Settings of a whole suite, as a plugin of pytest that a conftest.py imports: hypothesis, what a test needs of the
machine, and what a failed test tells of the processes that it started."""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from switch_support import fuzz, needs

# Nothing about time: the suite shares two cores with native compilers, and machines stand still.  The same examples in
# each run: a change is not judged by an input that was drawn for the first time.  Whoever looks for such inputs types
# `--hypothesis-profile=explore`; a failing one prints how to repeat it, and becomes an @example.
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("suite", settings.get_profile("explore"), derandomize=True)
settings.load_profile("suite")

LOG_BYTES: Final = 4000
"""Bytes that are shown of the end of each log."""
LOGS: Final = 16
"""Most logs that are shown, the latest written first: as many as one fabric has."""
BOUND: Final = 60.0
"""Seconds that a coroutine may take; nothing in one should take them."""
LAST_WAITING: Final = 0.75
"""The part of the files among which those with tests in namespaces are spread."""
HIDDEN: Final = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
"""The folder behind which `--without` hides programs and modules."""


@pytest.fixture
def fuzzing(request: pytest.FixtureRequest) -> fuzz.Fuzz:
    """How long a fuzzer goes on: some seconds from a fixed seed, or as the command line says."""
    seconds, seed = request.config.getoption("--fuzz-seconds"), request.config.getoption("--fuzz-seed")
    if seconds:
        request.node.add_marker(pytest.mark.timeout(seconds + 300))
    return fuzz.Fuzz(seconds, seed if seed is not None else time.time_ns() if seconds else fuzz.SEED,
                     long=request.config.getoption("--long"))


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many times something is tried: so many, and ten times as many with `--long`."""
    return lambda few: few * (fuzz.LONG if request.config.getoption("--long") else 1)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own, bounded."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    fixtures = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def bounded() -> None:
        async with asyncio.timeout(BOUND):
            await pyfuncitem.obj(**fixtures)

    asyncio.run(bounded())
    return True


# ---- what a test needs -----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--without torch --without bmv2`: as on a machine that lacks them."""
    parser.addoption("--without", action="append", default=[], metavar="NAME", choices=list(needs.NEEDS),
                     help="hide this from the tests and the processes that they start: torch, bmv2, ...")
    parser.addoption("--fuzz-seconds", type=float, default=0.0, metavar="SECONDS",
                     help="let each fuzzer go on for so long, from a new seed, or that of --fuzz-seed")
    parser.addoption("--long", action="store_true",
                     help="give fuzzers ten times as many inputs, and run tests marked `long`: a change need not wait")
    parser.addoption("--fuzz-seed", type=int, default=None, metavar="NUMBER", help="repeat what a fuzzer has found")


def pytest_configure(config: pytest.Config) -> None:
    """Hide what is to be hidden, before any test is imported."""
    for name, need in needs.NEEDS.items():
        config.addinivalue_line("markers", f"{name}: needs {name} ({need.how})")
    for name in config.getoption("--without"):
        folder = config.stash.setdefault(HIDDEN, tempfile.TemporaryDirectory(prefix="without-"))
        place = Path(folder.name) / name
        place.mkdir()
        needs.hide(name, place)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what hid what `--without` names."""
    if HIDDEN in config.stash:
        config.stash[HIDDEN].cleanup()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a test needs can be selected by its name, as in `-m bmv2`.  Those marked `long` are skipped without
    `--long`.
    """
    place = _places(items)
    items.sort(key=lambda item: place[item.path])
    for item in items:
        for name in needed(item):
            item.add_marker(name)
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="runs with --long (make test-long)"))


def _places(items: list[pytest.Item]) -> dict[Path, float]:
    """A number for each file, by which they are sorted: tests in namespaces, which mostly wait, go beside those that
    compute, where several workers share the tests (`make test`).

    The last quarter has none of them, since they are the longest.  Files with a test that is to be `alone` come last:
    by then, nothing computes beside it.
    """
    alone = {item.path for item in items if item.get_closest_marker("alone")}
    waiting = dict.fromkeys(item.path for item in items if item.get_closest_marker("netns") and item.path not in alone)
    computing = dict.fromkeys(item.path for item in items if item.path not in waiting and item.path not in alone)
    return {
        **dict.fromkeys(alone, 1.0),
        **{path: number / len(computing) for number, path in enumerate(computing)},
        **{path: LAST_WAITING * number / len(waiting) for number, path in enumerate(waiting)},
    }


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where several workers share the tests, one that is marked `alone` has the machine without other workers' tests in
    namespaces; all others in namespaces may run side by side.  The wait is nobody's time: it is over before the test's
    timeout and durations begin."""
    if not hasattr(item.config, "workerinput") or item.get_closest_marker("netns") is None:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with Path(__file__).open("rb") as queue, Path(fuzz.__file__).open("rb") as machine:
        # who waits for the machine holds the queue, so that nobody who comes later passes by
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(queue, fcntl.LOCK_UN)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what is missing, before its fixtures start anything."""
    needs.require(*needed(item))


def needed(item: pytest.Item) -> list[str]:
    """The names in its markers `needs`."""
    return [name for mark in item.iter_markers("needs") for name in mark.args]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the skipped tests, by the missing need."""
    tests, files, others = Counter[str](), Counter[str](), Counter[str]()
    seen = {report.nodeid: report for report in terminalreporter.stats.get("skipped", [])}  # every worker collects
    for report in seen.values():
        name = needs.of_reason(_reason(report))
        if name is None:
            others[_reason(report)] += 1
        else:
            (files if isinstance(report, pytest.CollectReport) else tests)[name] += 1
    if not (tests or files or others):
        return
    terminalreporter.section("skipped, by what is missing")
    for name in needs.NEEDS:
        if name in tests or name in files:
            counts = ((tests[name], "tests"), (files[name], "whole files"))
            many = " and ".join(f"{count} {what}" for count, what in counts if count)
            terminalreporter.write_line(f"{many} without {name}: {needs.missing(name)}; {needs.NEEDS[name].how}")
    for reason, count in others.items():
        terminalreporter.write_line(f"{count} for another reason: {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where = report.longrepr
    return (where[2] if isinstance(where, tuple) else str(where)).removeprefix("Skipped: ")


# ---- what a failed test tells ----------------------------------------------------------------------------------------


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the ends of the logs in its temporary folder: of controllers, switches and ranks."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        report.sections += [(f"end of {path.relative_to(folder)}", _end(path)) for path in _logs(folder)]


def _logs(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*.log") if path.is_file() and path.stat().st_size]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:LOGS]


def _end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES))
        return file.read().decode(errors="replace")
