# SPDX-License-Identifier: Apache-2.0
"""What every op must tell torch, and what torch gets silently wrong where an op does not.

An op without these registrations still runs. It then loses gradients of second order, ignores autocast, or
answers forward-mode differentiation with zeros, all without an error. So each op says what it does, or
refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from profiling_lab.ops import _load

_load.load()

NAMESPACE = "profiling_lab"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_HAS_CUDA_KERNELS = _load.has_cuda_kernels()

CastRule = Callable[[torch.dtype, tuple[Any, ...]], tuple[Any, ...]]


def overload(name: str) -> Any:
    """The op as torch's dispatcher knows it; looked up at import, so that a wrong schema shows there."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def plain_overload(name: str) -> Callable[..., Any]:
    """The op's kernel with nothing around it, for calls of which `route` says that they are plain.

    Autograd is passed by without a question: where gradients are wanted, call it in an autograd.Function. A
    profile shows it by the op's own name.
    """
    for key in ("AutogradCPU", "AutogradCUDA"):
        _LIBRARY.impl(f"{name}.plain", torch.library.fallthrough_kernel, key)
    op = getattr(getattr(torch.ops, NAMESPACE), name).plain
    return cast(Callable[..., Any], op._op)  # what the op's __call__ calls


def define(schema: str, implementation: Callable[..., Any]) -> None:
    """Makes an op of a function of plain torch: one node for autograd, torch.compile and profilers."""
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema[: schema.index("(")], implementation, "CompositeExplicitAutograd")


def refuse_double_backward(name: str, slug: str) -> None:
    """Makes backward through the backward op `name` an error; otherwise terms of the gradient vanish."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del ctx, inputs, output

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"{slug} is not twice differentiable: its backward has no gradient of its own")

    torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup_context)


def cast_all(dtype: torch.dtype, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The rule of matrix products: floating-point tensors are cast to autocast's dtype, except float64."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype)
        return value

    return tuple(cast(value) for value in args)


def register_autocast(name: str, rule: CastRule) -> None:
    """Under autocast, `name` gets `rule(autocast dtype, arguments)`, on CUDA and on the CPU."""
    op = overload(name)

    def kernel_for(device_type: str) -> Callable[..., Any]:
        def kernel(*args: Any) -> Any:
            dtype = torch.get_autocast_dtype(device_type)
            with torch.autocast(device_type, enabled=False):
                return op(*rule(dtype, args))

        return kernel

    _LIBRARY.impl(name, kernel_for("cuda"), "AutocastCUDA")
    _LIBRARY.impl(name, kernel_for("cpu"), "AutocastCPU")


# How a call is made. Plain calls may pass the dispatcher's layers by, which saves 5 to 40 us.
DISPATCHED, PLAIN, PLAIN_WITH_GRADIENT = range(3)


def route(*tensors: torch.Tensor | None) -> int:
    """PLAIN if nothing between Python and the kernel has a say, PLAIN_WITH_GRADIENT if only autograd has.

    That is, tensors of torch's own classes on a device that has kernels, no torch.compile, autocast,
    functorch transform, TorchDispatchMode or forward-mode differentiation.
    """
    if _is_compiling() or _has_transforms() or _has_autocast() or _dispatch_modes():
        return DISPATCHED
    if getattr(_forward_ad, "_current_level", -1) >= 0:
        return DISPATCHED
    wanted = PLAIN
    for tensor in tensors:
        if tensor is None:
            continue
        if type(tensor) not in _PLAIN_CLASSES:
            return DISPATCHED
        if wanted == PLAIN and tensor.requires_grad:
            wanted = PLAIN_WITH_GRADIENT
    first = tensors[0]
    if first is None or not ((first.is_cuda and _HAS_CUDA_KERNELS) or first.is_cpu):
        return DISPATCHED
    return wanted if wanted == PLAIN or _has_gradients() else PLAIN


# Looked up once: each dot costs a thirtieth of a microsecond, which small problems feel. Of all that traces,
# only Dynamo is not a dispatch mode.
_PLAIN_CLASSES = frozenset((torch.Tensor, torch.nn.Parameter))
_is_compiling = torch.compiler.is_dynamo_compiling
_has_transforms = torch._C._are_functorch_transforms_active
_has_autocast = torch._C._is_any_autocast_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_gradients = torch.is_grad_enabled
_forward_ad = torch.autograd.forward_ad
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """function.apply for plain calls, forward and backward without the Python around the function's own.

    What is left out serves functorch's transforms, and functions that are written in another way.
    """
    function._backward_cls.apply = function.backward
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def below_autograd(op: Any, *args: Any) -> Any:
    """op(*args) without its autograd kernel, which is Python and costs more than the launch.

    For kernels that call torch's ops, which then go below autograd too; for others plain_overload costs less.
    """
    with _BelowAutograd():
        return op._op(*args)


def is_plain_backward(dy: torch.Tensor) -> bool:
    """True if the backward of a plain call may call its op directly.

    With gradients wanted here too, the dispatcher's autograd says that there is no second derivative. Shorter
    than `route`: it runs on the engine's thread, whose core has slept and knows nothing of our code.
    """
    if _has_gradients() or _is_compiling() or _has_transforms() or _dispatch_modes():
        return False
    return type(dy) is torch.Tensor and not dy.is_meta


def check_call(slug: str, *tensors: torch.Tensor) -> None:
    """Refuses what the op would answer wrongly or with a riddle: devices without kernels, forward-mode AD."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{slug} expected tensors, got {type(tensor).__name__}")
    device = tensors[0].device.type
    if device == "cuda" and not _HAS_CUDA_KERNELS:
        raise RuntimeError(
            f"{slug} got a CUDA tensor, but this profiling_lab was built without CUDA kernels: nvcc was not "
            "found when it was installed; install it again with nvcc on PATH"
        )
    if device not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{slug} runs on the CPU and on CUDA, but x is on {device}")
    if not torch.compiler.is_compiling():
        _refuse_forward_mode(slug, tensors)


def _refuse_forward_mode(slug: str, tensors: tuple[torch.Tensor, ...]) -> None:
    # Torch offers custom ops no hook for forward mode and would return a tangent of zeros.
    forward_ad = torch.autograd.forward_ad
    if getattr(forward_ad, "_current_level", -1) < 0:
        return
    if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise RuntimeError(
            f"{slug} has no forward-mode derivative (jvp); differentiate its reference in plain torch instead"
        )
