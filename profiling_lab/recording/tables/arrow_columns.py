# SPDX-License-Identifier: Apache-2.0
"""Arrow columns from numpy arrays and lists, without `pyarrow.array`, which imports pandas where that is
installed: 0.4 s at the end of every recorded process.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

_MOST_BYTES = 2**31 - 1  # Arrow counts those of a text column in 32 bits


def numbers(values: npt.NDArray[Any], is_null: npt.NDArray[np.bool_] | None = None) -> Any:
    """A column of the array's own type that shares its memory."""
    import pyarrow as pa

    if isinstance(values, np.ma.MaskedArray):
        values, is_null = values.data, np.ma.getmaskarray(values)
    data = _bits(values) if values.dtype == bool else np.ascontiguousarray(values)
    known = None if is_null is None or not is_null.any() else pa.py_buffer(_bits(~is_null))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(data)])


def of_list(values: Sequence[Any], kind: Any) -> Any:
    """A column of int64, string or binary; None is NULL."""
    import pyarrow as pa

    is_null = np.array([value is None for value in values], dtype=bool)
    if kind == pa.int64():
        return numbers(np.array([value or 0 for value in values], dtype=np.int64), is_null)
    data = [b"" if v is None else v.encode() if isinstance(v, str) else v for v in values]
    ends = list(accumulate(map(len, data), initial=0))
    if ends[-1] > _MOST_BYTES:
        return pa.array(values, kind)  # which makes chunks
    buffers = _bits(~is_null), np.array(ends, np.int32), b"".join(data)
    return pa.Array.from_buffers(kind, len(data), list(map(pa.py_buffer, buffers)))


def _bits(values: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.packbits(values, bitorder="little")
