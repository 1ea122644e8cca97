# SPDX-License-Identifier: Apache-2.0
"""Paths of flows that are not folded: planned, written to switches, and sent to ranks."""
