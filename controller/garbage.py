# SPDX-License-Identifier: Apache-2.0
"""Keeps Python's garbage collector from walking all of a controller's state while its event loop waits.

A controller keeps the entries, the routes and the graph of the fabric from its start to its end.  With 480 switches
these are a million objects, and a full collection takes 0.15 s to walk them.  They are left out of collections for
good.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

kept = False
"""True where this process keeps out what a controller has made, and not only what it was forked with."""


@contextmanager
def kept_out() -> Iterator[None]:
    """Collect nothing meanwhile, and leave what is there at the end out of later collections, until this is entered
    again.  For the process of a controller, around its start."""
    global kept
    was_enabled = gc.isenabled()
    if kept:  # of a controller that has ended, as those of a standby do
        gc.unfreeze()
        gc.collect()
    gc.disable()
    try:
        yield
        gc.freeze()
        kept = True
    finally:
        if was_enabled:
            gc.enable()
