# SPDX-License-Identifier: Apache-2.0
"""The commands `netfold bench NAME`, a module for each."""
