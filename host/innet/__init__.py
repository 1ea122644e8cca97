# SPDX-License-Identifier: Apache-2.0
"""In-network aggregation (NetReduce) from the host's side: the rail whose sums the switches make, and its native
engine."""
