# SPDX-License-Identifier: Apache-2.0
"""Controllers whose switches are in memory, and the ranks and operators that call them."""
