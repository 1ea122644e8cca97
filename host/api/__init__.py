# SPDX-License-Identifier: Apache-2.0
"""What users call: communicators, groups, asynchronous work, Horovod's verbs and MPI's buffers."""
