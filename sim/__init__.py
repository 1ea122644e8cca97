# SPDX-License-Identifier: Apache-2.0
"""Simulators: the planners at the scale of a data centre, and the slot protocol as a state space."""
