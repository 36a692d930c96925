# SPDX-License-Identifier: Apache-2.0
"""What every op must tell torch: without it torch still answers, at times silently wrong."""

from __future__ import annotations

import itertools
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor

from profiling_lab.ops import OPS
from profiling_lab.ops.case import OpCase, Variant

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
VARIANTS = [pytest.param(case, v, id=f"{case.slug}-{v.name}") for case in CASES for v in case.variants]
CUSTOM = [pytest.param(c, v, id=f"{c.slug}-{v.name}") for c in CASES for v in c.variants if v.custom]
CPU = torch.device("cpu")


@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_opcheck(case: OpCase, transposed: bool, device: torch.device, generator: torch.Generator) -> None:
    inputs = case.make_inputs(case.small_shape, getattr(torch, case.dtypes(device)[0]), device, generator)
    if transposed:
        inputs = (inputs[0].transpose(0, -1).contiguous().transpose(0, -1), *inputs[1:])
    calls = case.dispatcher_calls(inputs)
    names = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"profiling_lab::{case.slug}")
    }
    # That of block masks only Hopper has: tests/ops/keys/test_attention_blocks.py.
    assert {name for name, _ in calls} == names - {"attention_fwd_blocks"}
    for name, arguments in calls:
        op = getattr(torch.ops.profiling_lab, name).default
        torch.library.opcheck(op, arguments)
        if not name.endswith(("_backward", "_bwd")):  # torch cannot compile second derivatives
            grad = tuple(a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in arguments)
            torch.library.opcheck(op, grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_meta_tensors(
    case: OpCase, variant: Variant, dtype: torch.dtype, generator: torch.Generator, gradients: Any
) -> None:
    inputs = case.make_inputs(case.small_shape, dtype, CPU, generator)
    real = gradients(variant.call, inputs, torch.ones(case.small_shape))
    meta = gradients(
        variant.call, tuple(t.to("meta") for t in inputs), torch.ones(case.small_shape, device="meta")
    )
    for a, b in zip(real, meta, strict=True):
        assert b.is_meta
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_compile_fullgraph(
    case: OpCase,
    variant: Variant,
    backend: str,
    device: torch.device,
    generator: torch.Generator,
    gradients: Any,
) -> None:
    torch._dynamo.reset()
    inputs = case.make_inputs(case.small_shape, getattr(torch, case.dtypes(device)[0]), device, generator)
    dy = torch.randn(case.small_shape, generator=generator).to(device)

    def model(*args: Tensor) -> Tensor:
        return torch.relu(variant.call(*args) * 2)

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    # Inductor compiles programs to find the vector instructions of its own loops, which are not about the op.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        found = gradients(compiled, inputs, dy)
    for a, b in zip(gradients(model, inputs, dy), found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_compile_dynamic_shapes_compiles_once(
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator, gradients: Any
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(variant.call, fullgraph=True, dynamic=True, backend="aot_eager")
    for size, stance in (
        (3, "default"),
        (5, "fail_on_recompile"),
        (64, "fail_on_recompile"),
        (129, "fail_on_recompile"),
    ):
        shape = (size, *case.small_shape[1:])
        inputs = case.make_inputs(shape, getattr(torch, case.dtypes(device)[0]), device, generator)
        dy = torch.randn(shape, generator=generator).to(device)
        with torch.compiler.set_stance(stance):
            ours = gradients(compiled, inputs, dy)
        for a, b in zip(gradients(variant.call, inputs, dy), ours, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_export_with_a_dynamic_dimension_and_reload(
    case: OpCase, tmp_path: Path, generator: torch.Generator, python_warm: Any
) -> None:
    module = case.module(24).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        module, (torch.randn(4, 5, 24, generator=generator),), dynamic_shapes=({0: batch},)
    )
    assert f"profiling_lab.{case.slug}" in str(program.graph)
    torch.export.save(program, tmp_path / "model.pt2")
    x = torch.randn(9, 5, 24, generator=generator)
    with torch.no_grad():
        torch.save((x, module(x)), tmp_path / "expected.pt")
    result = python_warm(
        "import sys, torch\n"
        f"import profiling_lab.ops.{case.slug}\n"
        "model = torch.export.load(sys.argv[1] + '/model.pt2').module()\n"
        "x, expected = torch.load(sys.argv[1] + '/expected.pt')\n"
        "torch.testing.assert_close(model(x), expected)\n",
        str(tmp_path),
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_jit_trace(case: OpCase, tmp_path: Path, generator: torch.Generator) -> None:
    """The trace holds the op, gives gradients, and survives a file."""
    module = case.module(16, dtype=torch.float64)
    x, other = torch.randn(2, 4, 5, 16, generator=generator, dtype=torch.float64)
    traced = torch.jit.trace(module, (x,))
    assert f"profiling_lab::{case.slug}" in str(traced.inlined_graph)
    traced.save(tmp_path / "model.pt")
    for model in (traced, torch.jit.load(tmp_path / "model.pt")):
        y = model(other)
        torch.testing.assert_close(y, module(other))
        ours = torch.autograd.grad(y.sin().sum(), list(model.parameters()))
        own = torch.autograd.grad(module(other).sin().sum(), list(module.parameters()))
        torch.testing.assert_close(ours, own)
        assert all(g.any() for g in ours)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_fx_trace(case: OpCase, generator: torch.Generator) -> None:
    """The graph calls the public function, not what it does for one tensor."""

    class Model(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.layer = case.module(16, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    model, x = Model(), torch.randn(2, 4, 16, generator=generator, dtype=torch.float64)
    traced = torch.fx.symbolic_trace(model)
    targets = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    assert getattr(import_module("profiling_lab.ops"), case.name) in targets
    torch.testing.assert_close(traced(x), model(x))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_a_tensor_class_of_a_users_own(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any
) -> None:
    """It is asked about the public function, and the result is of its class, as with torch's functions."""

    class Own(Tensor):  # type: ignore[misc]  # torch is untyped here
        asked: list[Any] = []  # noqa: RUF012

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    inputs = case.make_inputs(case.small_shape, torch.float64, CPU, generator)
    y = variant.call(inputs[0].as_subclass(Own), *inputs[1:])
    assert type(y) is Own and getattr(import_module("profiling_lab.ops"), case.name) in Own.asked
    assert torch.equal(y.as_subclass(Tensor), variant.call(*inputs))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_autocast_in_the_middle_of_a_network(
    case: OpCase,
    variant: Variant,
    device: torch.device,
    generator: torch.Generator,
    gradients: Any,
    leaves: Any,
) -> None:
    """Half-precision activations meet float32 weights: the usual case."""
    inputs = case.make_inputs(case.small_shape, torch.float32, device, generator)
    half = torch.bfloat16
    expected = gradients(
        variant.reference, tuple(t.double() for t in inputs), torch.ones(case.small_shape, device=device)
    )
    wanted = leaves(inputs)
    with torch.autocast(device.type, dtype=half):
        y = variant.call(wanted[0].to(half), *wanted[1:])
        assert y.dtype in (half, torch.float32)
        y.sum().backward()  # inside the region, as careless users do
    for tensor, original in zip(wanted, inputs, strict=True):
        assert tensor.grad is not None
        assert tensor.grad.dtype == original.dtype
    close = {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(y.double(), expected[0], **close)
    for tensor, true in zip(wanted, expected[1:], strict=True):
        scale = true.abs().max().item()
        torch.testing.assert_close(tensor.grad.double(), true, rtol=0.05, atol=0.05 * scale)  # type: ignore[union-attr]


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_autocast_inside_a_compiled_function(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any
) -> None:
    torch._dynamo.reset()
    inputs = case.make_inputs(case.small_shape, torch.float32, CPU, generator)

    def model(*args: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return variant.call(*args).float()

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    dy = torch.ones(case.small_shape)
    for a, b in zip(gradients(model, inputs, dy), gradients(compiled, inputs, dy), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_autocast_leaves_float64_alone(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float64, CPU, generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = variant.call(*inputs)
    torch.testing.assert_close(y, variant.reference(*inputs))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_vmap_equals_a_loop(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    batches = [case.make_inputs(case.small_shape, torch.float64, CPU, generator) for _ in range(3)]
    stacked = tuple(torch.stack(same, dim=1) for same in zip(*batches, strict=True))
    ours = torch.func.vmap(variant.call, in_dims=1, out_dims=0)(*stacked)
    torch.testing.assert_close(ours, torch.stack([variant.call(*inputs) for inputs in batches]))
    shared = batches[0][1:]
    over_x = torch.func.vmap(lambda x: variant.call(x, *shared), in_dims=1)(stacked[0])
    torch.testing.assert_close(over_x, torch.stack([variant.call(inputs[0], *shared) for inputs in batches]))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_checkpoint(case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    inputs = case.make_inputs(case.small_shape, torch.float64, CPU, generator)
    dy = torch.randn(case.small_shape, generator=generator, dtype=torch.float64)

    def recomputed(*args: Tensor) -> Any:
        return checkpoint(variant.call, *args, use_reentrant=False)

    for a, b in zip(gradients(variant.call, inputs, dy), gradients(recomputed, inputs, dy), strict=True):
        assert torch.equal(a, b)


def test_ddp_averages_the_gradients(python: Any) -> None:
    result = python(Path(__file__).with_name("ddp_workers.py"))
    assert result.returncode == 0, result.stdout + result.stderr
    proven = [line.split()[1] for line in result.stdout.splitlines() if line.startswith("proven ")]
    assert proven == list(OPS)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_module_moves_saves_and_trains(case: OpCase, generator: torch.Generator) -> None:
    module = case.module(16, device="cpu", dtype=torch.float64)
    assert all(p.dtype == torch.float64 for p in module.parameters())
    twin = case.module(16).to(torch.float64)
    twin.load_state_dict(module.state_dict())
    x = torch.randn(5, 3, 16, generator=generator, dtype=torch.float64)
    assert torch.equal(module(x), twin(x))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
    target = torch.zeros_like(x)
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(module(x), target)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert all(later < earlier for earlier, later in itertools.pairwise(losses)), losses
    assert "16" in repr(module)
