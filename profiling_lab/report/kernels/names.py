# SPDX-License-Identifier: Apache-2.0
"""Kernel names that fit a table. Templates of one library share a base name, so the part in
which they differ is kept.
"""

from __future__ import annotations

import re

# The functor of PyTorch's elementwise kernels: `vectorized_elementwise_kernel<4, FillFunctor<float>, ...>`.
_FUNCTOR = re.compile(r"(\w*(?:Functor|functor|KernelImpl|CUDAKernelImpl|Ops?|_kernel_cuda))\b(?=[<(:])")
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|_grid_stride_kernel|multi_tensor_apply_kernel")


def readable(name: str, short_name: str) -> str:
    """`vectorized_elementwise_kernel<FillFunctor>`; other names keep their short form."""
    if not _GENERIC.search(short_name):
        return short_name
    arguments = name.partition(short_name)[2]
    told_apart = [part for part in _FUNCTOR.findall(arguments) if part not in ("ReduceOp", "Op")]
    return f"{short_name}<{told_apart[0]}>" if told_apart else short_name
