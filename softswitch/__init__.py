# SPDX-License-Identifier: Apache-2.0
"""A P4 switch in software: any v1model program, compiled to native code, behind P4Runtime."""

__version__ = "0.1.0"
