# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: figures are ratios within one run.  `netfold bench ...` and scripts of their own."""
