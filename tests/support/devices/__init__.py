# SPDX-License-Identifier: Apache-2.0
"""An accelerator in Python, whose work is late."""
