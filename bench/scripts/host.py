# SPDX-License-Identifier: Apache-2.0
"""How fast one core of a rank quantises, dequantises, makes packets and reads them, compared with memcpy; and what
reproducible sums (``exact``) take of it.

    python bench/scripts/host.py [--mb 100] [--rounds 7] [--path-mtu 4096]

What counts is processor time, the median over rounds of all rows in turn: other load on the machine affects all of
them, by its use of memory and caches alone.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cbuild import cc
from netfold.host import native as sources
from netfold.host.exact import digits
from netfold.host.innet import abi, native, quantise
from netfold.host.innet.core import Core
from netfold.host.native.library import Origin
from netfold.host.operation.coding import PLAIN, Coding, LaneBits, Rounding
from netfold.host.operation.rail import Flat
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree

WORLD = 8


def rows(nbytes: int, path_mtu: int) -> dict[str, Callable[[], object]]:
    """The work of each row of the table; each reads or writes ``nbytes`` of float32."""
    lib = native.library()
    n = nbytes // 4
    x = np.random.default_rng(1).standard_normal(n).astype(np.float32)
    y = np.empty_like(x)
    wire = np.empty(-(-n // 256) * 256, ">i4")
    agreed = quantise.scales(x)
    scratch = np.empty_like(agreed)

    def stream(number: int) -> RankStream:
        return RankStream(peer="10.0.0.2", peer_qp=number, qp=number, source_port=50001, psn=0, slots=1024,
                          predecessor="10.0.0.2", predecessor_port=50001)

    trees = [RankTree(name="t", weight=1.0, agreement=stream(8), data=stream(16))]
    core = Core("10.0.0.2", WORLD, trees, path_mtu=path_mtu)
    engine = Path(sources.__path__[0])
    switch = ctypes.CDLL(str(cc.build(
        [Path(__file__).with_suffix(".c"), engine / "crc.c"], kind="shared", name="bench-host",
        include=[engine, Path(cc.__file__).parent], flags=["-O3"], optional_flags=["-march=native"],
    )))
    run = abi.FoldRunStruct()
    origin = Origin.of("10.0.0.2", 50001, roce.RESULT_TTL)

    def loop_back(source: Flat, out: Flat, number: list[int] = [0], coding: Coding = PLAIN) -> None:  # noqa: B006
        """Make every packet and read it back as its own result: all of a rank's work but the kernel's part, and one
        ICRC more, the switch's."""
        number[0] += 1
        core.start(number[0], source, out, 1.0, 0, coding=coding)
        lib = native.library()
        while not core.finished():
            while lib.nf_fold_send(core.handle, 0, ctypes.byref(run)):
                whole = run.n_pieces == 1
                data = ctypes.cast(run.pieces[0].base, ctypes.c_char_p) if whole else run.joined()
                switch.as_results(data, ctypes.c_size_t(run.length), ctypes.c_size_t(run.segment),
                                  ctypes.byref(run.route))
                lib.nf_fold_receive(core.handle, data, run.length, run.segment, ctypes.byref(origin), False, 0)

    def narrow_all(how: abi.Narrowing, tops: quantise.Scales, lanes: Flat) -> None:
        lib.nf_narrow_all(ctypes.byref(how), x.ctypes.data, None, n, tops.ctypes.data, lanes.ctypes.data)

    def widen_all(how: abi.Narrowing, tops: quantise.Scales, lanes: Flat) -> None:
        lib.nf_widen_all(ctypes.byref(how), lanes.ctypes.data, n, tops.ctypes.data, 1.0, y.ctypes.data)

    def loop_narrow(bits: LaneBits, rounding: Rounding) -> None:
        loop_back(x, y, coding=Coding(bits, rounding))

    bounds = digits.scan("float32", x)
    sums = digits.ExactSum("float32", x, bounds, WORLD)
    exact: dict[str, Callable[[], object]] = {
        "exact: scales": lambda: digits.scan("float32", x),
        "exact: to digits": lambda: digits.ExactSum("float32", x, bounds, WORLD),
        "exact: rounded": lambda: sums.round(y),
    }
    ints = np.zeros(n, np.int32)
    into = np.empty_like(ints)
    narrow: dict[str, Callable[[], None]] = {}
    for bits in (16, 8):
        tops, lanes = quantise.scales(x, bits), np.empty(n * bits // 8, np.uint8)
        for stochastic in (False, True):
            how = abi.Narrowing(bits, quantise.levels(WORLD, bits), stochastic, 7)
            name = f"to {bits} bits" + (", stochastic" if stochastic else "")
            narrow[name] = functools.partial(narrow_all, how, tops, lanes)
        narrow[f"from {bits} bits"] = functools.partial(widen_all, how, tops, lanes)
    return {
        "memcpy": lambda: ctypes.memmove(y.ctypes.data, x.ctypes.data, x.nbytes) and None,
        "exponents": lambda: lib.nf_scales_of(x.ctypes.data, None, n, 32, scratch.ctypes.data),
        "quantise": lambda: lib.nf_quantise_all(x.ctypes.data, n, agreed.ctypes.data, WORLD, wire.ctypes.data),
        "dequantise": lambda: lib.nf_dequantise_all(
            wire.ctypes.data, n, agreed.ctypes.data, WORLD, 1.0, y.ctypes.data
        ),
        **narrow,
        **exact,
        "float32 out and in": lambda: loop_back(x, y),
        "in lanes of 16": lambda: loop_narrow(16, "stochastic"),
        "in lanes of 8": lambda: loop_narrow(8, "stochastic"),
        "int32 out and in": lambda: loop_back(ints, into),
    }


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=100, help="megabytes of float32 a row")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--path-mtu", type=int, default=roce.PATH_MTU, choices=roce.PATH_MTUS)
    options = parser.parse_args()
    nbytes = int(options.mb * 1e6) // 4096 * 4096
    work = rows(nbytes, options.path_mtu)
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(options.rounds + 1):
        for name, call in work.items():
            begin = time.thread_time()
            call()
            if round_:  # the first round touches pages for the first time
                seconds[name].append(time.thread_time() - begin)
    copy = statistics.median(seconds["memcpy"])
    print(f"{'':22} {'ms':>8} {'GB/s':>7} {'of memcpy':>10} {'ns/KiB':>10}")
    for name, times in seconds.items():
        t = statistics.median(times)
        print(f"{name:22} {t * 1e3:8.2f} {nbytes / t / 1e9:7.2f} {copy / t:10.2f} {t * 1e9 / (nbytes / 1024):10.0f}")


if __name__ == "__main__":
    main()
