# SPDX-License-Identifier: Apache-2.0
"""Routes and paths: the live paths between leaves, their names, and which flow takes which one."""
