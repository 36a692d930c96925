# SPDX-License-Identifier: Apache-2.0
"""Grade a repaired model.py: same results and gradients as the original, and faster training."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from profiling_lab.errors import UsageError
from profiling_lab.exercises.answers import Answers
from profiling_lab.exercises.exercise import CheckStatus, GradedCheck, Need, failed, not_checked, passed
from profiling_lab.measure import interleaved, ratio

STARTER = Path(__file__).parent / "model.py"
CULPRITS = ("slow", "loop")
# Small enough for double precision on a CPU.
SMALL = {"vocab_size": 100, "d_model": 256, "nhead": 4, "num_layers": 1}
FULL = {"vocab_size": 10000, "d_model": 512, "nhead": 8, "num_layers": 4}
FASTER_AT_LEAST = 1.1  # below this, the difference may be noise
CLAIM_TOLERANCE_FRAC = 0.25


def checks(workspace: Path, answers: Answers) -> list[GradedCheck]:
    """The checks "result", "speed" and "claim" of the model.py in `workspace`."""
    heavy = answers.text("heavy") or CULPRITS[0]
    if heavy not in CULPRITS:
        raise UsageError(f"{answers.source}: heavy must be one of {', '.join(CULPRITS)}, not {heavy!r}")
    path = workspace / "model.py"
    if not path.is_file():
        return [failed("result", "there is no model.py in this folder")]
    if path.read_bytes() == STARTER.read_bytes():
        return [failed("result", "model.py is unchanged: nothing is repaired yet (step 5)")]
    try:
        starter, repaired = load(STARTER, "starter_model"), load(path, "repaired_model")
        result = _result(starter, repaired, heavy)
        if result.status is not CheckStatus.PASSED:
            return [
                result,
                not_checked("speed", "the speed does not matter while the result differs"),
            ]
        return [result, *_speed(starter, repaired, heavy, answers.number("fix.speedup"))]
    except Exception as error:  # a learner's code may raise anything, and the learner must see it
        return [failed("result", f"model.py raises {type(error).__name__}: {error}")]


def load(path: Path, name: str) -> ModuleType:
    """Import a file under a unique module name, because two files called model.py are loaded."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tensors(model: torch.nn.Module, tokens: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """The results of a training step: the output and every gradient, in fp64 on the CPU."""
    output = model(tokens)
    torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten()).backward()
    found = {"the output": output.detach()}
    found |= {f"the gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: tensor.double().cpu() for name, tensor in found.items()}


def _result(starter: ModuleType, repaired: ModuleType, heavy: str) -> GradedCheck:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    before = starter.TransformerWithHeavyLayer(**SMALL, heavy=heavy)
    after = repaired.TransformerWithHeavyLayer(**SMALL)
    try:
        after.load_state_dict(before.state_dict())
    except RuntimeError as error:
        return failed(
            "result", f"the parameters must keep their names and shapes: {' '.join(str(error).split())}"
        )
    exact = copy.deepcopy(before).double()
    tokens, target = torch.randint(SMALL["vocab_size"], (2, 2, 64))
    wanted = _tensors(exact, tokens, target)
    tokens, target = tokens.to(device), target.to(device)
    old = _tensors(before.to(device), tokens, target)
    new = _tensors(after.to(device), tokens, target)
    for name, exactly in wanted.items():
        if name not in new:
            return failed("result", f"{name} is missing: the repaired layer must train as before")
        distance = (new[name] - exactly).abs().max().item()
        # Another order of summation is allowed; a lower precision is not.
        rounding = 16 * torch.finfo(torch.float32).eps * exactly.abs().max().item()
        bound = 4 * (old[name] - exactly).abs().max().item() + rounding
        if not distance <= bound:  # written so that NaN fails
            return failed("result", f"{name} differs by {distance:.1e}; rounding explains up to {bound:.1e}")
    return passed(
        "result", f"output and {len(wanted) - 1} gradients agree with double precision ({device.type})"
    )


def _speed(starter: ModuleType, repaired: ModuleType, heavy: str, claimed: float | None) -> list[GradedCheck]:
    if missing := Need.GPU.missing():
        reason = f"{missing}, and a time on the CPU says nothing about the GPU"
        return [not_checked(name, reason) for name in ("speed", "claim")]
    times = interleaved(
        {
            "before": training_step(starter.TransformerWithHeavyLayer(**FULL, heavy=heavy)),
            "after": training_step(repaired.TransformerWithHeavyLayer(**FULL)),
        }
    )
    before_ms, after_ms = times["before"].median_ns / 1e6, times["after"].median_ns / 1e6
    gain = ratio(times["before"], times["after"])
    measured = f"{before_ms:.2f} ms per step before, {after_ms:.2f} ms after: {gain:.2f} times"
    if gain < FASTER_AT_LEAST:
        speed = failed("speed", f"{measured}, no clear speedup")
    else:
        speed = passed("speed", measured)
    if claimed is None:
        return [speed, failed("claim", "not answered yet: [fix] speedup, as you measured it")]
    said = f"your answer is {claimed:.2f} times, measured here: {gain:.2f} times"
    is_honest = abs(claimed / gain - 1) <= CLAIM_TOLERANCE_FRAC
    return [speed, passed("claim", said) if is_honest else failed("claim", said)]


def training_step(model: torch.nn.Module) -> Callable[[], None]:
    """One training step of the model on the GPU with random tokens, as a function to be timed."""
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data, target = torch.randint(FULL["vocab_size"], (2, 32, 128), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data).flatten(0, 1), target.flatten()).backward()
        optimizer.step()

    return step
