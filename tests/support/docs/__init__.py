# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/: their commands, examples and figures."""
