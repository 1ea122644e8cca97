# SPDX-License-Identifier: Apache-2.0
"""Programs that are one rank of the benchmark of the same name in commands/."""
