# SPDX-License-Identifier: Apache-2.0
"""The allreduce library, as it runs on training hosts."""
