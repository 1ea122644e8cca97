# SPDX-License-Identifier: Apache-2.0
"""Engines of the simulators: packets, max-min fair rates and folds on a topology, by the product's planners."""
