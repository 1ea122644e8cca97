# SPDX-License-Identifier: Apache-2.0
"""The initial file system of a guest."""

from __future__ import annotations

import lzma
import re
import subprocess
from pathlib import Path

import pytest

from netfold.topo.rxe.image import MODULES, SIGNED, ImageError, archive, build, closure, dependencies
from netfold.topo.rxe.packages import Kernel


def module(*needs: str) -> bytes:
    """What is read of a kernel's module."""
    return b"\x7fELF\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0name=x\0"


def kernel(folder: Path, modules: dict[str, bytes], builtin: str = "") -> Kernel:
    """A kernel with these modules, by path below kernel/."""
    for name, data in modules.items():
        path = folder / "kernel" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "modules.builtin").write_text(builtin)
    return Kernel("6.1-test", folder / "vmlinuz", folder)


def test_modules_come_after_those_that_they_need(tmp_path: Path) -> None:
    """Each once, compressed or not, with - and _ alike; what is built in is left out."""
    found = closure(kernel(tmp_path, {
        "a/top-most.ko": module("middle", "low"), "b/middle.ko.xz": lzma.compress(module("low", "inside")),
        "low.ko": module(),
    }, builtin="kernel/in/inside.ko\n"), ["top_most", "low"])
    assert list(found) == ["low", "middle", "top_most"]
    assert found["middle"] == module("low", "inside")


def test_modules_are_loaded_without_their_signatures(tmp_path: Path) -> None:
    """A signature of any length and what describes it are cut off; a module without one stays as it is."""
    signed = module("low") + b"PKCS#7" * 70 + bytes(8) + (6 * 70).to_bytes(4, "big") + SIGNED
    found = closure(kernel(tmp_path, {"top.ko": signed, "low.ko": module()}), ["top"])
    assert found == {"low": module(), "top": module("low")}


def test_a_module_that_is_missing_is_named(tmp_path: Path) -> None:
    """The kernel for clouds lacks rdma_rxe."""
    with pytest.raises(ImageError, match=r"kernel 6\.1-test has no module rdma_rxe: expected Debian's own kernel"):
        closure(kernel(tmp_path, {"virtio.ko": module()}), ["virtio", "rdma_rxe"])


def test_dependencies_are_read_from_the_module() -> None:
    """None, one or several; a file without the section has none."""
    assert dependencies(module()) == []
    assert dependencies(module("ib-core", "udp_tunnel")) == ["ib_core", "udp_tunnel"]
    assert dependencies(b"no module") == []


def test_a_shared_folder_may_have_blanks_in_its_name(tmp_path: Path) -> None:
    """The guest's script hands its path to mount as one word."""
    (tmp_path / "busybox").touch()
    folder = kernel(tmp_path, {f"{name}.ko": module() for name in MODULES})
    data = build(folder, tmp_path / "busybox", Path("/a b"), ["agent"]).decode()
    (function,) = re.findall(r"^read9p\(\).*", data, re.MULTILINE)
    (call,) = re.findall(r"^read9p share .*", data, re.MULTILINE)
    done = subprocess.run(["sh", "-c", f"b='printf %s|'; {function}\n{call}"], capture_output=True, text=True,
                          check=True)
    assert done.stdout.split("|")[5:] == ["share", "/new/a b", ""]


def test_an_archive_has_the_format_that_the_kernel_reads() -> None:
    """Header fields of eight hexadecimal digits; names and data end at multiples of four; a trailer ends it."""
    data = archive(["bin"], {"init": b"#!x"})
    at, found = 0, {}
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        size, length = fields[6], fields[11]
        name = data[at + 110 : at + 110 + length - 1].decode()
        start = (at + 110 + length + 3) // 4 * 4
        if name == "TRAILER!!!":
            break
        found[name] = fields[1], data[start : start + size]
        at = (start + size + 3) // 4 * 4
    assert found == {"bin": (0o040755, b""), "init": (0o100755, b"#!x")}
    assert len(data) % 4 == 0
