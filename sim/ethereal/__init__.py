# SPDX-License-Identifier: Apache-2.0
"""Ethereal's comparison of load balancing: its points, verdicts, tables and figures."""
