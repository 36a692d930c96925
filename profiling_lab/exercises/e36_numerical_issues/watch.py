# SPDX-License-Identifier: Apache-2.0
"""What every operation of a program computes: largest value, NaN, Inf, and its error.

python watch.py CASE            every operation in the order of execution, forward
python watch.py CASE --grad     the gradients, and what torch's anomaly mode says

The error is the distance to the same program run in float64, over the largest value there. Equal inputs,
equal operations: what differs is rounding. A fault that float64 has, too, shows no error: look for NaN and
Inf as well.
"""

import argparse
import importlib.util
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

COPIES = ("_to_copy", "detach", "clone", "alias", "slice", "permute", "zeros", "zeros_like")


@dataclass
class Value:
    """What one operation returned."""

    line: int
    op: str
    turn: int
    value: torch.Tensor


class Watch(TorchDispatchMode):
    """Notes the floating-point results of all operations that a file calls."""

    def __init__(self, file):
        super().__init__()
        self.file = str(file)
        self.values = []
        self._turns = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name, line = func.overloadpacket.__name__, self._line()
        if line and name not in COPIES and isinstance(result, torch.Tensor) and result.is_floating_point():
            turn = self._turns[line, name] = self._turns.get((line, name), -1) + 1
            self.values.append(Value(line, name, turn, result.detach().clone()))
        return result

    def _line(self):
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0


def load(path):
    """The program, as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"watched_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_double(inputs):
    """The same inputs in float64."""
    x, context, parameters, allowed, scale = inputs
    doubled = {name: value.double() for name, value in parameters.items()}
    return x.double(), context.double(), doubled, allowed, scale


def forward(path, inputs, double=False):
    """All values of the forward pass."""
    program = load(path)
    if double:
        program.SUMS = torch.float64
        inputs = in_double(inputs)
    with torch.no_grad(), Watch(path) as watch:
        program.block(*inputs)
    return watch.values


def error(value, exact):
    """The largest distance over the largest exact value, of what is finite in both."""
    both = value.isfinite() & exact.isfinite()
    if not both.any():
        return 0.0
    scale = exact[both].abs().max().item() or 1.0
    return ((value.double() - exact)[both].abs().max() / scale).item()


@dataclass
class Row:
    """All calls of one operation on one line: the worst of each."""

    line: int
    op: str
    dtype: str
    calls: int = 0
    largest: float = 0.0
    nan: int = 0
    inf: int = 0
    error: float = 0.0


def rows(path, inputs):
    """One row for each operation of each line, in the order of the first call."""
    twins = {(each.line, each.op, each.turn): each.value for each in forward(path, inputs, double=True)}
    found = {}
    for each in forward(path, inputs):
        value, finite = each.value, each.value[each.value.isfinite()]
        dtype = str(value.dtype).removeprefix("torch.")
        row = found.setdefault((each.line, each.op, dtype), Row(each.line, each.op, dtype))
        row.calls += 1
        row.largest = max(row.largest, finite.abs().max().item() if finite.numel() else 0.0)
        row.nan = max(row.nan, int(value.isnan().sum()))
        row.inf = max(row.inf, int((value == float("inf")).sum()))
        twin = twins.get((each.line, each.op, each.turn))
        if twin is not None and twin.shape == value.shape:
            row.error = max(row.error, error(value, twin))
    return list(found.values())


def show(path, inputs):
    """The table."""
    numbers = f"{'largest':>10}  {'NaN':>5} {'+Inf':>5}    error"
    print(f"{'line':>4}  {'operation':12} {'calls':>5}  {'dtype':9} {numbers}")
    for row in rows(path, inputs):
        head = f"{row.line:4}  {row.op:12} {row.calls:5}  {row.dtype:9} {row.largest:10.3g}"
        print(f"{head}  {row.nan:5} {row.inf:5}  {row.error:7.1e}")


def first_nan(path, inputs):
    """What anomaly mode says about the backward pass: message and forward call; "" if there is no NaN."""
    program = load(path)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with torch.autograd.detect_anomaly(check_nan=True):
                program.with_gradients(inputs)
        except RuntimeError as failure:
            calls = [str(each.message) for each in heard if "forward call" in str(each.message)]
            return "\n".join([str(failure), *calls]).replace(f"{path.parent}/", "")
    return ""


def show_gradients(path, inputs):
    """NaN in the gradients, and where the first comes from."""
    for name, value in load(path).with_gradients(inputs)[1].items():
        print(f"gradient of {name:8} {int(value.isnan().sum()):5} NaN of {value.numel()}")
    print(first_nan(path, inputs))


def main():
    parser = argparse.ArgumentParser(description="Show what every operation of attention.py computes.")
    parser.add_argument("case", help="usual, offset, scale, masked, long or padded")
    parser.add_argument("--grad", action="store_true", help="the gradients instead")
    parser.add_argument("--file", type=Path, default=Path("attention.py"))
    args = parser.parse_args()
    path = args.file.resolve()
    cases = load(path).CASES
    if args.case not in cases:
        parser.error(f"there is no case {args.case!r}; there are {', '.join(cases)}")
    inputs = load(path).make_case(args.case)
    (show_gradients if args.grad else show)(path, inputs)


if __name__ == "__main__":
    main()
