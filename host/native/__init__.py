# SPDX-License-Identifier: Apache-2.0
"""The C engines of the host and what their Python bindings share: building, loading, and sockets."""
