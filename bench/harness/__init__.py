# SPDX-License-Identifier: Apache-2.0
"""What several benchmarks use: processes on hosts, a plain bridge, traffic for a switch, processor time."""
