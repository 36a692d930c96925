# SPDX-License-Identifier: Apache-2.0
"""What the tests of every op share: devices, dtypes, and the bound that an error must keep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import warm_torch
from package_root import PACKAGE_ROOT

Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def generator() -> torch.Generator:
    """Random numbers that are the same in every run, whatever ran before."""
    return torch.Generator().manual_seed(20261121)


@pytest.fixture(autouse=True)
def exact_matmul() -> Iterator[None]:
    """No TF32: the bounds are those of the dtype that the test names."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


Bound = Callable[..., None]


@pytest.fixture
def within() -> Bound:
    """within(ours, truth, yardstick, k): the error is at most k times torch's own in that dtype, plus an ulp.

    ours and yardstick were computed in the tested dtype, truth in float64 from the same inputs. For float64
    itself there is no truth to tell torch's error, so the yardstick is float32 and its error is scaled down.
    terms: of a sum that may cancel, the sum of its terms' magnitudes; the ulp is one of that.
    """

    def check(
        ours: torch.Tensor,
        truth: torch.Tensor,
        yardstick: torch.Tensor,
        k: float,
        what: str = "",
        terms: float = 0.0,
    ) -> None:
        assert ours.shape == truth.shape, what
        assert yardstick.dtype == (torch.float32 if ours.dtype == torch.float64 else ours.dtype), what
        if truth.numel() == 0:
            return
        truth = truth.double().cpu()
        error = (ours.double().cpu() - truth).abs()
        own = (yardstick.double().cpu() - truth).abs().max().item()
        own *= torch.finfo(ours.dtype).eps / torch.finfo(yardstick.dtype).eps
        bound = k * own + torch.finfo(ours.dtype).eps * max(truth.abs().max().item(), terms)
        assert torch.isfinite(error).all(), f"{what}: not finite where torch is"
        worst = int(error.argmax())
        assert error.max().item() <= bound, (
            f"{what}: error {error.max():.3g} at element {worst} of {tuple(ours.shape)}, allowed {bound:.3g} "
            f"({k} x torch's own {own:.3g} + one ulp)"
        )

    return check


@pytest.fixture
def leaves() -> Callable[[Tensors], Tensors]:
    """leaves(tensors): copies that want gradients."""
    return lambda tensors: tuple(t.detach().clone().requires_grad_() for t in tensors)


@pytest.fixture
def gradients(leaves: Callable[[Tensors], Tensors]) -> Callable[..., Tensors]:
    """gradients(function, inputs, dy): the output, and the gradient of every input for dy."""

    def run(function: Callable[..., torch.Tensor], inputs: Tensors, dy: torch.Tensor) -> Tensors:
        wanted = leaves(inputs)
        y = function(*wanted)
        return (y.detach(), *torch.autograd.grad(y, wanted, dy.to(y.dtype)))

    return run


@pytest.fixture
def poison() -> Callable[[torch.Tensor], None]:
    """poison(like): leaves NaN in the memory that the next tensors of this size are likely to get."""

    def leave_nan(like: torch.Tensor) -> None:
        blocks = [
            torch.full_like(like, float("nan"), memory_format=torch.contiguous_format) for _ in range(8)
        ]
        del blocks

    return leave_nan


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """python(code or file, *arguments): a fresh interpreter that finds this checkout's package."""

    def run(program: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        command = [str(program)] if isinstance(program, Path) else ["-c", program]
        return subprocess.run(
            [sys.executable, *command, *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment},
            cwd="/",  # neither the source tree nor the packages: PYTHONPATH decides
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


@pytest.fixture
def python_warm(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`python` in a process that has imported torch already (tests/warm_torch.py)."""

    def run(program: str | Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        script = program if isinstance(program, Path) else tmp_path / "program.py"
        if isinstance(program, str):
            script.write_text(program)
        path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        return warm_torch.run(
            [str(script), *arguments], tmp_path, {**os.environ, "PYTHONPATH": path, **environment}
        )

    return run
