# SPDX-License-Identifier: Apache-2.0
"""The options of each benchmark, a typed structure each, for its command and for programs.  They import little."""
