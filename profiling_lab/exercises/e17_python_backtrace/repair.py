# SPDX-License-Identifier: Apache-2.0
"""Judge a repaired model.py: it must give the same result as the untouched one, gradients too, and train faster."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from profiling_lab.errors import UsageError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.exercise import Check, Need, Status
from profiling_lab.measure import compare, ratio

STARTER = Path(__file__).parent / "model.py"
CULPRITS = ("slow", "loop")
SMALL = {"vocab_size": 100, "d_model": 256, "nhead": 4, "num_layers": 1}  # double precision on a CPU takes no time
FULL = {"vocab_size": 10000, "d_model": 512, "nhead": 8, "num_layers": 4}
FASTER_AT_LEAST = 1.1  # below, the difference may be the machine's mood
CLAIM_TOLERANCE_FRAC = 0.25


def checks(workspace: Path, answers: Answers) -> list[Check]:
    """The checks "result", "speed" and "claim" of the model.py in `workspace`."""
    heavy = answers.text("heavy") or CULPRITS[0]
    if heavy not in CULPRITS:
        raise UsageError(f"{answers.source}: heavy must be one of {', '.join(CULPRITS)}, not {heavy!r}")
    path = workspace / "model.py"
    if not path.is_file():
        return [Check("result", Status.FAILED, "there is no model.py in this folder")]
    if path.read_bytes() == STARTER.read_bytes():
        return [Check("result", Status.FAILED, "model.py is as it came: nothing is repaired yet (step 5)")]
    try:
        starter, repaired = load(STARTER, "starter_model"), load(path, "repaired_model")
        result = _result(starter, repaired, heavy)
        if result.status is not Status.PASSED:
            return [result, Check("speed", Status.NOT_CHECKED, "how fast a different result comes does not matter")]
        return [result, *_speed(starter, repaired, heavy, answers.number("fix.speedup"))]
    except Exception as error:  # a learner's code may raise anything, and must hear what
        return [Check("result", Status.FAILED, f"model.py raises {type(error).__name__}: {error}")]


def load(path: Path, name: str) -> ModuleType:
    """The module in a file, under a name of its own, so that two files called model.py can live side by side."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tensors(model: torch.nn.Module, tokens: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a training step computes: the output and every gradient, in fp64 on the CPU."""
    output = model(tokens)
    torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()).backward()
    found = {"the output": output.detach()}
    found |= {f"the gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: tensor.double().cpu() for name, tensor in found.items()}


def _result(starter: ModuleType, repaired: ModuleType, heavy: str) -> Check:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    before = starter.TransformerWithHeavyLayer(**SMALL, heavy=heavy)
    after = repaired.TransformerWithHeavyLayer(**SMALL)
    try:
        after.load_state_dict(before.state_dict())
    except RuntimeError as error:
        return Check("result", Status.FAILED, f"the parameters must keep their names and shapes: {error}")
    exact = copy.deepcopy(before).double()
    tokens, target = torch.randint(SMALL["vocab_size"], (2, 2, 64))
    wanted = _tensors(exact, tokens, target)
    tokens, target = tokens.to(device), target.to(device)
    old = _tensors(before.to(device), tokens, target)
    new = _tensors(after.to(device), tokens, target)
    for name, exactly in wanted.items():
        if name not in new:
            return Check("result", Status.FAILED, f"{name} is missing: the repaired layer must train as before")
        error = (new[name] - exactly).abs().max().item()
        # Another order of summation is welcome; another precision is another result.
        rounding = 16 * torch.finfo(torch.float32).eps * exactly.abs().max().item()
        bound = 4 * (old[name] - exactly).abs().max().item() + rounding
        if not error <= bound:  # so written that NaN fails
            return Check("result", Status.FAILED, f"{name} is off by {error:.1e}; rounding explains {bound:.1e}")
    return Check("result", Status.PASSED, f"output and {len(wanted) - 1} gradients agree with double precision, on the {device.type}")


def _speed(starter: ModuleType, repaired: ModuleType, heavy: str, claimed: float | None) -> list[Check]:
    if missing := Need.GPU.missing():
        reason = f"{missing}, and a CPU's time says nothing about a GPU's"
        return [Check(name, Status.NOT_CHECKED, reason) for name in ("speed", "claim")]
    times = compare(
        {
            "before": training_step(starter.TransformerWithHeavyLayer(**FULL, heavy=heavy)),
            "after": training_step(repaired.TransformerWithHeavyLayer(**FULL)),
        },
        mode="host",  # what a training loop gets: a layer of tiny kernels costs the CPU's time, not the GPU's
        rounds=10,
        warmup_s=0.5,
        calls_per_sample=3,
    )
    before_ms, after_ms = times["before"].median_ns / 1e6, times["after"].median_ns / 1e6
    gain = ratio(times["before"], times["after"])
    measured = f"{before_ms:.2f} ms per step before, {after_ms:.2f} ms after: {gain:.2f} times"
    fast = gain >= FASTER_AT_LEAST
    speed = Check("speed", Status.PASSED if fast else Status.FAILED, measured + ("" if fast else ", no clear gain"))
    if claimed is None:
        return [speed, Check("claim", Status.FAILED, "not answered yet: [fix] speedup, as you measured it")]
    honest = abs(claimed / gain - 1) <= CLAIM_TOLERANCE_FRAC
    said = f"you say {claimed:.2f} times, measured here {gain:.2f} times"
    return [speed, Check("claim", Status.PASSED if honest else Status.FAILED, said)]


def training_step(model: torch.nn.Module) -> Callable[[], None]:
    """One step of training that model on the GPU, on random words, as a function to be timed."""
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data, target = torch.randint(FULL["vocab_size"], (2, 32, 128), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data).flatten(0, 1), target.flatten()).backward()
        optimizer.step()

    return step
