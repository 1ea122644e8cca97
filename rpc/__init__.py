# SPDX-License-Identifier: Apache-2.0
"""gRPC with typed messages in JSON: services, calls, and channels with or without TLS."""
