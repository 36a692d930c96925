# SPDX-License-Identifier: Apache-2.0
"""Kinds of operators: the model's error differs from kind to kind, and is measured for each."""

from __future__ import annotations

import re
from functools import lru_cache

MATMUL, CONVOLUTION, ATTENTION = "matmul", "convolution", "attention"
OTHER = "other"

# By kind the beginnings of names, without `aten::`; `$` ends a name. The first that matches counts.
_BEGINNINGS: dict[str, str] = {
    MATMUL: "_?(add)?(mm|bmm|baddbmm|addbmm|mv|dot|vdot|addmm|addmv)$ _(addmm_activation|scaled_mm|int_mm) "
    "_grouped_mm heavy_layer",
    CONVOLUTION: r"\w*conv(olution|\dd|_depthwise)",
    ATTENTION: r"\w*attention",
    "recurrent": "_cudnn_rnn _thnn_fused_(lstm|gru) lstm gru",
    "optimizer": "_fused_(adam|adamw|sgd|adagrad) _foreach_ _amp_",
    "batch norm": r"\w*batch_norm",
    "normalisation": r"\w*(layer_norm|group_norm|rms_norm|instance_norm)",
    "softmax": "_?(log_)?softmax",
    "loss": "(nll|mse|l1|smooth_l1|huber|kl_div|cross_entropy)_?(loss)? binary_cross_entropy",
    "sort": "(arg)?sort topk _?unique kthvalue median mode searchsorted bincount histc multinomial nonzero "
    "masked_select",
    "scan": "_?cum(sum|prod|max|min) logcumsumexp",
    "index": "_?(unsafe_)?(index|embedding|gather|scatter|take|put_)",
    "pooling": r"\w*(pool|upsample|interpolate|grid_sampler|im2col|col2im)",
    "reduction": "(sum|mean|var|std|var_mean|std_mean|norm|linalg_vector_norm)$ (max|min|amax|amin)$ "
    "(prod|any|all)$ argmax argmin logsumexp aminmax count_nonzero",
    "random": "native_dropout dropout rand normal_?$ uniform_ bernoulli exponential_ random_",
    "fill": "zero ones full fill arange eye linspace new_(zeros|ones|full) tri[ul]_indices",
    "copy": "copy_ _to_copy clone contiguous cat$ stack constant_pad pad roll flip repeat tri[lu]$ "
    "expand_copy (slice|select|as_strided)_(backward|scatter) _reshape_copy _pack _pad",
}
_PATTERNS = {kind: re.compile(f"({'|'.join(text.split())})") for kind, text in _BEGINNINGS.items()}
_SEEN_BACKWARD = (
    "attention",
    "batch norm",
    "convolution",
    "elementwise",
    "index",
    "loss",
    "normalisation",
    "pooling",
    "recurrent",
    "softmax",
)
BACKWARD = " backward"
_IN_BACKWARD = re.compile("backward|_bwd")
KINDS = (*_BEGINNINGS, "elementwise", "triton", OTHER, *(kind + BACKWARD for kind in _SEEN_BACKWARD))


@lru_cache(maxsize=4096)
def kind_of(name: str) -> str:
    """`matmul` of `aten::addmm`. Operators of aten that have no kind of their own are elementwise.

    An operator of a backward with a kernel of its own has another error: `softmax backward`.
    """
    library, _, short = name.rpartition("::")
    found = next((kind for kind, pattern in _PATTERNS.items() if pattern.match(short)), "")
    kind = found or ("elementwise" if library in ("", "aten") else OTHER)
    return kind + BACKWARD if _IN_BACKWARD.search(short) and kind in _SEEN_BACKWARD else kind
