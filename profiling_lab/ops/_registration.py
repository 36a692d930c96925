# SPDX-License-Identifier: Apache-2.0
"""The declaration of an op: what torch must know about it, once.

Without it the library's op still runs. It then loses gradients, ignores autocast or answers forward-mode
differentiation with zeros, all without an error. Both ways to call an op follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops import flops
from profiling_lab.ops._autograd import apply_of, autograd_kernel, backward_of_backward
from profiling_lab.ops._calls import (
    LIBRARY,
    NAMESPACE,
    Function,
    check,
    choice,
    is_plain_backward,
    kernel,
    overload,
    raise_as_torch_does,
)

Arguments = tuple[Any, ...]
Dims = tuple[int | None, ...]


def define(schema: str, implementation: Function) -> None:
    """Makes an op of a function of plain torch: one node for autograd, torch.compile and profilers."""
    LIBRARY.define(schema)
    LIBRARY.impl(schema[: schema.index("(")], implementation, "CompositeExplicitAutograd")


def cast_all(dtype: torch.dtype, args: Arguments) -> Arguments:
    """The rule of GEMMs: floating-point tensors are cast to autocast's dtype, except float64."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype)
        return value

    return tuple(cast(value) for value in args)


def check_alike(slug: str, **tensors: Tensor) -> None:
    """check_alike of csrc/torch_abi/check.h, in its words, for fakes, which never reach it."""
    (first, x), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != x.device:
            raise ValueError(f"{slug}: {name} is on {tensor.device} but {first} is on {x.device}")
        if tensor.dtype != x.dtype:
            theirs, ours = str(tensor.dtype)[6:], str(x.dtype)[6:]
            raise ValueError(f"{slug}: {name} has dtype {theirs} but {first} has dtype {ours}")


def check_dtype(slug: str, x: Tensor) -> None:
    """element_type of csrc/ops/op.h, likewise."""
    cuda = x.is_cuda
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) and (cuda or x.dtype != torch.float64):
        where = "CUDA" if cuda else "the CPU"
        rest = " or float16" if cuda else ", float16 or float64"
        raise ValueError(
            f"{slug}: dtype {str(x.dtype)[6:]} is not supported on {where}; expected float32, bfloat16{rest}"
        )


def check_constant(slug: str, name: str, value: Tensor) -> None:
    """Refuses a tensor in place of a number if its gradient would be lost."""
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{slug}: {name} is a tensor that requires a gradient, which the op has not; expected a number"
        )


def sums_of(dtype: torch.dtype) -> torch.dtype:
    """What the kernels keep sums in, and what the ops' plain torch computes in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# Rules for vmap


def separate_calls(op: Function, size: int, dims: Dims, args: Arguments) -> tuple[Any, Any]:
    """As many calls as the batch is large, their results stacked."""
    if size == 0:  # one call without data says what the results look like

        def one_of(a: Tensor, dim: int) -> Tensor:
            return a.new_empty([n for d, n in enumerate(a.shape) if d != dim % a.dim()], device="meta")

        def without_data(a: Any) -> Any:
            return a.to("meta") if isinstance(a, Tensor) else a

        results = op(
            *(without_data(a) if d is None else one_of(a, d) for a, d in zip(args, dims, strict=True))
        )
        device = next(a.device for a in args if isinstance(a, Tensor))
        several = (results,) if isinstance(results, Tensor) else results
        empty = tuple(r.new_empty((0, *r.shape), device=device) for r in several)
        return (empty[0], 0) if isinstance(results, Tensor) else (empty, (0,) * len(empty))
    calls = [
        op(*(a if dim is None else a.select(dim, i) for a, dim in zip(args, dims, strict=True)))
        for i in range(size)
    ]
    if isinstance(calls[0], Tensor):
        return torch.stack(calls), 0
    results = tuple(torch.stack(result) for result in zip(*calls, strict=True))
    return results, (0,) * len(results)


def more_rows(out_dims: Any) -> Function:
    """The rule by which a batch of the first tensor alone is just more rows of it."""

    def rule(op: Function, size: int, dims: Dims, args: Arguments) -> tuple[Any, Any]:
        if dims[0] is None or any(dim is not None for dim in dims[1:]):
            return separate_calls(op, size, dims, args)
        return op(args[0].movedim(dims[0], 0), *args[1:]), out_dims

    return rule


def larger_batch(tensors: int) -> Function:
    """The rule by which a batch of the first tensors alone joins their first dimension, a batch already."""

    def rule(op: Function, size: int, dims: Dims, args: Arguments) -> tuple[Any, Any]:
        if any(dim is not None for dim in dims[tensors:]):
            return separate_calls(op, size, dims, args)

        def joined(a: Tensor | None, dim: int | None) -> Tensor | None:
            if a is None:
                return None
            return (a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0)).flatten(0, 1)

        own = [joined(a, dim) for a, dim in zip(args[:tensors], dims[:tensors], strict=True)]
        results = op(*own, *args[tensors:])
        shape = list(args[0].shape)
        if dims[0] is not None:
            del shape[dims[0]]
        batch = shape[0]
        if isinstance(results, Tensor):
            return results.unflatten(0, (size, batch)), 0
        return tuple(result.unflatten(0, (size, batch)) for result in results), (0,) * len(results)

    return rule


# Declarations


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardOp:
    """An op that computes gradients."""

    name: str
    slug: str
    fake: Function
    in_torch: Function
    """in_torch(arguments): the same in plain torch, with derivatives of every kind: second derivatives and
    forward mode are computed by it, with its memory."""
    differentiable: str
    """The arguments, by the schema's names, that it has derivatives for; the others follow from these."""
    vmap: Function = separate_calls
    calls_torch: bool = False
    """name, slug, fake, vmap and calls_torch are as in Op."""

    def __post_init__(self) -> None:
        op, name = overload(self.name), f"{NAMESPACE}::{self.name}"
        setup_context, backward = backward_of_backward(op, self.differentiable, self.in_torch)
        torch.library.register_fake(name, self.fake)
        _register(self.name, setup_context, backward, self.in_torch, self.vmap)


def _register(
    name: str, setup_context: Function, backward: Function, in_torch: Function, vmap: Function
) -> None:
    op = overload(name)
    kernel = autograd_kernel(op, setup_context, backward, in_torch)
    LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)
    flops.register(name)
    torch.library.register_vmap(
        f"{NAMESPACE}::{name}", lambda info, dims, *args: vmap(op, info.batch_size, dims, args)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An op of the library. It is called by op.way(its tensors)(all its arguments)."""

    name: str
    """In the schema, csrc/ops/<op>/<op>.cpp."""
    slug: str
    """In the texts of errors."""
    fake: Function
    """fake(arguments): results without data, for torch.compile, torch.export and meta tensors."""
    saved: str
    """What backward needs, by the schema's names of arguments and results; "result" is one without a name."""
    backward_op: BackwardOp
    in_torch: Function
    """in_torch(arguments): all results in plain torch, for forward-mode differentiation."""
    backward: Callable[..., tuple[Tensor | None, ...]]
    """backward(call, saved, options, grads): a gradient or None for each tensor. `call` calls backward_op;
    options are the arguments behind the tensors; grads is a gradient or None for each result."""
    results: int = 1
    """So many results are for the caller; what follows is for backward, and a plain call may leave it out."""
    cast: Callable[[torch.dtype, Arguments], Arguments] = cast_all
    """cast(autocast's dtype, arguments): the arguments under autocast."""
    vmap: Function = separate_calls
    """vmap(the op, size of the batch, its dimension in each argument or None, arguments): the results, and
    its dimension in each."""
    calls_torch: bool = False
    """Whether the kernel calls ops of torch's."""
    keeping: Op | None = None
    """The op whose first result is this one's, and which keeps more for its backward: it runs in its place
    where a plain call wants gradients."""
    in_parts: Function | None = None
    """in_parts(arguments): the same where tensors behind the first are DTensors of which no rank has all."""
    way: Function = field(init=False)
    """way(its tensors, some maybe None): the function to call, or None where one of them answers for the
    public function. Raises TypeError, ValueError or RuntimeError for tensors that have no kernel."""
    explain: Function = field(init=False)
    """explain(the error of such a call, its tensors): raises one that says it better, if there is one."""

    def __post_init__(self) -> None:
        op, name = overload(self.name), f"{NAMESPACE}::{self.name}"
        setup_context, _, backward = self._autograd(op)
        torch.library.register_fake(name, self.fake)
        _register(self.name, setup_context, backward, self.in_torch, self.vmap)
        for device in ("cpu", "cuda"):
            LIBRARY.impl(self.name, self._autocast(device), f"Autocast{device.upper()}")
        _, forward, backward = (self.keeping or self)._autograd(op)
        tensors = [a for a in op._schema.arguments if "Tensor" in str(a.type)]
        names = tuple(argument.name for argument in tensors)
        required = sum(str(argument.type) == "Tensor" for argument in tensors)
        plain = kernel(self.name, self.calls_torch)
        with_gradient = apply_of(f"profiling_lab_{self.name}", forward, backward)

        def explain(error: Exception, *tensors: Tensor | None) -> None:
            check(self.slug, names, required, tensors)
            raise_as_torch_does(error)

        way = choice(self.slug, names, required, op, plain, with_gradient, self.in_parts)
        object.__setattr__(self, "way", way)
        object.__setattr__(self, "explain", explain)

    def _autograd(self, called: Any) -> tuple[Function, Function, Function]:
        """setup_context of dispatched calls, forward of plain ones (results as of `called`), and backward."""
        op, slope = overload(self.name), self.backward_op
        arguments, returns, results = op._schema.arguments, op._schema.returns, self.results
        names = [a.name for a in arguments] + [r.name or "result" for r in returns]
        at = [names.index(name) for name in self.saved.split()]
        chosen = itemgetter(*at) if len(at) > 1 else itemgetter(slice(at[0], at[0] + 1))  # a tuple always
        tensors = sum("Tensor" in str(argument.type) for argument in arguments)
        no_gradients = (None,) * (len(arguments) - tensors)
        run, is_one, several = kernel(self.name, self.calls_torch), len(returns) == 1, results > 1
        own = 0 if len(called._schema.returns) == 1 else slice(results)
        gradients, dispatched, plain = (
            self.backward,
            overload(slope.name),
            kernel(slope.name, slope.calls_torch),
        )

        def setup_context(ctx: Any, inputs: Arguments, output: Any) -> None:
            outputs = (output,) if is_one else output
            ctx.mark_non_differentiable(*outputs[results:])
            ctx.save_for_backward(*chosen(inputs + outputs))
            ctx.options = inputs[tensors:]
            ctx.set_materialize_grads(not several)

        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs = (run(*inputs),) if is_one else run(*inputs)
            ctx.to_save = chosen(inputs + outputs)  # save_for_backward, which is Python and takes time
            ctx.options = inputs[tensors:]
            if several:
                ctx.set_materialize_grads(False)
            return outputs[own]

        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            call = plain if is_plain_backward(grads[0]) else dispatched
            try:
                return gradients(call, ctx.saved_tensors, ctx.options, grads[:results]) + no_gradients
            except RuntimeError as error:
                raise_as_torch_does(error)
                raise

        return setup_context, forward, backward

    def _autocast(self, device: str) -> Function:
        op, cast = overload(self.name), self.cast

        def autocast(*args: Any) -> Any:
            dtype = torch.get_autocast_dtype(device)
            with torch.autocast(device, enabled=False):
                return op(*cast(dtype, args))

        return autocast
