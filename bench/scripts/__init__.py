# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of one part each: `make bench` runs them all."""
