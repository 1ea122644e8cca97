# SPDX-License-Identifier: Apache-2.0
"""Programs that run at once are given different loopback addresses."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from netfold.testing import subnet, subnets

PRINTS = "from netfold.testing import subnet; print(subnet(), flush=True); input()"
FORKS = """
import os
from netfold.testing import subnet
print(subnet(), flush=True)
if (child := os.fork()) == 0:
    print(subnet(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(subnet())
"""


def range_of(net: str) -> str:
    """The 127.x of a subnet."""
    return ".".join(net.split(".")[:2])


def test_no_subnet_is_given_twice_within_256_calls() -> None:
    """Whichever threads ask, each gets others, of which every address is loopback."""
    with ThreadPoolExecutor(8) as pool:
        given = list(pool.map(lambda _: subnet(), range(256)))
    assert len(set(given)) == 256
    assert len({range_of(net) for net in given}) == 1
    assert all(ipaddress.ip_address(f"{net}.{host}").is_loopback for net in given for host in (1, 254))


def test_processes_that_run_at_once_have_different_ranges() -> None:
    """No address is given to two of several processes that all hold a range."""
    asking = [subprocess.Popen([sys.executable, "-c", PRINTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
              for _ in range(3)]
    try:
        given = [process.stdout.readline().strip() for process in asking if process.stdout]
        ranges = [range_of(net) for net in [*given, subnet()]]
        assert len(set(ranges)) == 4, ranges
    finally:
        for process in asking:
            process.communicate("\n", timeout=30)


def test_the_range_of_a_process_that_ended_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range is refused while a process has it, killed or not, and given out once that is gone."""
    only = 1 + os.getpid() % 63  # below those that any other process claims
    monkeypatch.setattr(subnets, "FIRST", only)
    monkeypatch.setattr(subnets, "LAST", only)
    claims = f"from netfold.testing import subnets; subnets.FIRST = subnets.LAST = {only}; {PRINTS}"
    with subprocess.Popen(
        [sys.executable, "-c", claims], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            assert range_of(process.stdout.readline()) == f"127.{only}"
            with pytest.raises(OSError, match="no loopback addresses are left"):
                subnets.Range()
        finally:
            process.kill()
    again = subnets.Range()
    assert range_of(again.subnet()) == f"127.{only}"
    again.release()


def test_a_forked_process_leaves_its_parents_addresses_alone() -> None:
    """A fork is given addresses in another range, and its parent goes on in its own."""
    said = subprocess.run([sys.executable, "-c", FORKS], check=True, capture_output=True, text=True, timeout=30).stdout
    before, theirs, after = map(range_of, said.split())
    assert theirs != before == after


def test_where_no_addresses_are_left_an_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that finds all ranges taken hears of it, with what to do."""
    taken = int(subnet().split(".")[1])
    monkeypatch.setattr(subnets, "FIRST", taken)
    monkeypatch.setattr(subnets, "LAST", taken)
    with pytest.raises(OSError, match=rf"no loopback addresses are left.*127\.{taken}\.0\.0/16; end some"):
        subnets.Range()
