# SPDX-License-Identifier: Apache-2.0
"""What switches fold with: aggregation trees, the numbers and slots that jobs share, and groups of ranks."""
