# SPDX-License-Identifier: Apache-2.0
"""Bytes that an operator must move to and from the memory of the GPU: inputs once, outputs once.

This is the least that any implementation moves whose data does not lie in a cache already. Views move
nothing. A broadcast input counts once. What is picked by an index counts as far as it is touched. Memory
moves in pieces of 64 bytes, so elements far apart count one piece each.

Some operators need their input twice, because the second pass depends on a sum over all of it: batch
normalisation in training. A convolution's backward is up to three passes, one for each gradient.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from profiling_lab.work.call import Call

GRAIN_BYTES = 64
"""what a GPU with HBM reads from memory at once: two sectors of the L2 cache"""

_METADATA = re.compile(
    r"^aten::(empty|new_empty|_local_scalar_dense|resize_|set_|record_stream|_has_same_storage|is_|sym_|"
    r"_pin_memory|lift|_nested|prim)|^prim::|^(c10d|_c10d_functional)"
)
"""they launch no kernel, or communicate, which is not modelled"""

_SHAPE_ONLY = re.compile(r"^aten::((zeros|ones|full|empty|rand|randn|randint)_like|new_(zeros|ones|full))$")
"""of the first argument only the shape is used"""

_OVERWRITES = re.compile(
    r"^aten::(_foreach_)?(copy_|fill_|zero_|normal_|uniform_|bernoulli_|random_|exponential_|log_normal_|"
    r"cauchy_|geometric_|set_data)$"
)
"""in place, without reading what was there"""

_PICKS = {
    "aten::embedding": ("weight", "indices"),
    "aten::index": ("self", "indices"),
    "aten::_unsafe_index": ("self", "indices"),
    "aten::index_select": ("self", "index"),
    "aten::gather": ("self", "index"),
    "aten::take": ("self", "index"),
}
"""the operator reads at most as much of this argument as it returns"""

_ADDS_AT = re.compile(r"^aten::(_?(unsafe_)?index_put_|_index_put_impl_|index_add_|index_copy_|scatter\w*_)$")
"""in place at an index; with accumulation what was there is read"""

_UNREAD = {
    "aten::nll_loss_backward": {"self"},
    "aten::nll_loss2d_backward": {"self"},
    "aten::max_pool2d_with_indices_backward": {"self"},
    "aten::avg_pool2d_backward": {"self"},
    "aten::avg_pool3d_backward": {"self"},
    "aten::_adaptive_avg_pool2d_backward": {"self"},
    "aten::_adaptive_avg_pool3d_backward": {"self"},
    "aten::native_layer_norm_backward": {"bias"},
    "aten::_scaled_dot_product_flash_attention_backward": {"cum_seq_q", "cum_seq_k"},
}
"""arguments that the operator is given, but whose contents it does not need"""

_ONE_OF_EACH_ROW = {"aten::nll_loss_forward", "aten::nll_loss2d_forward"}
_BATCH_NORM = re.compile(
    r"^aten::(native_batch_norm|cudnn_batch_norm|_native_batch_norm_legit|_batch_norm_with_update|"
    r"batch_norm|miopen_batch_norm)(_backward|_functional)?$"
)
_FUSED_OPTIMIZER = re.compile(r"^aten::_fused_(adam|adamw|sgd|adagrad)_$")


def bytes_of(call: Call) -> tuple[int, int]:
    """Bytes read and written."""
    if _METADATA.match(call.name):
        return 0, 0
    if call.name == "aten::convolution_backward":
        return _convolution_backward(call)
    if _FUSED_OPTIMIZER.match(call.name):
        return _fused_optimizer(call)
    if _ADDS_AT.match(call.name):
        return _at_an_index(call)
    read, written = _reads(call), _writes(call)
    if call.name in _PICKS:
        read = _picked(call)
    elif call.name in _ONE_OF_EACH_ROW:
        target = call.tensor("target")
        rows = min(distinct_bytes(call.tensor("self")), target.numel() * GRAIN_BYTES)
        read = rows + distinct_bytes(target)
    elif _BATCH_NORM.match(call.name):
        training = call.values.get("training", call.values.get("train", True))
        passes = ("grad_output", "grad_out", "input") if call.name.endswith("_backward") else ("input",)
        again = sum(distinct_bytes(t) for a in call.arguments if a.name in passes for t in a.tensors)
        read += again if training else 0
    return read, written


def _reads(call: Call) -> int:
    if _SHAPE_ONLY.match(call.name):
        return 0
    unread = _UNREAD.get(call.name, ())
    overwrites = bool(_OVERWRITES.match(call.name))
    tensors = [
        tensor
        for argument in call.arguments
        if not argument.is_out and argument.name not in unread and not (overwrites and argument.is_written)
        for tensor in argument.tensors
    ]
    return _all_bytes(tensors)


def _writes(call: Call) -> int:
    """What is changed in place, and results with a memory of their own."""
    changed = [t for argument in call.arguments if argument.is_written for t in argument.tensors]
    given = {_storage(t) for argument in call.arguments for t in argument.tensors}
    made = [t for t in call.results if _storage(t) not in given]
    return _all_bytes([*changed, *made])


def is_view(call: Call) -> bool:
    """Whether nothing is written: every result lies in the memory of an argument."""
    return not _writes(call)


def _picked(call: Call) -> int:
    source, index = _PICKS[call.name]
    indices = _all_bytes(t for a in call.arguments if a.name == index for t in a.tensors)
    whole, wanted = call.tensor(source), call.results[0]
    touched = int(wanted.numel() * whole.itemsize)
    if call.name == "aten::embedding":
        rows = _expected_distinct(call.tensor("indices").numel(), whole.shape[0])
        touched = round(rows * whole.shape[-1] * whole.itemsize)
    return min(distinct_bytes(whole), touched) + indices


def _expected_distinct(picks: int, rows: int) -> float:
    """How many different rows that many picks touch, if each is as likely as any other."""
    return rows * (1 - (1 - 1 / rows) ** picks) if rows else 0.0


def _at_an_index(call: Call) -> tuple[int, int]:
    first, *others = call.arguments
    changed = first.tensors[0]
    added = [t for a in others for t in a.tensors]
    values = [t for t in added if t.is_floating_point() or t.dtype == changed.dtype] or added
    touched = min(distinct_bytes(changed), max(t.numel() for t in values) * changed.itemsize)
    adds = "add" in call.name or bool(call.values.get("accumulate")) or call.values.get("reduce") is not None
    return _all_bytes(added) + (touched if adds else 0), touched


def _convolution_backward(call: Call) -> tuple[int, int]:
    gradient, given, weight = (
        distinct_bytes(call.tensor(name)) for name in ("grad_output", "input", "weight")
    )
    of_input, of_weight, of_bias = (bool(wanted) for wanted in call.values["output_mask"])
    read = of_input * (gradient + weight) + of_weight * (gradient + given) + of_bias * gradient
    return read, _all_bytes(call.results)


def _fused_optimizer(call: Call) -> tuple[int, int]:
    unscales = call.values.get("grad_scale") is not None
    read = _all_bytes(t for argument in call.arguments for t in argument.tensors)
    written = _all_bytes(
        t
        for argument in call.arguments
        if argument.is_written and (argument.name != "grads" or unscales)
        for t in argument.tensors
    )
    return read, written


def _all_bytes(tensors: Iterable[Any]) -> int:
    """Of each tensor once, however often it is given."""
    once = {(_storage(t), t.storage_offset(), tuple(t.shape), t.stride()): t for t in tensors}
    return sum(distinct_bytes(t) for t in once.values())


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def distinct_bytes(tensor: Any) -> int:
    """Bytes of the pieces of memory with the tensor's elements; broadcast dimensions count once."""
    item = int(tensor.itemsize)
    if not tensor.numel():
        return 0
    known = sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size > 1 and stride
    )
    run, elements = 1, 1  # elements side by side
    for stride, size in known:
        elements *= size
        if stride == run:
            run *= size
    if run == elements:
        return elements * item
    run_bytes = run * item
    next_bytes = next((stride * item for stride, _ in known if stride > run), run_bytes)
    touched = -(-run_bytes // GRAIN_BYTES) * GRAIN_BYTES
    return int(elements // run * min(touched, next_bytes))
