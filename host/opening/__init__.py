# SPDX-License-Identifier: Apache-2.0
"""What each rail needs before it opens: its plane and port, and the mesh between its ranks."""
