# SPDX-License-Identifier: Apache-2.0
"""The switch engine: control-plane operations as plain values, and the transports to a switch that executes them."""
