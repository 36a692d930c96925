# SPDX-License-Identifier: Apache-2.0
"""What is particular to heavy_layer: its words, its planted defects, and the way it folds its matrices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from profiling_lab.ops import HeavyLayer, heavy_layer
from profiling_lab.ops.heavy_layer import CASE, Implementation, reference

FOLDER = Path(__file__).resolve().parents[2] / "csrc" / "ops" / "heavy_layer"
IMPLEMENTATIONS: tuple[Implementation, ...] = ("slow", "loop", "fast")


def inputs_of(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Tensor, ...]:
    return CASE.make_inputs(shape, dtype, torch.device(device), torch.Generator().manual_seed(7))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({1: (5, 4)}, "heavy_layer: w1 has shape [5, 4] but x has last dimension 8"),
        ({2: (8,)}, "heavy_layer: w2 has shape [8] but x has last dimension 8"),
        ({3: (8, 8, 1)}, "heavy_layer: w3 has shape [8, 8, 1] but x has last dimension 8"),
        ({4: (1,)}, "heavy_layer: b has shape [1] but x has last dimension 8"),
        ({4: (8, 1)}, "heavy_layer: b has shape [8, 1] but x has last dimension 8"),
        ({0: ()}, "heavy_layer: x has no dimensions, expected at least one"),
    ],
    ids=["w1 not square", "w2 a vector", "w3 of rank 3", "b too short", "b of rank 2", "x a scalar"],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_wrong_shapes_are_one_sentence(
    implementation: Implementation, change: dict[int, tuple[int, ...]], sentence: str, device: str
) -> None:
    """On meta tensors the Python checks speak, on real ones the C++ checks: the same words."""
    inputs = list(inputs_of(3, 8))
    for index, shape in change.items():
        inputs[index] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        heavy_layer(*(t.to(device) for t in inputs), implementation=implementation)


def test_wrong_dtype_is_one_sentence_in_both_languages() -> None:
    inputs = list(inputs_of(3, 8, dtype=torch.float32))
    inputs[3] = inputs[3].half()
    for device in ("cpu", "meta"):
        for implementation in IMPLEMENTATIONS:
            with pytest.raises(
                ValueError, match=r"^heavy_layer: w3 has dtype float16 but x has dtype float32$"
            ):
                heavy_layer(*(t.to(device) for t in inputs), implementation=implementation)


def test_the_loop_takes_float64_on_every_device() -> None:
    """It runs torch's own ops, and is the reference in float64. No rows: fake tensors cannot be indexed."""
    with FakeTensorMode():
        shapes = ((0, 8), (8, 8), (8, 8), (8, 8), (8,))
        on_gpu = [torch.empty(shape, device="cuda", dtype=torch.float64) for shape in shapes]
        assert heavy_layer(*on_gpu, implementation="loop").dtype is torch.float64


def test_unknown_implementation() -> None:
    sentence = r"implementation is 'quick', expected one of \('slow', 'loop', 'fast'\)$"
    with pytest.raises(ValueError, match="^heavy_layer: " + sentence):
        heavy_layer(*inputs_of(3, 8), implementation="quick")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="^HeavyLayer: " + sentence):
        HeavyLayer(8, "quick")  # type: ignore[arg-type]


def test_all_implementations_agree_with_gradients() -> None:
    results = []
    for call in (reference, *(variant.call for variant in CASE.variants)):
        inputs = [t.requires_grad_() for t in inputs_of(3, 11, 16)]
        y = call(*inputs)
        results.append((y, *torch.autograd.grad(y.sin().sum(), inputs)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("rows", [1, 16, 17, 19, 18, 40, 200])
def test_folding_changes_nothing_but_the_work(rows: int) -> None:
    """d = 16: with more rows than that the matrices go first."""
    inputs = [t.requires_grad_() for t in inputs_of(rows, 16)]
    ours, theirs = heavy_layer(*inputs), reference(*inputs)
    torch.testing.assert_close(ours, theirs)
    dy = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(theirs, inputs, dy), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("rows", [9, 40])
def test_what_the_forward_keeps_is_what_the_backward_would_multiply(device: str, rows: int) -> None:
    """The op as torch.compile sees it keeps nothing; on the CPU it even has the same bits."""
    inputs = [t.requires_grad_() for t in inputs_of(rows, 16, dtype=torch.float32, device=device)]
    dy = torch.linspace(-1, 1, rows * 16, device=device).view(rows, 16)
    kept = torch.autograd.grad(heavy_layer(*inputs), inputs, dy)
    again = torch.autograd.grad(torch.ops.profiling_lab.heavy_layer_fast(*inputs), inputs, dy)
    for a, b in zip(kept, again, strict=True):
        torch.testing.assert_close(a, b)
        assert device == "cuda" or torch.equal(a, b)


def products(implementation: Implementation, rows: int, d: int) -> int:
    """How many matrix multiplications torch is asked for in forward and backward."""
    from torch.profiler import ProfilerActivity, profile

    inputs = [t.requires_grad_() for t in inputs_of(rows, d)]
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        heavy_layer(*inputs, implementation=implementation).sum().backward()
    return sum(event.name == "aten::mm" for event in recorded.events())


def test_the_number_of_products_is_what_the_text_says() -> None:
    assert products("fast", 100, 16) == 3 + 6  # folded: M by W2 W3, which are kept, then one; six
    assert products("fast", 10, 16) == 3 + 6  # the chain: three, of which two are kept; six
    assert products("slow", 100, 16) == 8  # the forward is the kernel's own


def test_same_bits_for_any_number_of_threads() -> None:
    """Our own loops share out work so that the result does not depend on who does it."""
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            inputs = [t.requires_grad_() for t in inputs_of(700, 64, dtype=torch.float32)]
            y = heavy_layer(*inputs, implementation="slow")
            (db,) = torch.autograd.grad(y, inputs[4:], torch.ones_like(y))
            results.append((y.detach(), db))
    finally:
        torch.set_num_threads(before)
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_deterministic_mode_refuses_nothing_and_gives_the_same_bits(python: Any, device: str) -> None:
    """In a process of its own: cuBLAS reads its setting once."""
    program = (
        "import os, sys; os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'\n"
        "import torch\n"
        "from profiling_lab.ops.heavy_layer import CASE, heavy_layer\n"
        "torch.use_deterministic_algorithms(True)\n"
        "for shape in ((300, 64), (40, 64)):\n"
        "    inputs = CASE.make_inputs(shape, torch.float32, torch.device(sys.argv[1]), torch.Generator())\n"
        "    leaves = [t.requires_grad_() for t in inputs]\n"
        "    runs = [torch.autograd.grad(heavy_layer(*leaves).square().sum(), leaves) for _ in range(3)]\n"
        "    print(all(torch.equal(a, b) for one in runs for a, b in zip(one, runs[0])))\n"
    )
    result = python(program, device)
    assert result.stdout.split() == ["True", "True"], result.stderr


@pytest.mark.parametrize("implementation", ["slow", "fast"])
def test_autocast_casts_everything(implementation: Implementation) -> None:
    inputs = [t.requires_grad_() for t in inputs_of(9, 8, dtype=torch.float32)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = heavy_layer(*inputs, implementation=implementation)
    assert y.dtype == torch.bfloat16
    halves = [t.detach().bfloat16() for t in inputs]
    assert torch.equal(y, heavy_layer(*halves, implementation=implementation))
    y.sum().backward()
    assert all(t.grad is not None and t.grad.dtype == torch.float32 for t in inputs)


def test_saturated_tanh_has_no_gradient_and_no_nan() -> None:
    inputs = [t.requires_grad_() for t in inputs_of(4, 8)]
    y = heavy_layer(*inputs[:4], inputs[4].detach().fill_(1e4).requires_grad_())
    assert torch.equal(y, torch.ones_like(y))
    (dx,) = torch.autograd.grad(y.sum(), inputs[:1])
    assert torch.equal(dx, torch.zeros_like(dx))


def test_nan_and_infinity_go_through() -> None:
    for implementation in IMPLEMENTATIONS:
        for value in (float("nan"), float("inf")):
            inputs = inputs_of(4, 8, dtype=torch.float32)
            inputs[0][2, 3] = value
            y = heavy_layer(*inputs, implementation=implementation)
            expected = reference(*inputs)
            assert torch.equal(torch.isnan(y), torch.isnan(expected))
            assert not torch.isnan(y[[0, 1, 3]]).any()


def test_module_shows_what_it_is() -> None:
    module = HeavyLayer(12, "slow")
    assert repr(module) == "HeavyLayer(d_model=12, implementation='slow')"
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "w1": (12, 12),
        "w2": (12, 12),
        "w3": (12, 12),
        "b": (12,),
    }
    x = torch.randn(2, 5, 12)
    expected = reference(x, module.w1, module.w2, module.w3, module.b)
    torch.testing.assert_close(module(x), expected)


def test_knows_what_torch_may_do_with_float32(python_warm: Any) -> None:
    """By the old name, the new one or the function, each in its own process: torch refuses to mix them."""
    question = (
        "import sys, torch\n"
        "from profiling_lab.ops.heavy_layer import _tf32_is_allowed\n"
        "exec(sys.argv[1])\n"
        "print(_tf32_is_allowed())\n"
    )
    for setting, allowed in (
        ("", False),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", True),
        ("torch.set_float32_matmul_precision('high'); torch.set_float32_matmul_precision('highest')", False),
        (
            "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision='ieee'",
            False,
        ),
    ):
        result = python_warm(question, setting)
        assert result.stdout.strip() == str(allowed), (setting, result.stderr)


def test_the_answer_becomes_part_of_a_compiled_graph() -> None:
    torch._dynamo.reset()
    inputs = inputs_of(9, 8, dtype=torch.float32)
    flags: list[Any] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        flags.extend(node.args[-1] for node in graph.graph.nodes if "heavy_layer_fast" in str(node.target))
        return graph

    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        y = torch.compile(heavy_layer, backend=backend, fullgraph=True)(*inputs)
        torch.testing.assert_close(y, reference(*inputs))
    assert flags == [False, True]


# The defects. The exercise needs them; whoever removes one makes a good kernel and breaks the lesson.


def test_every_defect_is_in_the_source_and_in_the_readme() -> None:
    source = (FOLDER / "slow.cu").read_text()
    numbers = [int(n) for n in re.findall(r"// DEFECT\((\d)\):", source)]
    assert sorted(numbers) == [1, 2, 3, 4, 5]
    readme = (FOLDER / "README.md").read_text()
    assert [int(n) for n in re.findall(r"^\| DEFECT\((\d)\)", readme, re.M)] == [1, 2, 3, 4, 5]


def test_the_defects_are_real() -> None:
    source = re.sub(r"//.*", "", (FOLDER / "slow.cu").read_text())
    assert source.count("__global__") == 1, "one kernel, or the longest-kernel method finds parts of it"
    assert "row = blockIdx.x" in source and "<<<static_cast<unsigned>(params.rows)," in source  # (1)
    stride = re.search(r"kColumnStride = (\d+)", source)
    assert stride is not None and int(stride[1]) >= 8, "neighbouring threads must not share a sector"  # (2)
    assert "#pragma unroll 1\n" in source and source.count("fmaf(") == 1  # (3)
    assert "__shared__ float buffer[2][kSlowMaxWidth];" in source  # (4)
    assert not re.search(r"wmma|mma_|wgmma|cp_async", source)  # (5)


def time_ratio(slow: Any, fast: Any) -> float:
    """How much longer slow takes: the median of interleaved runs, by CUDA events."""

    def once(call: Any) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    for _ in range(3):
        once(slow), once(fast)
    ratios = sorted(once(slow) / once(fast) for _ in range(9))
    return ratios[4]


@pytest.mark.gpu
def test_slow_is_slow_on_the_gpu() -> None:
    """The demo's shape. Less than ten times the fix would be no lesson; the real factor is larger."""
    inputs = inputs_of(32, 128, 512, dtype=torch.float32, device="cuda")
    ratio = time_ratio(
        lambda: heavy_layer(*inputs, implementation="slow"),
        lambda: heavy_layer(*inputs, implementation="fast"),
    )
    assert ratio > 10


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_demos_shape_against_float64(dtype: torch.dtype, within: Any) -> None:
    inputs = inputs_of(32, 128, 512, dtype=dtype, device="cuda")
    dy = torch.randn(32, 128, 512, generator=torch.Generator().manual_seed(9)).to("cuda", dtype)

    def run(call: Any, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        wanted = [t.detach().requires_grad_() for t in tensors]
        y = call(*wanted)
        return (y.detach(), *torch.autograd.grad(y, wanted, dy.to(y.dtype)))

    truth = run(reference, tuple(t.double() for t in inputs))
    yardstick = run(reference, inputs)
    for variant in CASE.variants:
        if not variant.custom:
            continue
        ours = run(variant.call, inputs)
        for i, (a, b, c) in enumerate(zip(ours, truth, yardstick, strict=True)):
            within(a, b, c, 2 if i == 0 else 3, f"{variant.name}, result {i}")


@pytest.mark.gpu
def test_slow_names_the_widest_row_it_takes() -> None:
    wide = 6145
    x, w = torch.zeros(1, wide, device="cuda"), torch.zeros(1, 1, device="cuda").expand(wide, wide)
    sentence = "^heavy_layer: the slow kernel takes a last dimension of at most 6144, but x has 6145$"
    with pytest.raises(ValueError, match=sentence):
        heavy_layer(x, w, w, w, x[0], implementation="slow")
    assert heavy_layer(x, w, w, w, x[0]).shape == (1, wide)


@pytest.mark.gpu
def test_float64_on_the_gpu_is_refused() -> None:
    sentence = "^heavy_layer: dtype float64 is not supported on CUDA; expected float32, bfloat16 or float16$"
    with pytest.raises(ValueError, match=sentence):
        heavy_layer(*inputs_of(3, 8, device="cuda"))
