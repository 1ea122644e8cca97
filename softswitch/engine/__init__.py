# SPDX-License-Identifier: Apache-2.0
"""The switch engine: control-plane operations as plain values, and the ways to a switch that runs them."""
