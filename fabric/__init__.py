# SPDX-License-Identifier: Apache-2.0
"""The fabric as a graph, and the planners: pure functions on it, shared with sim/."""
