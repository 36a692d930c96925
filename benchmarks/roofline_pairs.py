# SPDX-License-Identifier: Apache-2.0
"""Operators with shapes, for benchmarks/roofline_accuracy.py: each is made, and then called, on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

DEVICE = "cuda"
Run = Callable[[], object]
BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@dataclass(frozen=True)
class Pair:
    """An operator and a shape. `make` builds the inputs and returns the call."""

    kind: str
    op: str
    shape: str
    dtype: str
    make: Callable[[], Run]


def rand(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> Any:
    return torch.randn(*shape, device=DEVICE, dtype=dtype).requires_grad_(grad)


def ints(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, device=DEVICE)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def backward(forward: Run, inputs: list[Any]) -> Run:
    out: Any = forward()
    out = out[0] if isinstance(out, tuple) else out
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def both(kind: str, op: str, shape: str, dtype: torch.dtype, make: Callable[[bool], Any]) -> Iterator[Pair]:
    """Forward and backward. make(grad) returns the function and its inputs."""

    def go_forward() -> Run:
        function, inputs = make(False)
        return lambda: function(*inputs)

    def go_backward() -> Run:
        function, inputs = make(True)
        wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        return backward(lambda: function(*inputs), wanted)

    yield Pair(kind, op, shape, short(dtype), go_forward)
    yield Pair(kind, f"{op} backward", shape, short(dtype), go_backward)


def products() -> Iterator[Pair]:
    def mm(m: int, k: int, n: int, dtype: torch.dtype) -> Run:
        a, b = rand(m, k, dtype=dtype), rand(k, n, dtype=dtype)
        return lambda: a @ b

    def linear(rows: int, k: int, n: int, dtype: torch.dtype) -> Run:
        x, w, b = rand(rows, k, dtype=dtype), rand(n, k, dtype=dtype), rand(n, dtype=dtype)
        return lambda: F.linear(x, w, b)

    def bmm(b: int, m: int, k: int, n: int, dtype: torch.dtype) -> Run:
        x, y = rand(b, m, k, dtype=dtype), rand(b, k, n, dtype=dtype)
        return lambda: torch.bmm(x, y)

    sizes = [
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        (16384, 1024, 4096),
        (32768, 768, 768),
        (2048, 16384, 2048),
    ]
    thin = [(16, 8192, 8192), (64, 4096, 16384), (256, 8192, 4096)]
    for m, k, n in [*sizes, *thin]:
        yield Pair("matmul", "mm", f"{m}x{k}x{n}", "bfloat16", partial(mm, m, k, n, BF16))
    for m, k, n in sizes[:3]:
        yield Pair("matmul", "mm", f"{m}x{k}x{n}", "float16", partial(mm, m, k, n, FP16))
    for m, k, n in [(4096, 4096, 4096), (8192, 1024, 4096), (2048, 8192, 2048)]:
        yield Pair("matmul", "mm", f"{m}x{k}x{n}", "float32", partial(mm, m, k, n, FP32))
        yield Pair(
            "matmul", "mm tf32", f"{m}x{k}x{n}", "float32", partial(in_tf32, partial(mm, m, k, n, FP32))
        )
    yield Pair("matmul", "mm", "2048x2048x2048", "float64", partial(mm, 2048, 2048, 2048, FP64))
    for rows, k, n in [(32768, 768, 3072), (32768, 3072, 768), (16384, 1024, 50304), (16384, 4096, 4096)]:
        yield Pair("matmul", "linear", f"{rows}x{k}x{n}", "bfloat16", partial(linear, rows, k, n, BF16))
    for b, m, k, n in [(256, 1024, 64, 1024), (256, 1024, 1024, 64), (64, 2048, 128, 2048)]:
        yield Pair("matmul", "bmm", f"{b}x{m}x{k}x{n}", "bfloat16", partial(bmm, b, m, k, n, BF16))
    yield Pair(
        "matmul", "mv", "32768x16384", "bfloat16", lambda: partial(torch.mv, rand(32768, 16384), rand(16384))
    )

    def model(grad: bool) -> Any:
        return F.linear, (rand(32768, 1024, grad=grad), rand(4096, 1024, grad=grad))

    yield from both("matmul", "linear without bias", "32768x1024x4096", BF16, model)


def in_tf32(make: Callable[[], Run]) -> Run:
    call = make()

    def run() -> object:
        torch.set_float32_matmul_precision("high")
        try:
            return call()
        finally:
            torch.set_float32_matmul_precision("highest")

    return run


def convolutions() -> Iterator[Pair]:
    shapes: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("3x3, 64 of 56x56", (128, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
        ("3x3, 128 of 28x28", (256, 128, 28, 28), (128, 128, 3, 3), {"padding": 1}),
        ("3x3, 256 of 28x28", (128, 256, 28, 28), (256, 256, 3, 3), {"padding": 1}),
        ("1x1, 256 to 64 of 56x56", (128, 256, 56, 56), (64, 256, 1, 1), {}),
        ("1x1, 512 to 2048 of 14x14", (256, 512, 14, 14), (2048, 512, 1, 1), {}),
        ("7x7 stride 2, 3 to 64 of 224x224", (128, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
        ("3x3 stride 2, 128 to 256", (128, 128, 56, 56), (256, 128, 3, 3), {"stride": 2, "padding": 1}),
        ("16x16 stride 16, 3 to 768 of 224x224", (256, 3, 224, 224), (768, 3, 16, 16), {"stride": 16}),
    ]  # fmt: skip
    for name, x, w, options in shapes:
        for dtype, layout in ((BF16, torch.channels_last), (FP32, torch.contiguous_format)):
            if dtype is FP32 and name[0] != "3":
                continue

            def make(
                grad: bool, x: Any = x, w: Any = w, o: Any = options, d: Any = dtype, m: Any = layout
            ) -> Any:
                data = rand(*x, dtype=d).to(memory_format=m).requires_grad_(grad)
                weight = rand(*w, dtype=d).to(memory_format=m).requires_grad_(grad)
                return partial(F.conv2d, **o), (data, weight)

            order = "channels last" if layout is torch.channels_last else "channels first"
            yield from both("convolution", f"conv2d {order}", name, dtype, make)

    def depthwise(grad: bool) -> Any:
        x, w = rand(128, 192, 56, 56, grad=grad), rand(192, 1, 3, 3, grad=grad)
        return partial(F.conv2d, padding=1, groups=192), (x, w)

    def transposed(grad: bool) -> Any:
        x, w = rand(64, 128, 64, 64, grad=grad), rand(128, 64, 2, 2, grad=grad)
        return partial(F.conv_transpose2d, stride=2), (x, w)

    yield from both("convolution", "conv2d depthwise", "3x3, 192 of 56x56", BF16, depthwise)
    yield from both("convolution", "conv_transpose2d", "2x2 stride 2, 128 to 64 of 64x64", BF16, transposed)


def attentions() -> Iterator[Pair]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }

    def attend(backend: Any, causal: bool, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    for name, backend in backends.items():
        for batch, heads, rows, dim, causal in (
            (32, 16, 1024, 64, False),
            (16, 16, 2048, 128, True),
            (8, 16, 4096, 64, True),
        ):

            def make(
                grad: bool, b: Any = backend, s: Any = (batch, heads, rows, dim), c: bool = causal
            ) -> Any:
                return partial(attend, b, c), tuple(rand(*s, grad=grad) for _ in range(3))

            shape = f"{batch}x{heads}x{rows}x{dim}{' causal' if causal else ''}"
            yield from both("attention", f"sdpa {name}", shape, BF16, make)

    def ours(grad: bool) -> Any:
        from profiling_lab.ops import flash_attention

        return partial(flash_attention, causal=True), tuple(
            rand(8, 4096, 16, 128, grad=grad) for _ in range(3)
        )

    yield from both("attention", "flash_attention", "8x4096x16x128 causal", BF16, ours)


BIG = (16384, 16384)  # 512 MB in bf16, 1 GB in fp32: many times the L2 cache
SIZE = "x".join(map(str, BIG))


def elementwise() -> Iterator[Pair]:
    def unary(function: Any, dtype: torch.dtype) -> Run:
        x = rand(*BIG, dtype=dtype)
        return lambda: function(x)

    def binary(function: Any, dtype: torch.dtype) -> Run:
        x, y = rand(*BIG, dtype=dtype), rand(*BIG, dtype=dtype)
        return lambda: function(x, y)

    unaries = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "exp": torch.exp}
    unaries |= {
        "sigmoid": torch.sigmoid,
        "mul by a number": lambda x: x * 2.0,
        "clamp": lambda x: x.clamp(-1, 1),
    }
    for name, function in unaries.items():
        yield Pair("elementwise", name, SIZE, "bfloat16", partial(unary, function, BF16))
    for name in ("relu", "exp"):
        yield Pair("elementwise", name, SIZE, "float32", partial(unary, unaries[name], FP32))
    for name, function in {
        "add": torch.add,
        "mul": torch.mul,
        "maximum": torch.maximum,
        "eq": torch.eq,
    }.items():
        yield Pair("elementwise", name, SIZE, "bfloat16", partial(binary, function, BF16))
    yield Pair("elementwise", "add", SIZE, "float32", partial(binary, torch.add, FP32))
    yield Pair("elementwise", "add in place", SIZE, "bfloat16", partial(binary, lambda x, y: x.add_(y), BF16))
    yield Pair("elementwise", "mul with itself", SIZE, "bfloat16", partial(unary, lambda x: x * x, BF16))

    def biased() -> Run:
        x, y = rand(*BIG), rand(BIG[1])
        return lambda: x + y

    def chosen() -> Run:
        mask, x, y = rand(*BIG) > 0, rand(*BIG), rand(*BIG)
        return lambda: torch.where(mask, x, y)

    def filled() -> Run:
        mask, x = rand(*BIG) > 0, rand(*BIG)
        return lambda: x.masked_fill(mask, 0.0)

    def three() -> Run:
        x, y, z = (rand(*BIG) for _ in range(3))
        return lambda: torch.addcmul(x, y, z)

    for name, make in {
        "add a bias": biased,
        "where": chosen,
        "masked_fill": filled,
        "addcmul": three,
    }.items():
        yield Pair("elementwise", name, SIZE, "bfloat16", make)
    for name in ("gelu", "silu", "relu", "tanh"):

        def make_backward(function: Any = unaries[name]) -> Run:
            x = rand(*BIG, grad=True)
            return backward(lambda: function(x), [x])

        yield Pair("elementwise", f"{name} backward", SIZE, "bfloat16", make_backward)


def copies() -> Iterator[Pair]:

    def of(function: Any, dtype: torch.dtype = BF16) -> Callable[[], Run]:
        def make() -> Run:
            x = rand(*BIG, dtype=dtype)
            return lambda: function(x)

        return make

    many: dict[str, Any] = {
        "clone of a part": lambda x: x[:, :12288].clone(),
        "transpose": lambda x: x.t().contiguous(),
        "permute": lambda x: x.view(256, 64, 128, 128).permute(0, 2, 1, 3).contiguous(),
        "to float32": lambda x: x.float(),
        "cat": lambda x: torch.cat([x[:8192], x[8192:]]),
        "cat of columns": lambda x: torch.cat([x[:, :8192], x[:, 8192:]], dim=1),
        "every second column": lambda x: x[:, ::2].contiguous(),
        "every 64th column": lambda x: x[:, ::64].contiguous(),
        "every second row": lambda x: x[::2].contiguous(),
        "half of the columns": lambda x: x[:, :8192].contiguous(),
        "expand": lambda x: x[:1].expand(16384, -1).contiguous(),
        "roll": lambda x: x.roll(1, 0),
        "flip": lambda x: x.flip(0),
        "tril": torch.tril,
        "pad": lambda x: F.pad(x, (0, 64)),
        "repeat_interleave": lambda x: x[:4096].repeat_interleave(2, dim=0),
    }
    for name, function in many.items():
        yield Pair("copy", name, SIZE, "bfloat16", of(function))
    yield Pair("copy", "to bfloat16", SIZE, "float32", of(lambda x: x.bfloat16(), FP32))


def reductions() -> Iterator[Pair]:
    many: dict[str, Any] = {
        "sum": torch.sum,
        "sum of rows": lambda x: x.sum(0),
        "sum of columns": lambda x: x.sum(1),
        "mean": torch.mean,
        "max": torch.max,
        "amax of columns": lambda x: x.amax(1),
        "argmax of columns": lambda x: x.argmax(1),
        "var of columns": lambda x: x.var(1),
        "norm": lambda x: torch.linalg.vector_norm(x),
        "logsumexp": lambda x: x.logsumexp(1),
    }
    for name, function in many.items():

        def make(function: Any = function) -> Run:
            x = rand(*BIG)
            return lambda: function(x)

        yield Pair("reduction", name, SIZE, "bfloat16", make)


def over_rows() -> Iterator[Pair]:
    """Softmax and normalisations."""
    for rows, width in ((262144, 1024), (8192, 50304), (65536, 4096)):
        for name, function in {"softmax": F.softmax, "log_softmax": F.log_softmax}.items():

            def make(grad: bool, f: Any = function, s: Any = (rows, width)) -> Any:
                return partial(f, dim=-1), (rand(*s, grad=grad),)

            if name == "softmax" or width > 50000:
                yield from both("softmax", name, f"{rows}x{width}", BF16, make)
    for rows, width, dtype in ((262144, 768, BF16), (131072, 4096, BF16), (131072, 1024, FP32)):

        def norm(grad: bool, s: Any = (rows, width), d: Any = dtype) -> Any:
            w, b = (rand(s[1], dtype=d, grad=grad) for _ in range(2))
            x = rand(*s, dtype=d, grad=grad)
            return (lambda x, w, b: F.layer_norm(x, (s[1],), w, b)), (x, w, b)

        yield from both("normalisation", "layer_norm", f"{rows}x{width}", dtype, norm)

    def rms(grad: bool) -> Any:
        return (lambda x, w: F.rms_norm(x, (4096,), w)), (rand(65536, 4096, grad=grad), rand(4096, grad=grad))

    def group(grad: bool) -> Any:
        x, w, b = rand(64, 256, 64, 64, grad=grad), rand(256, grad=grad), rand(256, grad=grad)
        return (lambda x, w, b: F.group_norm(x, 32, w, b)), (x, w, b)

    def ours(grad: bool) -> Any:
        from profiling_lab.ops import layer_norm_gelu

        return layer_norm_gelu, (rand(131072, 1024, grad=grad), rand(1024, grad=grad), rand(1024, grad=grad))

    yield from both("normalisation", "rms_norm", "65536x4096", BF16, rms)
    yield from both("normalisation", "group_norm", "64x256x64x64", BF16, group)
    yield from both("normalisation", "layer_norm_gelu", "131072x1024", BF16, ours)
    for layout in (torch.contiguous_format, torch.channels_last):

        def batch(grad: bool, m: Any = layout) -> Any:
            x = rand(128, 256, 56, 56).to(memory_format=m).requires_grad_(grad)
            w, b = (rand(256, dtype=FP32, grad=grad) for _ in range(2))
            return (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)), (x, w, b)

        order = "channels last" if layout is torch.channels_last else "channels first"
        yield from both("batch norm", f"batch_norm {order}", "128x256x56x56", BF16, batch)


def others() -> Iterator[Pair]:
    """Losses, pooling, indices, scans, random numbers, fills, optimizers, recurrent layers."""

    def entropy(grad: bool) -> Any:
        return F.nll_loss, (rand(16384, 50304, dtype=FP32, grad=grad), ints(50304, 16384))

    def square(grad: bool) -> Any:
        return F.mse_loss, (rand(*BIG, grad=grad), rand(*BIG))

    def crossed(grad: bool) -> Any:
        return F.cross_entropy, (rand(16384, 50304, grad=grad), ints(50304, 16384))

    yield from both("loss", "nll_loss", "16384x50304", FP32, entropy)
    yield from both("loss", "mse_loss", "16384x16384", BF16, square)
    yield from both("loss", "cross_entropy", "16384x50304", BF16, crossed)

    pools: dict[str, Any] = {
        "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "upsample nearest": lambda x: F.interpolate(x, scale_factor=2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
    }
    for name, function in pools.items():

        def pool(grad: bool, f: Any = function) -> Any:
            return f, (rand(128, 128, 112, 112, grad=grad),)

        yield from both("pooling", name, "128x128x112x112", BF16, pool)

    def embedded(grad: bool) -> Any:
        return (lambda i, w: F.embedding(i, w)), (ints(50304, 131072), rand(50304, 1024, grad=grad))

    yield from both("index", "embedding", "131072 of 50304x1024", BF16, embedded)

    def indexed(function: Any) -> Callable[[], Run]:
        def make() -> Run:
            x, rows = rand(262144, 1024), ints(262144, 131072)
            return lambda: function(x, rows)

        return make

    picks: dict[str, Any] = {
        "index_select": lambda x, rows: x.index_select(0, rows),
        "index": lambda x, rows: x[rows],
        "gather": lambda x, rows: x.gather(0, rows[:, None].expand(-1, 1024)),
        "index_add_": lambda x, rows: x.index_add_(0, rows, x[:131072].detach()),
        "index_put_": lambda x, rows: x.index_put_((rows,), x[:131072].detach()),
    }
    for name, function in picks.items():
        yield Pair("index", name, "131072 of 262144x1024", "bfloat16", indexed(function))

    def on_big(function: Any, dtype: torch.dtype = BF16) -> Callable[[], Run]:
        def make() -> Run:
            x = rand(*BIG, dtype=dtype)
            return lambda: function(x)

        return make

    yield Pair("scan", "cumsum of columns", SIZE, "bfloat16", on_big(lambda x: x.cumsum(1)))
    yield Pair("scan", "cumsum of rows", SIZE, "bfloat16", on_big(lambda x: x.cumsum(0)))
    yield Pair("sort", "sort", "16384x4096", "bfloat16", on_big(lambda x: x[:, :4096].contiguous().sort(-1)))
    yield Pair("sort", "topk", SIZE, "bfloat16", on_big(lambda x: x.topk(8, dim=-1)))
    yield Pair("random", "dropout", SIZE, "bfloat16", on_big(lambda x: F.dropout(x, 0.1)))
    yield Pair("random", "uniform_", SIZE, "bfloat16", on_big(lambda x: x.uniform_()))
    yield Pair("random", "randn_like", SIZE, "bfloat16", on_big(torch.randn_like))
    yield Pair("fill", "zeros_like", SIZE, "bfloat16", on_big(torch.zeros_like))
    yield Pair("fill", "fill_", SIZE, "bfloat16", on_big(lambda x: x.fill_(1.0)))
    yield Pair("fill", "full", SIZE, "float32", lambda: lambda: torch.full(BIG, 2.0, device=DEVICE))
    yield Pair("fill", "arange", "2^28", "int64", lambda: lambda: torch.arange(1 << 28, device=DEVICE))

    def optimizer(kind: Any, **options: Any) -> Callable[[], Run]:
        def make() -> Run:
            parameters = [torch.nn.Parameter(rand(4096, 4096, dtype=FP32)) for _ in range(4)]
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            made = kind(parameters, lr=1e-3, **options)
            return made.step

        return make

    yield Pair(
        "optimizer", "AdamW fused", "4 of 4096x4096", "float32", optimizer(torch.optim.AdamW, fused=True)
    )
    yield Pair(
        "optimizer", "AdamW foreach", "4 of 4096x4096", "float32", optimizer(torch.optim.AdamW, foreach=True)
    )
    yield Pair(
        "optimizer",
        "SGD fused",
        "4 of 4096x4096",
        "float32",
        optimizer(torch.optim.SGD, momentum=0.9, fused=True),
    )
    yield Pair(
        "optimizer",
        "SGD foreach",
        "4 of 4096x4096",
        "float32",
        optimizer(torch.optim.SGD, momentum=0.9, foreach=True),
    )

    def recurrent(kind: Any) -> Callable[[], Run]:
        def make() -> Run:
            layer = kind(1024, 1024, device=DEVICE, dtype=BF16)
            x = rand(8, 512, 1024)
            return lambda: layer(x)

        return make

    yield Pair("recurrent", "LSTM", "8 steps of 512x1024", "bfloat16", recurrent(torch.nn.LSTM))


def compiled() -> Iterator[Pair]:
    """Kernels that torch.compile generates; compiling takes seconds each."""

    def made(function: Any, inputs: Any) -> Callable[[], Run]:
        def make() -> Run:
            values, fast = inputs(), torch.compile(function)
            return lambda: fast(*values)

        return make

    def norm_gelu(x: Any, w: Any) -> Any:
        return F.gelu(F.layer_norm(x, (1024,), w))

    yield Pair("triton", "gelu(x + y) * z", "16384x16384", "bfloat16",
               made(lambda x, y, z: F.gelu(x + y) * z, lambda: [rand(*BIG) for _ in range(3)]))  # fmt: skip
    yield Pair("triton", "gelu(layer_norm(x))", "131072x1024", "bfloat16",
               made(norm_gelu, lambda: [rand(131072, 1024), rand(1024)]))  # fmt: skip


def pairs(with_compiled: bool = False) -> list[Pair]:
    parts = [products, convolutions, attentions, elementwise, copies, reductions, over_rows, others]
    parts += [compiled] if with_compiled else []
    return [pair for part in parts for pair in part()]
