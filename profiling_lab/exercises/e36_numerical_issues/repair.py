# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired attention.py: results and gradients against a float64 reference, in float32 alone.

The bound is a multiple of the error that a stable float32 program has on the same inputs, so it holds on
every machine. Inputs come from new seeds. float64 hides the faults and is slow on a GPU: it is refused by
what the operations return, not by a time.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed
from profiling_lab.exercises.outside_torch import Leaving
from profiling_lab.exercises.program_repair import load

PROGRAM = "attention.py"
EPSILON = 1e-5
ROUNDINGS = 16
"""times the error of the stable float32 program"""
LEAST = 1e-5
"""of the largest exact value, which is always accepted"""
MANY = 24
"""values that leave torch together are data"""
LIKELY = {
    "usual": "compare the dtypes of all operations",
    "offset": "are mean and variance right for numbers far from 0?",
    "scale": "how large is the argument of exp?",
    "masked": "what is divided by what if a query may see no key?",
    "long": "how many digits does the running sum have?",
    "padded": "what is the gradient of the branch that is not taken?",
}


class Precise(TorchDispatchMode):  # type: ignore[misc]
    """Notes operations that return float64."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            wide = isinstance(each, torch.Tensor) and each.dtype in (torch.float64, torch.complex128)
            if wide and each.numel() > 1:  # a Python number becomes a tensor of one
                self.found.append(f"aten::{func.overloadpacket.__name__}")
        return result


def reference(inputs: Any, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Result and gradients, with nothing that overflows, cancels, or divides by zero."""
    x, context, parameters, allowed, scale = inputs
    leaves = {"x": x, "context": context, **parameters}
    leaves = {name: value.detach().to(dtype).requires_grad_() for name, value in leaves.items()}
    centred = leaves["x"] - leaves["x"].mean(-1, keepdim=True)
    normal = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    normal = normal * leaves["weight"] + leaves["bias"]
    q, k = _unit(normal @ leaves["q"]), _unit(leaves["context"] @ leaves["k"])
    scores = (scale * (q @ k.T)).masked_fill(~allowed, float("-inf"))
    blind = ~allowed.any(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0.0), dim=-1).masked_fill(blind, 0.0)
    result = normal + weights @ (leaves["context"] @ leaves["v"]) @ leaves["out"]
    result.square().sum().backward()
    return result.detach(), {name: value.grad for name, value in leaves.items() if value.grad is not None}


def _unit(x: torch.Tensor) -> torch.Tensor:
    squares = x.square().sum(-1, keepdim=True)
    return x / torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt()


def checks(starter: Path, repaired: Path) -> list[GradedCheck]:
    """The checks "result", "gradients" and "precision"."""
    if not repaired.is_file():
        return _stopped(f"there is no {repaired.name} in this folder")
    if repaired.read_bytes() == starter.read_bytes():
        return _stopped(f"{repaired.name} is unchanged: nothing is repaired yet")
    try:
        before, after = load(starter, "starter_program"), load(repaired, "repaired_program")
        in_gradients = ""
        for name in before.CASES:
            inputs = before.make_case(name, secrets.randbelow(2**31))
            exact, rounded = reference(inputs, torch.float64), reference(inputs, torch.float32)
            result, gradients = outcome(after, inputs)
            if wrong := difference("the result", result, exact[0], rounded[0]):
                return _stopped(_said(name, wrong))
            for each, right in exact[1].items():
                wrong = difference(f"the gradient of {each}", gradients[each], right, rounded[1][each])
                in_gradients = in_gradients or (wrong and _said(name, wrong))
        said = f"{len(before.CASES)} cases agree with float64 within rounding, on new random data"
        result_check = passed("result", said)
        if in_gradients:
            return [result_check, failed("gradients", in_gradients), not_checked("precision", _LATER)]
        return [
            result_check,
            passed("gradients", "those of all inputs agree, too"),
            _precision(before, after),
        ]
    except (
        Exception,
        SystemExit,
    ) as error:  # a learner's code may raise anything, and the learner must see it
        return _stopped(f"{repaired.name} raises {type(error).__name__}: {error}")


_LATER = "it does not matter while the numbers are wrong"


def _stopped(why: str) -> list[GradedCheck]:
    later = (not_checked("gradients", _LATER), not_checked("precision", _LATER))
    return [failed("result", why), *later]


def _said(name: str, wrong: str) -> str:
    advice = LIKELY.get(name)
    return f"case {name}: {wrong}" + (f"; {advice}" if advice else "")


def outcome(program: ModuleType, inputs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Result and gradients of a program's `block`. The loss is ours, and so are the inputs."""
    x, context, parameters, allowed, scale = inputs
    leaves = {"x": x, "context": context, **parameters}
    leaves = {name: value.detach().clone().requires_grad_() for name, value in leaves.items()}
    of_parameters = {name: leaves[name] for name in parameters}
    result = program.block(leaves["x"], leaves["context"], of_parameters, allowed.clone(), scale)
    result.square().sum().backward()
    found = {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()
    }
    return result.detach(), found


def difference(what: str, given: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> str:
    """Why these numbers are not the exact ones with the rounding of float32; empty if they are."""
    if given.shape != exact.shape:
        return f"{what} has the shape {tuple(given.shape)}, expected {tuple(exact.shape)}"
    if given.dtype != rounded.dtype:
        return f"{what} is {given.dtype}, expected {rounded.dtype}"
    if bad := int((~given.isfinite()).sum()):
        return f"{what} has {bad} NaN or Inf"
    scale = float(exact.abs().max())
    distance = float((given.double() - exact).abs().max())
    bound = ROUNDINGS * float((rounded.double() - exact).abs().max()) + LEAST * scale
    if distance > bound:
        return f"{what} is wrong by {distance:.1e}; rounding explains up to {bound:.1e}"
    return ""


def _precision(before: ModuleType, after: ModuleType) -> GradedCheck:
    """The work is done in float32 or less, by operations of torch."""
    for name in before.CASES:
        with Precise() as precise, Leaving(MANY) as leaving:
            outcome(after, before.make_case(name, secrets.randbelow(2**31)))
        if precise.found:
            return failed("precision", f"{precise.found[0]} returns float64: repair the arithmetic instead")
        if leaving.left:
            return failed(
                "precision", f"the values leave torch ({leaving.left[0]}), where no one sees a dtype"
            )
    return passed("precision", "float32 or less, in torch alone")
