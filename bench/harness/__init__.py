# SPDX-License-Identifier: Apache-2.0
"""Common parts of several benchmarks: processes on hosts, a plain bridge, traffic for a switch, processor time."""
