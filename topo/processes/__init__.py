# SPDX-License-Identifier: Apache-2.0
"""Processes of a fabric and of its ranks: forked where that is quicker, watched, and ended."""
