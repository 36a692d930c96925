# SPDX-License-Identifier: Apache-2.0
"""The counter sees every operator, and what it watches does what it did without it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from profiling_lab.work import WorkCounter  # noqa: E402
from profiling_lab.work.kinds import KINDS, kind_of  # noqa: E402
from profiling_lab.work.triton_kernels import Watch, work_of_kernel  # noqa: E402


def names(counter: WorkCounter) -> list[str]:
    return [one.name.removeprefix("aten::") for one in counter.calls]


def test_forward_and_backward_with_times_and_threads() -> None:
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    before = time.time_ns()
    with WorkCounter() as counter:
        (x @ w).sum().backward()
    assert [name for name in names(counter) if name == "mm"] == ["mm", "mm"]
    assert all(before <= one.start_ns <= one.end_ns <= time.time_ns() for one in counter.calls)
    assert counter.calls[0].thread == threading.get_native_id()


def test_inference_mode_sees_what_composite_operators_consist_of() -> None:
    layer = torch.nn.Linear(8, 8)
    with torch.inference_mode(), WorkCounter() as counter:
        layer(torch.zeros(4, 8))
    assert "addmm" in names(counter) and "linear" not in names(counter)


def test_a_subclass_of_tensor_is_counted_by_what_it_consists_of() -> None:
    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            first, second = (a.inner if isinstance(a, cls) else a for a in args)
            return cls(torch.cat([func(part, second) for part in first.split(2)]))

    with WorkCounter() as counter:
        out = Wrapped(torch.ones(4, 8)) @ torch.ones(8, 2)
    assert names(counter).count("mm") == 2 and names(counter).count("cat") == 1
    assert torch.equal(out.inner, torch.full((4, 2), 8.0))


def test_other_devices_are_left_out() -> None:
    with WorkCounter(device="cuda") as counter:
        torch.ones(4) + 1
    assert counter.calls == []


def test_inactive_it_counts_nothing() -> None:
    with WorkCounter() as counter:
        counter.is_active = False
        torch.ones(4) + 1
    assert counter.calls == []


def test_an_error_of_the_program_stays_what_it_was() -> None:
    with WorkCounter(), pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_an_operator_of_the_program() -> None:
    @torch.library.custom_op("counted::twice", mutates_args={"out"})
    def twice(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x * 2)

    with WorkCounter() as counter:
        twice(torch.ones(8), torch.ones(8))
    (work,) = (one.work for one in counter.calls if one.name == "counted::twice")
    assert (work.read_bytes, work.written_bytes, work.kind) == (64, 32, "other")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "matmul"),
        ("aten::mul", "elementwise"),
        ("aten::convolution_backward", "convolution backward"),
        ("aten::cudnn_batch_norm_backward", "batch norm backward"),
        ("aten::native_layer_norm", "normalisation"),
        ("profiling_lab::layer_norm_gelu_backward", "normalisation backward"),
        ("profiling_lab::attention_bwd", "attention backward"),
        ("profiling_lab::heavy_layer_slow", "matmul"),
        ("aten::_log_softmax_backward_data", "softmax backward"),
        ("aten::embedding_dense_backward", "index backward"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::sum", "reduction"),
        ("aten::maximum", "elementwise"),
        ("aten::max_pool2d_with_indices", "pooling"),
        ("aten::copy_", "copy"),
        ("aten::cat", "copy"),
        ("aten::zero_", "fill"),
        ("aten::nll_loss_forward", "loss"),
        ("theirs::fused", "other"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind and kind in KINDS


def test_arguments_of_a_generated_kernel() -> None:
    given = {
        "in_ptr0": torch.zeros(8),
        "in_out_ptr0": torch.zeros(16),
        "out_ptr0": torch.zeros(4),
        "xnumel": 8,
    }
    work = work_of_kernel(given)
    assert (work.read_bytes, work.written_bytes, work.kind) == (32 + 64, 64 + 16, "triton")


def test_arguments_of_a_kernel_of_the_program() -> None:
    given = {"x_ptr": torch.zeros(8), "y_ptr": torch.zeros(8)}
    assert work_of_kernel(given).bytes == 64
    assert work_of_kernel(given, changed=["y_ptr"]).written_bytes == 32


def test_launches_of_triton_are_watched_and_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType, SimpleNamespace

    class JITFunction:
        arg_names = ("x_ptr", "y_ptr", "n")
        __name__ = "scaled"

        def run(self, *args: Any, **kwargs: Any) -> str:
            return "launched"

    module: Any = ModuleType("triton.runtime.jit")
    module.JITFunction = JITFunction
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    original = JITFunction.__dict__["run"]
    seen: list[Any] = []
    watch = Watch(lambda *what: seen.append(what))
    watch.begin()
    watch.begin()  # nested, as a composite operator has it
    watch.end()
    assert JITFunction().run(torch.zeros(8), torch.zeros(8), 8, grid=(1,), warmup=False) == "launched"
    assert JITFunction().run(SimpleNamespace(), grid=(1,), warmup=True) == "launched"
    watch.end()
    assert JITFunction.__dict__["run"] is original
    ((name, start_ns, end_ns, work),) = seen
    assert name == "scaled" and start_ns <= end_ns and work.bytes == 64


def test_compiled_code_is_compiled_and_its_products_are_counted() -> None:
    import torch._dynamo

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: (x @ w).relu() + 1, backend="aot_eager")
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    compiled(x, w)
    with WorkCounter() as counter:
        compiled(x, w)
        torch.compile(lambda x, w: (x @ w).exp(), backend="aot_eager")(x, w)
    assert names(counter).count("mm") == 2
