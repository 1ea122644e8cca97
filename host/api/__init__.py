# SPDX-License-Identifier: Apache-2.0
"""The public interface: communicators, groups, asynchronous work, Horovod's verbs and MPI's buffers."""
