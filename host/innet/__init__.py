# SPDX-License-Identifier: Apache-2.0
"""NetReduce from the host's side: the rail whose sums the switches make, its job, its native engine."""
