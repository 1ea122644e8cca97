# SPDX-License-Identifier: Apache-2.0
"""The switch's P4Runtime server, from the gRPC service to the native process, with one concept in each module.

server        the gRPC service: who may call, which pipeline answers, how errors are reported
arbitration   controllers, roles and election ids: who is primary
config        forwarding pipelines: verify, save, commit, reconcile
program       P4 source text -> executable and p4info, cached
process       the native switch process: start, ports, crash report
schema        p4info and the running program side by side
bytestrings   canonical byte strings (P4Runtime 8.4)
entities      Write and Read: which module serves which entity
tables, profiles, one_shot, arrays, replication, value_sets, digests    the entities
packet_io     packet-in and packet-out metadata
translation   values of @p4runtime_translation, as controllers have them and as packets do
"""
