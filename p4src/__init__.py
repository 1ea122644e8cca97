# SPDX-License-Identifier: Apache-2.0
"""The P4 program of every switch; no Python."""
