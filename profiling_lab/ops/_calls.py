# SPDX-License-Identifier: Apache-2.0
"""The two ways to call an op: through torch's dispatcher, and plainly, which saves 5 to 40 us a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops import _load

_load.load()

NAMESPACE = "profiling_lab"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")

Function = Callable[..., Any]

# Looked up once: each dot costs a thirtieth of a microsecond, which small problems feel. Of all that traces,
# only Dynamo is not a dispatch mode.
_HAS_CUDA_KERNELS = _load.has_cuda_kernels()
_are_plain = frozenset((Tensor, torch.nn.Parameter, type(None))).issuperset
_is_compiling = torch.compiler.is_dynamo_compiling
_has_transforms = torch._C._are_functorch_transforms_active
_has_autocast = torch._C._is_any_autocast_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_gradients = torch.is_grad_enabled
_need_gradients = torch._C._any_requires_grad
_forward_ad = torch.autograd.forward_ad
_BelowAutograd = torch._C._AutoDispatchBelowAutograd


def overload(name: str) -> Any:
    """The op as torch's dispatcher knows it; looked up at import, so that a wrong schema shows there."""
    return getattr(getattr(torch.ops, NAMESPACE), name).default


@cache
def kernel(name: str, calls_torch: bool) -> Function:
    """The op's kernel without autograd; a profile shows it by the op's own name.

    The overload "plain" has nothing around it. A kernel that calls torch's ops has a guard around it instead,
    which costs half a microsecond and keeps those ops below autograd too.
    """
    if calls_torch:
        guarded = overload(name)._op

        def below_autograd(*args: Any) -> Any:
            with _BelowAutograd():
                return guarded(*args)

        return below_autograd
    for key in ("AutogradCPU", "AutogradCUDA"):
        LIBRARY.impl(f"{name}.plain", torch.library.fallthrough_kernel, key)
    plain: Function = getattr(getattr(torch.ops, NAMESPACE), name).plain._op  # what its __call__ calls
    return plain


def choice(slug: str, required: int, dispatched: Any, plain: Any, with_gradient: Any) -> Function:
    """A function that is given a call's tensors, `required` of them and others or None, and says how to call:

    `plain` if nothing between Python and the kernel has a say, `with_gradient` if only autograd has. That is,
    tensors of torch's own classes on a device that has kernels, no torch.compile, autocast, functorch
    transform, TorchDispatchMode or forward-mode differentiation. Everything else is checked and `dispatched`.
    """

    def checked(tensors: tuple[Any, ...]) -> Any:
        check(slug, [t for i, t in enumerate(tensors) if i < required or t is not None])
        return dispatched

    def way(*tensors: Tensor | None) -> Any:
        if (
            _is_compiling()
            or _has_transforms()
            or _has_autocast()
            or _dispatch_modes()
            or _forward_ad._current_level >= 0
            or not _are_plain(map(type, tensors))
        ):
            return checked(tensors)
        first = tensors[0]
        if first is None or not ((first.is_cuda and _HAS_CUDA_KERNELS) or first.is_cpu):
            return checked(tensors)
        return with_gradient if _has_gradients() and _need_gradients(*tensors) else plain

    return way


def is_plain_backward(dy: Any) -> bool:
    """Whether the backward of a plain call, given dy, may call the backward op plainly too.

    With gradients wanted here too, the dispatcher's autograd says that there is no second derivative. Shorter
    than `choice`: it runs on the engine's thread, whose core has slept and knows nothing of our code.
    """
    if _has_gradients() or _is_compiling() or _has_transforms() or _dispatch_modes():
        return False
    return type(dy) is Tensor and not dy.is_meta


def plain_apply(name: str, forward: Function, backward: Function) -> Function:
    """apply of an autograd.Function for plain calls, without the Python around forward and backward.

    What is left out serves functorch's transforms, and functions that are written in another way.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(name, (torch.autograd.Function,), members)
    function._backward_cls.apply = backward  # type: ignore[attr-defined]
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def check(slug: str, tensors: list[Any]) -> None:
    """Refuses what the op would answer wrongly or with a riddle: devices without kernels, forward mode."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{slug} expected tensors, got {type(tensor).__name__}")
    device = tensors[0].device.type
    if device == "cuda" and not _HAS_CUDA_KERNELS:
        raise RuntimeError(
            f"{slug} got a CUDA tensor, but this profiling_lab was built without CUDA kernels: nvcc was not "
            "found when it was installed; install it again with nvcc on PATH"
        )
    if device not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{slug} runs on the CPU and on CUDA, but x is on {device}")
    if torch.compiler.is_compiling() or _forward_ad._current_level < 0:
        return
    # Torch offers custom ops no hook for forward mode and would return a tangent of zeros.
    if any(_forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise RuntimeError(
            f"{slug} has no forward-mode derivative (jvp); differentiate its reference in plain torch instead"
        )
