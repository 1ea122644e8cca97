# SPDX-License-Identifier: Apache-2.0
"""How cost grows, a figure each: with ranks, sizes, packets in flight and path MTU, fabrics and programs."""
