# SPDX-License-Identifier: Apache-2.0
"""The initial file system of a guest: busybox, the kernel's modules for virtio, 9p and rdma_rxe, and a script.

The script loads the modules, mounts this machine's file system by 9p (read-only), puts the tree of packages over it,
and memory over both (overlayfs), so that a guest may write anywhere and nothing of it reaches this machine.  The folder
that is shared is mounted for reading and writing at the path that it has here.  Then the agent becomes process 1.
"""

from __future__ import annotations

import lzma
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from netfold.topo.processes.failures import FabricFailed
from netfold.topo.rxe.packages import Kernel

MODULES: Final = (
    "virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "virtio_net", "crc32_generic", "rdma_rxe",
    "ib_uverbs", "sch_htb", "sch_ingress", "cls_u32", "act_gact",
)
"""Kernel modules to load; rdma_rxe asks the kernel's crypto for CRC-32 by name, which its dependencies do not show.
The last four shape and count the guest's traffic."""
ROOT_TAG, PACKAGES_TAG, SHARE_TAG = "root", "packages", "share"
"""Names of the 9p devices."""
SIGNED: Final = b"~Module signature appended~\n"
"""The end of a signed module.  Before it are the signature, and twelve bytes of which the last four are its length
(Linux's `struct module_signature`)."""
_SIGNATURE_INFO: Final = 12
_FOLDER, _FILE = 0o040755, 0o100755
_SCRIPT: Final = """#!/bin/busybox sh
export PATH=/bin
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in {modules}; do $b insmod /modules/$module.ko || exec $b reboot -f; done
read9p() {{ $b mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,$3 $1 "$2" || exec $b reboot -f; }}
read9p {root} /root ro,cache=loose
read9p {packages} /packages ro,cache=loose
$b mount -t tmpfs -o size=75% memory /memory
$b mkdir /memory/data /memory/work
$b mount -t overlay -o lowerdir=/packages:/root,upperdir=/memory/data,workdir=/memory/work overlay /new \\
    || exec $b reboot -f
for folder in proc sys dev; do $b mount --move /$folder /new/$folder; done
$b mkdir -p /new/dev/shm /new/dev/pts /new/run
$b mount -t tmpfs -o mode=1777 shm /new/dev/shm
$b mount -t devpts pts /new/dev/pts
$b mount -t tmpfs run /new/run
$b mkdir -p {share_path}
read9p {share} {share_path} rw,cache=none
exec $b switch_root /new {agent}
"""


class ImageError(FabricFailed):
    """A kernel has not what a guest needs; the message says what is missing."""


def build(kernel: Kernel, busybox: Path, share: Path, agent: Sequence[str]) -> bytes:
    """The initial file system as the kernel reads it.  Raises ImageError.

    busybox  statically linked
    share    absolute path of the folder that a guest may write to
    agent    command line of process 1, as seen on this machine
    """
    modules = closure(kernel)
    script = _SCRIPT.format(
        modules=" ".join(modules), root=ROOT_TAG, packages=PACKAGES_TAG, share=SHARE_TAG,
        share_path=shlex.quote(f"/new{share}"), agent=shlex.join(agent),
    )
    folders = ("bin", "modules", "proc", "sys", "dev", "root", "packages", "memory", "new")
    files = {"init": script.encode(), "bin/busybox": busybox.read_bytes()}
    return archive(folders, files | {f"modules/{name}.ko": data for name, data in modules.items()})


def closure(kernel: Kernel, wanted: Iterable[str] = MODULES) -> dict[str, bytes]:
    """The modules that are wanted and those that they need, each after those; what is built in is left out.

    Raises ImageError.
    """
    paths = {_name(path): path for path in kernel.modules.rglob("*.ko*")}
    builtin = {_name(Path(line)) for line in (kernel.modules / "modules.builtin").read_text().split()}
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded or name in builtin:
            return
        if name not in paths:
            raise ImageError(f"kernel {kernel.release} has no module {name}: expected Debian's own kernel (not one for "
                             "clouds), with rdma_rxe and virtio")
        data = unsigned(_decompressed(paths[name]))
        for needed in dependencies(data):
            load(needed)
        loaded[name] = data

    for name in wanted:
        load(name.replace("-", "_"))
    return loaded


def dependencies(module: bytes) -> list[str]:
    """The names of the modules that a module needs, as the linker has written them into its section .modinfo."""
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    return [name.replace("-", "_") for name in found[1].decode().split(",") if name] if found else []


def unsigned(module: bytes) -> bytes:
    """A module without its signature, which an emulated kernel checks for as long as it loads the module.  apt has
    checked the package that has it."""
    if not module.endswith(SIGNED):
        return module
    info = len(module) - len(SIGNED)
    return module[: info - _SIGNATURE_INFO - int.from_bytes(module[info - 4 : info], "big")]


def archive(folders: Iterable[str], files: Mapping[str, bytes]) -> bytes:
    """A cpio archive in the format "newc" (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst)."""
    return b"".join(_entries(folders, files))


def _entries(folders: Iterable[str], files: Mapping[str, bytes]) -> Iterator[bytes]:
    everything = [*((name, _FOLDER, b"") for name in folders), *((name, _FILE, data) for name, data in files.items()),
                  ("TRAILER!!!", 0, b"")]
    for number, (name, mode, data) in enumerate(everything, 1):
        # inode, mode, uid, gid, links, time, size, device and its minor, the same of a device file, name, checksum
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08x" % value for value in fields) + name.encode() + b"\0"
        yield header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4)


def _name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _decompressed(path: Path) -> bytes:
    if path.suffix == ".ko":
        return path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    raise ImageError(f"{path.name}: expected .ko or .ko.xz, got another compression")
