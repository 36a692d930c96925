# SPDX-License-Identifier: Apache-2.0
"""An op's kernel for autograd: the op's own backward, and plain torch for whatever goes beyond it.

torch.library's own kernel for it refuses torch.func's transforms, and drops the tangents of forward-mode
differentiation without an error. Both belong to the op: compiled and exported graphs know nothing else of us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

Function = Callable[..., Any]

_forward_ad = torch.autograd.forward_ad
_unpack_dual = torch._VF._unpack_dual
_has_transforms = torch._C._are_functorch_transforms_active
_single_level_is_allowed = torch._C._functorch.get_single_level_autograd_function_allowed
_allow_single_level = torch._C._functorch.set_single_level_autograd_function_allowed


def apply_of(name: str, forward: Function, backward: Function) -> Function:
    """apply of an autograd.Function without the Python around forward and backward.

    What is left out serves functorch's transforms, and functions that are written in another way.
    """
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function = type(name, (torch.autograd.Function,), members)
    function._backward_cls.apply = backward  # type: ignore[attr-defined]
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def has_tangent(values: tuple[Any, ...]) -> bool:
    """Whether forward-mode differentiation asks for the derivative with respect to one of them.

    torch has one level of it at a time, 0. Compiled code enters that without torch.autograd.forward_ad, whose
    own number for it says nothing here.
    """
    return any(isinstance(v, Tensor) and _unpack_dual(v, level=0)[1] is not None for v in values)


def pullback(function: Function, inputs: tuple[Tensor, ...], cotangents: Any) -> tuple[Tensor, ...]:
    """The gradients of function(*inputs), itself in plain torch, for those of its results.

    torch.func.vjp cannot be entered inside of a kernel that a transform has called.
    """
    create = torch.is_grad_enabled()
    with torch.enable_grad():
        # Not detach, which would drop their tangents.
        own = tuple(x + torch.zeros_like(x, requires_grad=not x.requires_grad) for x in inputs)
        grads = torch.autograd.grad(function(*own), own, cotangents, create_graph=create)
    return cast(tuple[Tensor, ...], grads)


def autograd_kernel(op: Any, setup_context: Function, backward: Function, in_torch: Function) -> Function:
    """The kernel for torch's key Autograd.

    setup_context(ctx, all arguments, results) and backward(ctx, *grads) are those of an autograd.Function.
    in_torch(*arguments) is the op in plain torch, which has derivatives of every kind and order.
    """
    arguments, behind = op._schema.arguments, torch._C._after_autograd_keyset

    def below(keyset: Any, args: tuple[Any, ...]) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & behind, *args)

    def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
        if _has_transforms():  # the transforms outside of this one differentiate what runs in here
            with torch.enable_grad(), _forward_ad._set_fwd_grad_enabled(True):
                result = below(keyset, args)
        else:
            result = below(keyset, args)
        setup_context(ctx, complete(args), result)
        return result

    def complete(args: tuple[Any, ...]) -> tuple[Any, ...]:
        """With the defaults, which the dispatcher leaves out."""
        return args + tuple(argument.default_value for argument in arguments[len(args) :])

    def with_keyset(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *backward(ctx, *grads)

    apply = apply_of(f"profiling_lab_{op._opname}_dispatched", forward, with_keyset)

    def kernel(keyset: Any, *args: Any) -> Any:
        if has_tangent(args):
            return in_torch(*complete(args))
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*args)):
            return below(keyset, args)
        if torch._C._is_tracing():  # torch.jit.trace has noted the op; it would note our Python, too
            trace = torch._C._get_tracing_state()
            torch._C._set_tracing_state(None)
            try:
                return apply(keyset, *args)
            finally:
                torch._C._set_tracing_state(trace)
        if not _has_transforms():
            return apply(keyset, *args)
        # Here we are inside of one transform's level; torch asks each autograd.Function to say that it knows.
        before = _single_level_is_allowed()
        _allow_single_level(True)
        try:
            return apply(keyset, *args)
        finally:
            _allow_single_level(before)

    return kernel


def backward_of_backward(op: Any, differentiable: str, in_torch: Function) -> tuple[Function, Function]:
    """setup_context and backward of an op that computes gradients.

    differentiable: the arguments, by the schema's names, that a derivative is taken for; the other tensors
    follow from these. The memory is that of in_torch(*arguments) and its derivatives.
    """
    arguments = op._schema.arguments
    tensors = [i for i, argument in enumerate(arguments) if "Tensor" in str(argument.type)]
    wanted = [i for i, argument in enumerate(arguments) if argument.name in differentiable.split()]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        ctx.save_for_backward(*(inputs[i] for i in tensors))
        ctx.options = [None if i in tensors else value for i, value in enumerate(inputs)]

    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        values = list(ctx.options)
        for i, tensor in zip(tensors, ctx.saved_tensors, strict=True):
            values[i] = tensor
        given = [i for i in wanted if values[i] is not None]

        def of_given(*those: Tensor) -> Any:
            for i, tensor in zip(given, those, strict=True):
                values[i] = tensor
            return in_torch(*values)

        _, pull = torch.func.vjp(of_given, *(values[i] for i in given))
        found = dict(zip(given, pull(grads), strict=True))
        return tuple(found.get(i) for i in range(len(arguments)))

    return setup_context, backward
