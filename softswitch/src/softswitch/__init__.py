# SPDX-License-Identifier: Apache-2.0
"""A P4 switch in software: any v1model program, compiled to native code, behind P4Runtime."""

from softswitch.runtime.deferred import defer
from softswitch.runtime.version import VERSION as __version__

__all__ = ["__version__"]

defer("finsy.proto")  # before any module of this package imports it: finsy's own __init__ is a whole controller
