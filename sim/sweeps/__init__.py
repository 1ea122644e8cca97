# SPDX-License-Identifier: Apache-2.0
"""Sweeps: many points on all cores, whose rows outlive an interruption."""
