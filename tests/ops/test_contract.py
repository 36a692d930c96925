# SPDX-License-Identifier: Apache-2.0
"""What every op promises, whatever it computes: values, layouts, memory, and words for what it refuses.

A new op is tested here, in test_contract_torch.py and in test_cuda.py by its line in OPS alone.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from profiling_lab.ops import OPS
from profiling_lab.ops.case import OpCase, TestShape, Variant

CASES: list[OpCase] = [import_module(f"profiling_lab.ops.{slug}").CASE for slug in OPS]
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
    gradients: Any,
) -> None:
    if dtype_name not in case.dtypes(device):
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
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator, gradients: Any
) -> None:
    inputs = case.make_inputs(case.small_shape, getattr(torch, case.dtypes(device)[0]), device, generator)
    dy = torch.randn(case.small_shape, generator=generator).to(device)
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
    case: OpCase,
    variant: Variant,
    device: torch.device,
    generator: torch.Generator,
    within: Any,
    gradients: Any,
    leaves: Any,
) -> None:
    inputs = case.make_inputs(case.small_shape, getattr(torch, case.dtypes(device)[0]), device, generator)
    dy = torch.randn(case.small_shape, generator=generator).to(device)
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
def test_broadcast_gradient_and_input(
    case: OpCase, variant: Variant, device: torch.device, gradients: Any, leaves: Any
) -> None:
    """sum().backward() hands the op a gradient whose strides are all zero; expand does so with inputs."""
    inputs = case.make_inputs(
        case.small_shape, getattr(torch, case.dtypes(device)[0]), device, torch.Generator().manual_seed(1)
    )
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
def test_gradients_of_some_inputs_only(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any
) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float64, CPU, generator)
    # Dense, as in `full`: BLAS may sum a broadcast gradient in another order.
    ones = torch.ones(case.small_shape)
    full = gradients(variant.call, inputs, ones)
    for i in range(len(inputs)):
        mixed = [t.clone().requires_grad_(k == i) for k, t in enumerate(inputs)]
        variant.call(*mixed).backward(ones.to(torch.float64))
        for k, tensor in enumerate(mixed):
            assert (tensor.grad is not None) == (k == i)
        assert torch.equal(mixed[i].grad, full[1 + i])  # type: ignore[arg-type]


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_gradcheck(case: OpCase, variant: Variant, generator: torch.Generator, leaves: Any) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float64, CPU, generator)
    assert torch.autograd.gradcheck(variant.call, leaves(inputs), fast_mode=math.prod(case.small_shape) > 200)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_no_grad_and_inference_mode(
    case: OpCase, variant: Variant, generator: torch.Generator, leaves: Any
) -> None:
    inputs = leaves(case.make_inputs(case.small_shape, torch.float32, CPU, generator))
    expected = variant.call(*inputs)
    assert expected.requires_grad
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            y = variant.call(*inputs)
        assert not y.requires_grad
        assert torch.equal(y, expected)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_inputs_stay_as_they_are(
    case: OpCase, variant: Variant, device: torch.device, generator: torch.Generator, leaves: Any
) -> None:
    """Neither the forward nor the backward writes into what it reads, dense or not."""
    dtype = getattr(torch, case.dtypes(device)[0])
    given = case.make_inputs(case.small_shape, dtype, device, generator)
    for transposed in (False, True):
        inputs = leaves(given)
        if transposed:
            inputs = tuple(
                t.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for t in inputs
            )
        y = variant.call(*inputs)
        dy = torch.randn(y.shape, generator=generator).to(y)
        tensors = (*inputs, y, dy)
        before, versions = [t.detach().clone() for t in tensors], [t._version for t in tensors]
        torch.autograd.grad(y, inputs, dy, retain_graph=True)
        torch.autograd.grad(y, inputs, dy)
        for tensor, same, version in zip(tensors, before, versions, strict=True):
            assert torch.equal(tensor, same) and tensor._version == version
        for tensor, same in zip(inputs, given, strict=True):
            assert torch.equal(tensor, same)


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_an_input_that_was_changed_since_is_noticed(
    case: OpCase, variant: Variant, generator: torch.Generator, leaves: Any
) -> None:
    """Each tensor that the backward reads is kept by save_for_backward, which knows its version."""
    for i in range(3):
        inputs = leaves(case.make_inputs(case.small_shape, torch.float64, CPU, generator))
        y = variant.call(*inputs)
        with torch.no_grad():
            inputs[i].mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_saved_tensor_hooks_are_asked(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any
) -> None:
    """torch.autograd.graph.save_on_cpu and what compresses activations rely on them."""
    inputs = case.make_inputs(case.small_shape, torch.float64, CPU, generator)
    dy = torch.randn(case.small_shape, generator=generator, dtype=torch.float64)
    expected = gradients(variant.call, inputs, dy)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> tuple[str, Tensor]:
        packed.append(tensor)
        return "packed", tensor.clone()

    def unpack(kept: tuple[str, Tensor]) -> Tensor:
        assert kept[0] == "packed"
        return kept[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        found = gradients(variant.call, inputs, dy)
    shapes = [tuple(t.shape) for t in packed]
    assert all(tuple(t.shape) in shapes for t in inputs[:2]), "the inputs are among what is kept"
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: torch.zeros_like(kept[1])):
        lost = gradients(variant.call, inputs, dy)
    assert any(not torch.equal(a, b) for a, b in zip(expected[1:], lost[1:], strict=True))


# Memory


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_every_reference_is_given_back(
    case: OpCase, variant: Variant, generator: torch.Generator, leaves: Any
) -> None:
    """A handle that the library forgot to free would keep the tensor and its Python object alive."""
    inputs = leaves(case.make_inputs(case.small_shape, torch.float32, CPU, generator))
    y = variant.call(*inputs)
    y.sum().backward()
    with pytest.raises(ValueError):  # and also when a check throws
        variant.call(inputs[0], inputs[1].double(), *inputs[2:])
    alive = [weakref.ref(t) for t in (y, *inputs, *(t.grad for t in inputs))]
    del y, inputs
    gc.collect()
    assert [i for i, reference in enumerate(alive) if reference() is not None] == []


def allocated_bytes(file: Path) -> int:
    """What malloc has given out and not got back, over all its arenas; the C library's own count.

    The resident set grows with other threads' arenas, too, and with what a loaded machine makes it keep.
    """
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(libc.fopen(os.fsencode(file), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    root = ElementTree.parse(file).getroot()

    def total(tag: str, kind: str) -> int:
        found = root.find(f"{tag}[@type='{kind}']")
        assert found is not None
        return int(found.attrib["size"])

    free = total("total", "fast") + total("total", "rest")
    return total("system", "current") + total("total", "mmap") - free


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's malloc_info")
@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_memory_does_not_grow(
    case: OpCase, variant: Variant, generator: torch.Generator, gradients: Any, tmp_path: Path
) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float32, CPU, generator)

    def many(calls: int) -> None:
        for _ in range(calls):
            gradients(variant.call, inputs, inputs[0])

    many(100)
    gc.collect()
    before = allocated_bytes(tmp_path / "malloc.xml")
    many(400)
    gc.collect()
    # The least that malloc gives for one object is 32 bytes a call. The file above keeps 4096 for its buffer.
    assert allocated_bytes(tmp_path / "malloc.xml") - before < 400 * 24


# Refusals


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_wrong_dtypes_and_devices_are_one_sentence(
    case: OpCase, variant: Variant, generator: torch.Generator
) -> None:
    inputs = case.make_inputs(case.small_shape, torch.float32, CPU, generator)
    with pytest.raises(ValueError, match=rf"^{case.name}: .*\bhas dtype \S+ but .* has dtype \S+$"):
        variant.call(inputs[0], inputs[1].double(), *inputs[2:])
    if variant.custom:
        with pytest.raises(
            ValueError, match=rf"^{case.name}: dtype int64 is not supported on the CPU; expected "
        ):
            variant.call(*(t.long() for t in inputs))
        with pytest.raises(TypeError, match=rf"^{case.name} expected tensors, got list$"):
            variant.call([1.0], *inputs[1:])


@pytest.mark.parametrize(("case", "variant"), CUSTOM)
def test_cuda_tensor_without_cuda_kernels(
    case: OpCase, variant: Variant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build without nvcc, and a tensor that only claims to be on a GPU: the refusal needs neither."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from profiling_lab.ops import _calls

    monkeypatch.setattr(_calls, "_HAS_CUDA_KERNELS", False)
    real = case.make_inputs(case.small_shape, torch.float32, CPU, torch.Generator())
    with FakeTensorMode():
        inputs = tuple(torch.empty(t.shape, device="cuda") for t in real)
        with pytest.raises(
            RuntimeError, match=f"^{case.name} got a CUDA tensor, but this profiling_lab was built wit"
        ):
            variant.call(*inputs)
