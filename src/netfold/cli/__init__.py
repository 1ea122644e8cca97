# SPDX-License-Identifier: Apache-2.0
"""The command `netfold`: a module for each group of commands."""
