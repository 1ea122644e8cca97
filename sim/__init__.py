# SPDX-License-Identifier: Apache-2.0
"""The protocol and the planners at scale: simulators and state spaces."""
