# SPDX-License-Identifier: Apache-2.0
"""XPlane files (`.xplane.pb`) of XLA's profiler, which JAX and PyTorch/XLA write: protobuf."""

import re

# A file is a message XSpace. Its first field is a plane, whose first fields are an id, unless 0, and a name.
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_NAME = rb"(?:/host:|/device:|Task Environment|#Chip|/custom:)"
_FIRST_PLANE = re.compile(rb"\n" + _VARINT + rb"(?:\x08" + _VARINT + rb")?\x12" + _VARINT + _NAME, re.DOTALL)


def begins_xspace(head: bytes) -> bool:
    """Whether a file that begins like this is an XPlane file."""
    return _FIRST_PLANE.match(head) is not None
