# SPDX-License-Identifier: Apache-2.0
"""What every op promises, whatever it computes. A new op is tested here by its line in OPS alone."""

from __future__ import annotations

import gc
import math
import mmap
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from profiling_lab.ops import OPS
from profiling_lab.ops.case import OpCase, Shape, TestShape, Variant


def case_of(slug: str) -> OpCase:
    case: OpCase = import_module(f"profiling_lab.ops.{slug}").CASE
    return case


CASES = [case_of(slug) for slug in OPS]
VARIANTS = [pytest.param(case, v, id=f"{case.slug}-{v.name}") for case in CASES for v in case.variants]
CUSTOM = [pytest.param(c, v, id=f"{c.slug}-{v.name}") for c in CASES for v in c.variants if v.custom]
SHAPES = [
    pytest.param(case, v, s, id=f"{case.slug}-{v.name}-{s.reason}")
    for case in CASES
    for v in case.variants
    for s in case.test_shapes
]
DTYPES = ["float32", "float64", "bfloat16", "float16"]
CPU = torch.device("cpu")


def small(case: OpCase) -> Shape:
    """The smallest tested shape without a dimension of 1, where every index matters."""
    shapes = [s.shape for s in case.test_shapes if len(s.shape) > 1 and min(s.shape) > 1]
    return min(shapes, key=math.prod)


def usual(case: OpCase, device: torch.device) -> torch.dtype:
    """The first dtype that the op has on the device."""
    dtype: torch.dtype = getattr(torch, (case.cuda_dtypes if device.type == "cuda" else case.cpu_dtypes)[0])
    return dtype


def name_of(case: OpCase) -> str:
    return case.function or case.slug


def leaves(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_() for t in tensors)


def gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], dy: Tensor) -> tuple[Tensor, ...]:
    """The output and the gradients of all inputs."""
    wanted = leaves(inputs)
    y = function(*wanted)
    return (y.detach(), *torch.autograd.grad(y, wanted, dy.to(y.dtype)))


# Values


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize(("case", "variant", "shape"), SHAPES)
def test_forward_and_gradients_against_float64(
    case: OpCase,
    variant: Variant,
    shape: TestShape,
    dtype_name: str,
    device: torch.device,
    generator: torch.Generator,
    within: Any,
    poison: Any,
) -> None:
    supported = case.cuda_dtypes if device.type == "cuda" else case.cpu_dtypes
    if dtype_name not in supported:
        pytest.skip(f"{case.slug} has no {dtype_name} on {device.type}; the refusal is tested elsewhere")
    dtype = getattr(torch, dtype_name)
    inputs = case.make_inputs(shape.shape, dtype, device, generator)
    doubles = tuple(t.double() for t in inputs)
    dy = torch.randn(variant.reference(*doubles).shape, generator=generator, dtype=torch.float64)
    dy = dy.to(device=device, dtype=dtype)

    truth = gradients(variant.reference, doubles, dy)
    as_torch = torch.float32 if dtype == torch.float64 else dtype
    yardstick = gradients(variant.reference, tuple(t.to(as_torch) for t in inputs), dy)
    for tensor in inputs:
        poison(tensor)
    ours = gradients(variant.call, inputs, dy)
    within(ours[0], truth[0], yardstick[0], 2, "forward")
    if not variant.custom and dtype.itemsize == 2:
        return  # plain torch that sums its gradients piece by piece in 16 bits: that error is torch's own
    for i, (one, true, torchs) in enumerate(zip(ours[1:], truth[1:], yardstick[1:], strict=True)):
        within(one, true, torchs, 3, f"gradient of input {i}")


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_second_call_gives_the_same_bits(
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator
) -> None:
    inputs = case.make_inputs(small(case), usual(case, device), device, generator)
    dy = torch.randn(small(case), generator=generator).to(device)
    first = gradients(variant.call, inputs, dy)
    for _ in range(5):
        for a, b in zip(first, gradients(variant.call, inputs, dy), strict=True):
            assert torch.equal(a, b)


def layouts(tensor: Tensor) -> dict[str, Tensor]:
    """The same values in memory in other ways."""
    wide = torch.zeros(*tensor.shape, 3, dtype=tensor.dtype, device=tensor.device)
    wide[..., 1] = tensor
    moved = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    moved[1:] = tensor.reshape(-1)
    step = 1 << 20
    far = torch.zeros(
        step * (tensor.shape[0] - 1) + tensor[0].numel(), dtype=tensor.dtype, device=tensor.device
    )
    far = far.as_strided(tensor.shape, (step, *tensor[0].contiguous().stride()))
    far.copy_(tensor)
    return {
        "every third element": wide[..., 1],
        "transposed": tensor.transpose(0, -1).contiguous().transpose(0, -1),
        "not aligned to a vector": moved[1:].view(tensor.shape),
        "rows a million elements apart": far,
    }


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_layout_of_an_input_does_not_matter(
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator, within: Any
) -> None:
    inputs = case.make_inputs(small(case), usual(case, device), device, generator)
    dy = torch.randn(small(case), generator=generator).to(device)
    doubles = tuple(t.double() for t in inputs)
    truth = gradients(variant.reference, doubles, dy)
    yardstick = gradients(variant.reference, inputs, dy)
    for i, tensor in enumerate(inputs):
        for name, same in layouts(tensor).items():
            assert torch.equal(same, tensor)
            other = [t.detach().requires_grad_() for t in (*inputs[:i], same, *inputs[i + 1 :])]
            y = variant.call(*other)
            assert y.is_contiguous()
            within(y, truth[0], yardstick[0], 2, f"input {i}, {name}")
            for g, t, own in zip(torch.autograd.grad(y, other, dy), truth[1:], yardstick[1:], strict=True):
                within(g, t, own, 3, f"gradient with input {i}, {name}")
    for name, same in layouts(dy).items():
        wanted = leaves(inputs)
        for g, t, own in zip(
            torch.autograd.grad(variant.call(*wanted), wanted, same), truth[1:], yardstick[1:], strict=True
        ):
            within(g, t, own, 3, f"gradient with dy {name}")


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_broadcast_gradient_and_input(case: OpCase, variant: Variant, device: torch.device) -> None:
    """sum().backward() hands the op a gradient whose strides are all zero; expand does so with inputs."""
    inputs = case.make_inputs(small(case), usual(case, device), device, torch.Generator().manual_seed(1))
    row = inputs[0][:1]
    expanded = (row.expand_as(inputs[0]), *inputs[1:])
    wanted = leaves(expanded)
    torch.testing.assert_close(variant.call(*expanded), variant.call(*wanted))
    variant.call(*wanted).sum().backward()
    ones = torch.ones_like(inputs[0])
    for tensor, g in zip(wanted, gradients(variant.call, wanted, ones)[1:], strict=True):
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, g)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_gradients_of_some_inputs_only(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = case.make_inputs(small(case), torch.float64, CPU, generator)
    full = gradients(variant.call, inputs, torch.ones(small(case)))
    for i in range(len(inputs)):
        mixed = [t.clone().requires_grad_(k == i) for k, t in enumerate(inputs)]
        variant.call(*mixed).sum().backward()
        for k, tensor in enumerate(mixed):
            assert (tensor.grad is not None) == (k == i)
        assert torch.equal(mixed[i].grad, full[1 + i])  # type: ignore[arg-type]


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_gradcheck(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = case.make_inputs(small(case), torch.float64, CPU, generator)
    assert torch.autograd.gradcheck(variant.call, leaves(inputs), fast_mode=math.prod(small(case)) > 200)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_no_grad_and_inference_mode(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = leaves(case.make_inputs(small(case), torch.float32, CPU, generator))
    expected = variant.call(*inputs)
    assert expected.requires_grad
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            y = variant.call(*inputs)
        assert not y.requires_grad
        assert torch.equal(y, expected)


# What torch must know


@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_opcheck(case: OpCase, transposed: bool, device: torch.device, generator: torch.Generator) -> None:
    inputs = case.make_inputs(small(case), usual(case, device), device, generator)
    if transposed:
        inputs = (layouts(inputs[0])["transposed"], *inputs[1:])
    calls = case.dispatcher_calls(inputs)
    assert {name for name, _ in calls} == {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"profiling_lab::{case.slug}")
    }
    for name, arguments in calls:
        op = getattr(torch.ops.profiling_lab, name).default
        torch.library.opcheck(op, arguments)
        if not name.endswith(("_backward", "_bwd")):  # which refuses to be differentiated
            grad = tuple(a.detach().requires_grad_() if isinstance(a, Tensor) else a for a in arguments)
            torch.library.opcheck(op, grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_meta_tensors(case: OpCase, variant: Variant, dtype: torch.dtype, generator: torch.Generator) -> None:
    inputs = case.make_inputs(small(case), dtype, CPU, generator)
    real = gradients(variant.call, inputs, torch.ones(small(case)))
    meta = gradients(
        variant.call, tuple(t.to("meta") for t in inputs), torch.ones(small(case), device="meta")
    )
    for a, b in zip(real, meta, strict=True):
        assert b.is_meta
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_compile_fullgraph(
    case: OpCase, variant: Variant, backend: str, device: torch.device, generator: torch.Generator
) -> None:
    torch._dynamo.reset()
    inputs = case.make_inputs(small(case), usual(case, device), device, generator)
    dy = torch.randn(small(case), generator=generator).to(device)

    def model(*args: Tensor) -> Tensor:
        return torch.relu(variant.call(*args) * 2)

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for a, b in zip(gradients(model, inputs, dy), gradients(compiled, inputs, dy), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_compile_dynamic_shapes_compiles_once(
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(variant.call, fullgraph=True, dynamic=True, backend="aot_eager")
    for size, stance in (
        (3, "default"),
        (5, "fail_on_recompile"),
        (64, "fail_on_recompile"),
        (129, "fail_on_recompile"),
    ):
        shape = (size, *small(case)[1:])
        inputs = case.make_inputs(shape, usual(case, device), device, generator)
        dy = torch.randn(shape, generator=generator).to(device)
        with torch.compiler.set_stance(stance):
            ours = gradients(compiled, inputs, dy)
        for a, b in zip(gradients(variant.call, inputs, dy), ours, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.slug)
def test_export_with_a_dynamic_dimension_and_reload(
    case: OpCase, tmp_path: Path, generator: torch.Generator, python: Any
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
    result = python(
        "import sys, torch\n"
        f"import profiling_lab.ops.{case.slug}\n"
        "model = torch.export.load(sys.argv[1] + '/model.pt2').module()\n"
        "x, expected = torch.load(sys.argv[1] + '/expected.pt')\n"
        "torch.testing.assert_close(model(x), expected)\n",
        str(tmp_path),
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_autocast_in_the_middle_of_a_network(
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator
) -> None:
    """Half-precision activations meet float32 weights: the usual case."""
    inputs = case.make_inputs(small(case), torch.float32, device, generator)
    half = torch.bfloat16
    expected = gradients(
        variant.reference, tuple(t.double() for t in inputs), torch.ones(small(case), device=device)
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
def test_autocast_leaves_float64_alone(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = case.make_inputs(small(case), torch.float64, CPU, generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = variant.call(*inputs)
    torch.testing.assert_close(y, variant.reference(*inputs))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_double_backward_is_refused(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = leaves(case.make_inputs(small(case), torch.float64, CPU, generator))
    (g,) = torch.autograd.grad(variant.call(*inputs).sin().sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match=f"{name_of(case)} is not twice differentiable"):
        torch.autograd.grad(g.sum(), inputs[:1])


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_forward_mode_is_refused(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    """torch would answer with a tangent of zeros."""
    inputs = case.make_inputs(small(case), torch.float64, CPU, generator)
    tangents = tuple(torch.ones_like(t) for t in inputs)
    with pytest.raises(RuntimeError, match=f"{name_of(case)} has no forward-mode derivative"):
        torch.func.jvp(variant.call, inputs, tangents)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(inputs[0], tangents[0])
        with pytest.raises(RuntimeError, match="has no forward-mode derivative"):
            variant.call(dual, *inputs[1:])
        variant.call(*inputs)  # without a tangent there is nothing to lose


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_functional_grad_is_right_or_loud(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    """torch.func.grad cannot enter a custom op in every release; what it must never do is answer wrongly."""
    inputs = case.make_inputs(small(case), torch.float64, CPU, generator)
    expected = gradients(variant.reference, inputs, torch.ones(small(case)))[1]
    try:
        ours = torch.func.grad(lambda x: variant.call(x, *inputs[1:]).sum())(inputs[0])
    except RuntimeError as error:
        assert "setup_context" in str(error)
    else:
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_vmap_equals_a_loop(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    batches = [case.make_inputs(small(case), torch.float64, CPU, generator) for _ in range(3)]
    stacked = tuple(torch.stack(same, dim=1) for same in zip(*batches, strict=True))
    ours = torch.func.vmap(variant.call, in_dims=1, out_dims=0)(*stacked)
    torch.testing.assert_close(ours, torch.stack([variant.call(*inputs) for inputs in batches]))
    shared = batches[0][1:]
    over_x = torch.func.vmap(lambda x: variant.call(x, *shared), in_dims=1)(stacked[0])
    torch.testing.assert_close(over_x, torch.stack([variant.call(inputs[0], *shared) for inputs in batches]))


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_checkpoint(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    from torch.utils.checkpoint import checkpoint

    inputs = case.make_inputs(small(case), torch.float64, CPU, generator)
    dy = torch.randn(small(case), generator=generator, dtype=torch.float64)

    def recomputed(*args: Tensor) -> Any:
        return checkpoint(variant.call, *args, use_reentrant=False)

    for a, b in zip(gradients(variant.call, inputs, dy), gradients(recomputed, inputs, dy), strict=True):
        assert torch.equal(a, b)


def test_ddp_averages_the_gradients(python: Any) -> None:
    result = python(Path(__file__).with_name("ddp_workers.py"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split() == list(OPS)


# Modules, memory, threads


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
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert "16" in repr(module)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_every_reference_is_given_back(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    """A handle that the library forgot to free would keep the tensor and its Python object alive."""
    inputs = leaves(case.make_inputs(small(case), torch.float32, CPU, generator))
    y = variant.call(*inputs)
    y.sum().backward()
    with pytest.raises(ValueError):  # and also when a check throws
        variant.call(inputs[0], inputs[1].double(), *inputs[2:])
    alive = [weakref.ref(t) for t in (y, *inputs, *(t.grad for t in inputs))]
    del y, inputs
    gc.collect()
    assert [i for i, reference in enumerate(alive) if reference() is not None] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_memory_does_not_grow(case: OpCase, variant: Variant, generator: torch.Generator) -> None:
    inputs = case.make_inputs(small(case), torch.float32, CPU, generator)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def many(calls: int) -> None:
        for _ in range(calls):
            gradients(variant.call, inputs, inputs[0])

    many(300)
    before = resident_bytes()
    many(1000)
    assert resident_bytes() - before < 1_000_000  # a kilobyte a call


# Refusals


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_wrong_dtypes_and_devices_are_one_sentence(
    case: OpCase, variant: Variant, generator: torch.Generator
) -> None:
    inputs = case.make_inputs(small(case), torch.float32, CPU, generator)
    with pytest.raises(ValueError, match=rf"^{name_of(case)}: .*\bhas dtype \S+ but .* has dtype \S+$"):
        variant.call(inputs[0], inputs[1].double(), *inputs[2:])
    if variant.custom:
        with pytest.raises(
            ValueError, match=rf"^{name_of(case)}: dtype int64 is not supported on the CPU; expected "
        ):
            variant.call(*(t.long() for t in inputs))
        with pytest.raises(TypeError, match=rf"^{name_of(case)} expected tensors, got list$"):
            variant.call([1.0], *inputs[1:])


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_cuda_tensor_without_cuda_kernels(
    case: OpCase, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build without nvcc, and a tensor that only claims to be on a GPU: the refusal needs neither."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from profiling_lab.ops import _registration

    monkeypatch.setattr(_registration, "_HAS_CUDA_KERNELS", False)
    real = case.make_inputs(small(case), torch.float32, CPU, torch.Generator())
    with FakeTensorMode():
        inputs = tuple(torch.empty(t.shape, device="cuda") for t in real)
        with pytest.raises(
            RuntimeError, match=f"^{name_of(case)} got a CUDA tensor, but this profiling_lab was built wit"
        ):
            variant.call(*inputs)
