# SPDX-License-Identifier: Apache-2.0
"""One allreduce over several unlike rails (Nezha): shares follow measured costs, and the failure of a rail is
survived."""
