# SPDX-License-Identifier: Apache-2.0
"""A kernel that makes no namespaces.  Whether this one does depends on the machine."""

from __future__ import annotations

from unittest import mock

from netfold.topo.network import sandbox


def ask_in_vain(uid: int) -> None:
    """Ask it for those of a sandbox, as this user.  Raises SandboxError."""
    with (mock.patch.object(sandbox, "_libc", mock.Mock(unshare=mock.Mock(return_value=-1))),
          mock.patch("ctypes.get_errno", return_value=1), mock.patch("os.getuid", return_value=uid)):
        sandbox._unshare()
