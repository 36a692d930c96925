# SPDX-License-Identifier: Apache-2.0
"""Kernel names that fit a table. Templates of one library share a base name, so the part in
which they differ is kept.
"""

from __future__ import annotations

import re

# The functor of PyTorch's elementwise kernels: `vectorized_elementwise_kernel<4, FillFunctor<float>, ...>`.
_FUNCTOR = re.compile(r"(\w*(?:Functor|functor|KernelImpl|CUDAKernelImpl|Ops?|_kernel_cuda))\b(?=[<(:])")
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|_grid_stride_kernel|multi_tensor_apply_kernel")
# CUTLASS's entry points say nothing; what they run is their first argument, which flash_attn wraps once more.
_ENTRY_POINTS = ("Kernel", "Kernel2", "device_kernel")
_FIRST_TYPE = re.compile(r"\s*<\s*(?:\w+::)*(?:enable_\w+\s*<\s*(?:\w+::)*)?([A-Za-z_]\w*)")


def readable(name: str, short_name: str) -> str:
    """`vectorized_elementwise_kernel<FillFunctor>`, `Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nt_align1>`;
    other names keep their short form.
    """
    arguments = name.partition(short_name)[2]
    if short_name in _ENTRY_POINTS and (first := _FIRST_TYPE.match(arguments)):
        return f"{short_name}<{first[1]}>"
    if not _GENERIC.search(short_name):
        return short_name
    told_apart = [part for part in _FUNCTOR.findall(arguments) if part not in ("ReduceOp", "Op")]
    return f"{short_name}<{told_apart[0]}>" if told_apart else short_name
