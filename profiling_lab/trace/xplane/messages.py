# SPDX-License-Identifier: Apache-2.0
"""The protobuf messages of an XPlane file, as far as they are read: xplane.proto and hlo.proto of XLA.

They are declared here, so that reading a file needs neither the generated code of TensorFlow nor XLA.
"""

from __future__ import annotations

from functools import cache
from typing import Any

# Name, number and type of each field; * means repeated.
_MESSAGES = {
    "XSpace": "planes=1:*XPlane",
    "XPlane": "name=2:string lines=3:*XLine event_metadata=4:*EventEntry stat_metadata=5:*StatEntry "
    "stats=6:*XStat",
    "EventEntry": "key=1:int64 value=2:XEventMetadata",
    "StatEntry": "key=1:int64 value=2:XStatMetadata",
    "XLine": "id=1:int64 name=2:string timestamp_ns=3:int64 events=4:*XEvent",
    "XEvent": "metadata_id=1:int64 offset_ps=2:int64 duration_ps=3:int64 stats=4:*XStat",
    "XStat": "metadata_id=1:int64 uint64_value=3:uint64 int64_value=4:int64 str_value=5:string "
    "bytes_value=6:bytes ref_value=7:uint64",
    "XEventMetadata": "name=2:string stats=5:*XStat",
    "XStatMetadata": "name=2:string",
    "HloProto": "hlo_module=1:HloModule",
    "HloModule": "name=1:string computations=3:*HloComputation id=5:int64 stack_frames=17:StackFrames",
    "HloComputation": "instructions=2:*HloInstruction id=5:int64 root_id=6:int64",
    "HloInstruction": "name=1:string metadata=7:OpMetadata id=35:int64 called_computation_ids=38:*int64",
    "OpMetadata": "op_name=2:string source_file=3:string source_line=4:int32 stack_frame_id=15:int32",
    "StackFrames": "file_names=1:*string function_names=2:*string file_locations=3:*FileLocation "
    "stack_frames=4:*StackFrame",
    "FileLocation": "file_name_id=1:int32 function_name_id=2:int32 line=3:int32",
    "StackFrame": "file_location_id=1:int32 parent_frame_id=2:int32",
}
_PACKAGE = "profiling_lab.xplane"


@cache
def message_class(name: str) -> Any:
    """The class of a message. Raises ImportError if protobuf is not installed."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="xplane.proto", package=_PACKAGE, syntax="proto3")
    for message, fields in _MESSAGES.items():
        declared = file.message_type.add(name=message)
        for text in fields.split():
            name, _, rest = text.partition("=")
            number, _, kind = rest.partition(":")
            label = field_type.LABEL_REPEATED if kind.startswith("*") else field_type.LABEL_OPTIONAL
            field = declared.field.add(name=name, number=int(number), label=label)
            kind = kind.removeprefix("*")
            if kind in _MESSAGES:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = field_type.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
