# SPDX-License-Identifier: Apache-2.0
"""The plans by which switches fold: aggregation trees, the numbers and slots that jobs share, and groups of ranks."""
