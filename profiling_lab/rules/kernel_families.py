# SPDX-License-Identifier: Apache-2.0
"""Kernel families by kernel name: GEMM, attention, elementwise and so on. An estimate without counters.

The patterns are for names in small letters (see View.kernels_named).
"""

from __future__ import annotations

import numpy as np

from profiling_lab.analysis.operators import innermost_is
from profiling_lab.rules.finding import OPERATORS, Abstain, Threshold, percent
from profiling_lab.rules.view import Mask, View
from profiling_lab.trace.operation_classes import OperationClass

MATRIX = (
    r"gemm|nvjet|xmma_(fprop|dgrad|wgrad)|wgrad|dgrad|convolve|conv\w*_?(fprop|forward|backward)|"
    r"[his]\d*cudnn|cudnn_?conv|implicit_gemm|winograd|pointwise_mult_and_sum_complex|fft2d_[rc]2[rc]_|cutlass_\d+_(tensorop|simt|wmma)|\bfmha|flash_(fwd|bwd|attn)"
)
"""matrix multiplications, convolutions and attention: the work for tensor cores"""

CONVOLUTION = (
    r"convolve|conv\w*(fprop|dgrad|wgrad|2d|3d|_engine)|[his]\d*cudnn|cudnn_?conv|winograd|wgrad|dgrad|fprop|"
    r"implicit_gemm|depthwise|pointwise_mult_and_sum_complex|fft2d_[rc]2[rc]_"
)

FUSED_ATTENTION = (
    r"flash_?(fwd|bwd|attn|attention)|(?<![a-z])fmha|cudnn\w*(sdpa|flash)|(?<![a-z])mha_?(fwd|bwd)"
)
"""fused attention of any library"""

TENSOR_CORES = (
    r"[hicdb]?mma_|gmma|[his](884|1688|16816|16832|64\d\d\d)|tensorop|wmma|nvjet|tf32f32|"
    r"_(bf16|f16|e4m3|e5m2|i8)(bf16|f16|e4m3|e5m2|i8)_|flash_(fwd|bwd)|sm(80|86|89|90|100)_xmma\w*_(h|bf16)\w*16"
)

NO_TENSOR_CORES = (
    r"ffma|simt|(?<![a-z])[sdc]gemm(?!.*tensorop)|scudnn|convolve_sgemm|(wgrad_alg0|dgrad)_engine|"
    r"winograd|pointwise_mult_and_sum_complex|fft2d_[rc]2[rc]_"
)

FLOAT32_ATTENTION = r"fmha_cutlass[FB]_f32"
"""of torch: from Ampere on each product is made of three in TF32, before without tensor cores"""

MEMORY_BOUND = (
    r"elementwise|reduce_kernel|softmax|layer_?norm|batch_?norm|group_?norm|rms_?norm|\bbn_(fw|bw)|"
    r"dropout|gelu|relu|activation|pooling|copy_kernel|catarray|transpose|multi_tensor_apply|embedding|index_|"
    r"gather|scatter|gammabeta|triton_(poi|red|per)|nchwtonhwc|nhwctonchw|optensor|scalepackedtensor"
)
"""a few operations per element: memory-bound on every GPU"""

OF_MANY_TENSORS = r"multi_tensor_apply"
"""of a fused or foreach optimizer"""

REARRANGING = (
    r"copy_kernel|catarraybatchedcopy|transpose|permute|nchwtonhwc|nhwctonchw|contiguous|im2col|col2im"
)
"""moves elements without computing"""

CASTING = r"(load|store)withcast|float\d+\w*_copy_kernel|half_copy_kernel"
"""converts elements to another dtype"""

RECURRENT = r"rnncell|(lstm|gru|generic)_elementwise_[fb]p|rnn_bidirectional"
"""of recurrent layers, as cuDNN runs them"""

CONVERTING = r"nchwtonhwc|nhwctonchw"
"""converts between the layouts of a convolution, inside of cuDNN"""

COPYING = r"^aten::(_to_copy|clone|contiguous|cat|stack|pad|_reshape_copy)$"

KNOWN = Threshold(
    "known", "kernels whose name tells their family", 0.5, "of the GPU time, from", "ours: most"
)


def rearranging(view: View) -> tuple[Mask, Mask]:
    """Per operation, whether it only moves elements or casts them; and whether it is a kernel that casts: by
    its name, or because the innermost copying operator of torch around its launch is a cast.
    """
    moves = view.kernels_named(REARRANGING) | view.named("memcpy DtoD")
    casts = view.kernels_named(CASTING)
    inside = innermost_is(view.trace, COPYING, "aten::_to_copy")
    if inside is not None:
        # `_to_copy` with equal dtypes changes the layout; its kernel's name shows that it does not cast.
        casts = np.asarray(casts | (view.kernels & inside & ~view.kernels_named("nocast")))
    return moves, moves & casts


def names_tell_little(view: View) -> Abstain | None:
    """Abstain if most of the GPU time is in kernels whose family is unknown."""
    known = view.kernels_named(MATRIX) | view.kernels_named(MEMORY_BOUND) | view.kernels_named(CONVOLUTION)
    known |= view.classes != OperationClass.COMPUTE
    share = int(view.operations.duration_ns[known].sum()) / view.gpu_ns
    if share >= view[KNOWN]:
        return None
    return Abstain(
        f"kernels with {percent(1 - share)} of the GPU time have names of no known family", OPERATORS
    )
