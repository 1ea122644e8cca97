# SPDX-License-Identifier: Apache-2.0
"""Parameters that servers hold: how they are cut into shards, the optimizers that run there, a step's messages."""
