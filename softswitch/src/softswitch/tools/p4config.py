# SPDX-License-Identifier: Apache-2.0
"""The message P4DeviceConfig of PI's p4/tmp/p4config.proto, in which control planes of courses wrap BMv2's JSON.

BMv2's own build installs the module p4.tmp.p4config_pb2 beside P4Runtime's; PyPI's package p4runtime lacks it.
"""

from __future__ import annotations

PACKAGE = """
from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)  # p4.v1 and p4.config come from PyPI's p4runtime
"""
"""The text of the __init__ of p4 in the folder of stand-ins."""

MESSAGES = '''
"""PI's p4/tmp/p4config.proto, described here rather than generated, so that it suits every version of protobuf."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_file = descriptor_pb2.FileDescriptorProto(name="p4/tmp/p4config.proto", package="p4.tmp", syntax="proto3")
_config = _file.message_type.add(name="P4DeviceConfig")
_extras = _config.nested_type.add(name="Extras")
_entry = _extras.nested_type.add(name="KvEntry")
_entry.options.map_entry = True
_field = descriptor_pb2.FieldDescriptorProto
for _message, _name, _number, _type, _label, _of in (
    (_entry, "key", 1, _field.TYPE_STRING, _field.LABEL_OPTIONAL, None),
    (_entry, "value", 2, _field.TYPE_STRING, _field.LABEL_OPTIONAL, None),
    (_extras, "kv", 1, _field.TYPE_MESSAGE, _field.LABEL_REPEATED, ".p4.tmp.P4DeviceConfig.Extras.KvEntry"),
    (_config, "reassign", 1, _field.TYPE_BOOL, _field.LABEL_OPTIONAL, None),
    (_config, "extras", 2, _field.TYPE_MESSAGE, _field.LABEL_OPTIONAL, ".p4.tmp.P4DeviceConfig.Extras"),
    (_config, "device_data", 3, _field.TYPE_BYTES, _field.LABEL_OPTIONAL, None),
):
    _message.field.add(name=_name, number=_number, type=_type, label=_label, type_name=_of)

_pool = descriptor_pool.Default()
_pool.AddSerializedFile(_file.SerializeToString())
_found = _pool.FindMessageTypeByName("p4.tmp.P4DeviceConfig")
if hasattr(message_factory, "GetMessageClass"):
    P4DeviceConfig = message_factory.GetMessageClass(_found)
else:  # protobuf before 4.22
    P4DeviceConfig = message_factory.MessageFactory(_pool).GetPrototype(_found)
'''
"""The text of p4/tmp/p4config_pb2.py."""
