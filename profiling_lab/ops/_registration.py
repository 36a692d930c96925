# SPDX-License-Identifier: Apache-2.0
"""The declaration of an op: what torch must be told about it, once.

Without it the library's op still runs. It then loses gradients of second order, ignores autocast or answers
forward-mode differentiation with zeros, all without an error. Both ways to call an op follow from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from profiling_lab.ops._calls import (
    LIBRARY,
    NAMESPACE,
    Function,
    backward_choice,
    choice,
    kernel,
    overload,
    plain_apply,
)

Arguments = tuple[Any, ...]
Dims = tuple[int | None, ...]


def define(schema: str, implementation: Function) -> None:
    """Makes an op of a function of plain torch: one node for autograd, torch.compile and profilers."""
    LIBRARY.define(schema)
    LIBRARY.impl(schema[: schema.index("(")], implementation, "CompositeExplicitAutograd")


def cast_all(dtype: torch.dtype, args: Arguments) -> Arguments:
    """The rule of matrix products: floating-point tensors are cast to autocast's dtype, except float64."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
            return value.to(dtype)
        return value

    return tuple(cast(value) for value in args)


# Rules for vmap


def separate_calls(op: Function, size: int, dims: Dims, args: Arguments) -> tuple[Any, Any]:
    """As many calls as the batch is large, their results stacked."""
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


def larger_batch(op: Function, size: int, dims: Dims, args: Arguments) -> tuple[Any, Any]:
    """A batch of the first three tensors alone joins their first dimension, which is a batch already."""
    if any(dim is not None for dim in dims[3:]):
        return separate_calls(op, size, dims, args)
    joined = (
        (a.expand(size, *a.shape) if dim is None else a.movedim(dim, 0)).flatten(0, 1)
        for a, dim in zip(args[:3], dims[:3], strict=True)
    )
    results = op(*joined, *args[3:])
    if isinstance(results, Tensor):
        return results.unflatten(0, (size, -1)), 0
    return tuple(result.unflatten(0, (size, -1)) for result in results), (0,) * len(results)


# Declarations


def backward_op(name: str, slug: str, fake: Function, calls_torch: bool = False) -> Function:
    """Declares an op that computes gradients, and returns the function that calls it.

    Its first argument is a result's gradient. name, slug, fake and calls_torch are as in Op. Backward through
    it is an error; otherwise terms of the gradient vanish.
    """

    def setup_context(ctx: Any, inputs: Arguments, output: Any) -> None:
        del ctx, inputs, output

    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"{slug} is not twice differentiable: its backward has no gradient of its own")

    torch.library.register_fake(f"{NAMESPACE}::{name}", fake)
    torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup_context)
    return backward_choice(overload(name), kernel(name, calls_torch))


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
    backward: Callable[..., tuple[Tensor | None, ...]]
    """backward(saved, options, a gradient of each result or None): the gradients of the tensors, from the
    first on as far as there are any. options are the arguments behind the tensors."""
    results: int = 1
    """So many results are for the caller; what follows is for backward, and a plain call may leave it out."""
    cast: Callable[[torch.dtype, Arguments], Arguments] = cast_all
    """cast(autocast's dtype, arguments): the arguments under autocast."""
    vmap: Function = separate_calls
    """vmap(the op, size of the batch, its dimension in each argument or None, arguments): the results, and its
    dimension in each."""
    calls_torch: bool = False
    """Whether the kernel calls ops of torch's."""
    keeping: Op | None = None
    """The op whose first result is this one's, and which keeps more for its backward: it runs in its place
    where a plain call wants gradients."""
    way: Function = field(init=False)
    """way(its tensors, some maybe None): the function to call. Raises TypeError, ValueError or RuntimeError
    for tensors that have no kernel, and for forward-mode differentiation."""

    def __post_init__(self) -> None:
        op, name = overload(self.name), f"{NAMESPACE}::{self.name}"
        arguments = op._schema.arguments
        torch.library.register_fake(name, self.fake)
        torch.library.register_autograd(name, self._backward(), setup_context=self._setup_context())
        torch.library.register_vmap(
            name, lambda info, dims, *args: self.vmap(op, info.batch_size, dims, args)
        )
        for device in ("cpu", "cuda"):
            LIBRARY.impl(self.name, self._autocast(device), f"Autocast{device.upper()}")
        required = sum(str(argument.type) == "Tensor" for argument in arguments)
        way = choice(self.slug, required, op, kernel(self.name, self.calls_torch), self._plain_function())
        object.__setattr__(self, "way", way)

    def _save(self) -> Function:
        """The function save(ctx, arguments, results)."""
        schema = overload(self.name)._schema
        names = [a.name for a in schema.arguments] + [r.name or "result" for r in schema.returns]
        chosen = itemgetter(*(names.index(name) for name in self.saved.split()))
        tensors = sum("Tensor" in str(argument.type) for argument in schema.arguments)
        several = self.results > 1

        def save(ctx: Any, inputs: Arguments, outputs: Arguments) -> None:
            ctx.save_for_backward(*chosen(inputs + outputs))
            ctx.options = inputs[tensors:]
            if several:
                ctx.set_materialize_grads(False)

        return save

    def _setup_context(self) -> Function:
        save, results = self._save(), self.results

        def setup_context(ctx: Any, inputs: Arguments, output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.mark_non_differentiable(*outputs[results:])
            save(ctx, inputs, outputs)

        return setup_context

    def _backward(self) -> Function:
        gradients, results, arity = self.backward, self.results, len(overload(self.name)._schema.arguments)

        def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            found = gradients(ctx.saved_tensors, ctx.options, *grads[:results])
            return found + (None,) * (arity - len(found))

        return backward

    def _autocast(self, device: str) -> Function:
        op, cast = overload(self.name), self.cast

        def autocast(*args: Any) -> Any:
            dtype = torch.get_autocast_dtype(device)
            with torch.autocast(device, enabled=False):
                return op(*cast(dtype, args))

        return autocast

    def _plain_function(self) -> Function:
        source = self.keeping or self
        run, save = kernel(source.name, source.calls_torch), source._save()
        runs_to_one, is_one = (len(overload(op.name)._schema.returns) == 1 for op in (source, self))
        kept = 0 if is_one else slice(self.results)

        def forward(ctx: Any, *inputs: Any) -> Any:
            outputs = (run(*inputs),) if runs_to_one else run(*inputs)
            save(ctx, inputs, outputs)
            return outputs[kept]

        return plain_apply(f"profiling_lab_{self.name}", forward, source._backward())
