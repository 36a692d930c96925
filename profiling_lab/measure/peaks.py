# SPDX-License-Identifier: Apache-2.0
"""The measured peak rates of this machine. A share of the roof is relative to these, from the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiling_lab.errors import UsageError
from profiling_lab.measure.timing import compare


def copy_rate(size_bytes: int = 4 << 30, *, device: str = "cuda", rounds: int = 20) -> float:
    """Bytes per second, read plus written, of a copy of `size_bytes` within the device's memory."""
    import torch

    source = torch.empty(size_bytes // 2, dtype=torch.bfloat16, device=device).normal_()
    target = torch.empty_like(source)
    timing = compare({"copy": lambda: target.copy_(source)}, device=device, rounds=rounds, cold=False)["copy"]
    moved_bytes = 2 * int(source.numel()) * int(source.itemsize)
    return moved_bytes / (timing.median_ns * 1e-9)


def matmul_rate(dtype: str = "bfloat16", n: int = 8192, *, device: str = "cuda", rounds: int = 20) -> float:
    """Floating-point operations per second (2 n^3 each) of the product of two random n x n matrices.

    Random, because a GPU at its power limit runs faster on zeros. float32 uses the precision torch is set to.
    """
    import torch

    try:
        element = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[dtype]
    except KeyError:
        raise UsageError(f"matmul_rate: dtype is {dtype!r}, expected bfloat16, float16 or float32") from None
    a, b = (torch.empty(n, n, dtype=element, device=device).normal_() for _ in range(2))
    out = torch.empty_like(a)
    timing = compare({"matmul": lambda: torch.mm(a, b, out=out)}, device=device, rounds=rounds, cold=False)[
        "matmul"
    ]
    return 2 * n**3 / (timing.median_ns * 1e-9)


def gpu_of(device: int = 0) -> str:
    """The name of a CUDA device. Raises UsageError if torch has no such device."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not 0 <= device < count:
        raise UsageError(f"expected a CUDA device below {count}, got {device}: there is nothing to measure")
    return str(torch.cuda.get_device_name(device))


def measure(device: int = 0) -> dict[str, float]:
    """The rates of one GPU, by name with unit: memory_bytes_per_s, bfloat16_flops_per_s, launch_ns, ...

    Takes some seconds on a data-centre GPU. What this GPU or torch cannot do has no entry. Raises UsageError
    if torch has no such device.
    """
    import torch

    gpu_of(device)
    name = f"cuda:{device}"
    free = torch.cuda.mem_get_info(device)[0]
    size = min(2 << 30, free // 4)
    probes: dict[str, Callable[[], float]] = {
        "memory_bytes_per_s": lambda: copy_rate(size, device=name, rounds=10),
        **{f"{kind}_flops_per_s": _product_probe(kind, name) for kind in _PRODUCTS},
        "l2_bytes_per_s": lambda: _l2_rate(name),
        "launch_ns": lambda: _launch_ns(name),
        "host_to_device_bytes_per_s": lambda: _link_rate(name, to_device=True),
        "device_to_host_bytes_per_s": lambda: _link_rate(name, to_device=False),
    }
    if torch.cuda.device_count() > 1 and torch.cuda.can_device_access_peer(device, 1 - min(device, 1)):
        probes["device_to_device_bytes_per_s"] = lambda: _peer_rate(device, 1 - min(device, 1))
    rates: dict[str, float] = {}
    for what, probe in probes.items():
        try:
            rates[what] = probe()
        except (RuntimeError, AttributeError, TypeError):
            if what == "memory_bytes_per_s":
                raise
        torch.cuda.empty_cache()
    return rates


_PRODUCTS = ("bfloat16", "float16", "tf32", "float32", "float64", "float8", "int8")


def _product_probe(kind: str, device: str) -> Callable[[], float]:
    return lambda: _product_rate(kind, device)


def _product_rate(kind: str, device: str) -> float:
    """The best of several sizes and samples, in the arithmetic that `kind` names, whatever torch is set to.

    The best: long products run at the power limit, which those of a program need not reach.
    """
    import torch

    sizes = (2048, 4096) if kind in ("float32", "float64") else (4096, 8192)
    before = torch.get_float32_matmul_precision()
    try:
        if kind in ("tf32", "float32"):
            torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        calls = {str(n): _product(kind, n, device) for n in sizes}
        timings = compare(calls, device=device, rounds=15, cold=False)
    finally:
        torch.set_float32_matmul_precision(before)
    return max(2 * n**3 / (min(timings[str(n)].samples_ns) * 1e-9) for n in sizes)


def _product(kind: str, n: int, device: str) -> Callable[[], Any]:
    import torch

    a, b = (torch.randn(n, n, device=device) for _ in range(2))
    if kind == "float8":
        low, high = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        scale = torch.ones((), device=device)
        multiply: Any = torch._scaled_mm
        return lambda: multiply(low, high, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    if kind == "int8":
        x, y = (t.mul(30).to(torch.int8) for t in (a, b))
        integers: Any = torch._int_mm
        return lambda: integers(x, y.t())
    dtype = torch.float32 if kind == "tf32" else getattr(torch, kind)
    a, b = a.to(dtype), b.to(dtype)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _l2_rate(device: str) -> float:
    """Read plus written, of copies that stay in half of the L2 cache, without the time of an empty copy."""
    import torch

    cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    source = torch.randn(max(cache // 4, 1 << 20) // 4, device=device)
    target = torch.empty_like(source)
    timings = compare(
        {"l2": lambda: target.copy_(source), "empty": lambda: target[:1].copy_(source[:1])},
        device=device,
        mode="graph",
        rounds=10,
        cold=False,
        calls_per_sample=50,
    )
    moving_ns = timings["l2"].median_ns - timings["empty"].median_ns
    if moving_ns <= 0:
        raise RuntimeError("the copies took no longer than empty ones")
    return 2 * int(source.nbytes) / (moving_ns * 1e-9)


def _launch_ns(device: str) -> float:
    """The time from one tiny kernel to the next where the host does nothing but launch."""
    import torch

    x = torch.zeros(1, device=device)
    timing = compare(
        {"launch": lambda: x.zero_()},
        device=device,
        mode="stream",
        rounds=20,
        cold=False,
        calls_per_sample=200,
    )["launch"]
    return float(timing.median_ns)


def _link_rate(device: str, *, to_device: bool, size_bytes: int = 256 << 20) -> float:
    import torch

    there = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    here = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    target, source = (there, here) if to_device else (here, there)
    timing = compare(
        {"link": lambda: target.copy_(source, non_blocking=True)}, device=device, rounds=10, cold=False
    )["link"]
    return size_bytes / (timing.median_ns * 1e-9)


def _peer_rate(device: int, other: int, size_bytes: int = 1 << 30) -> float:
    import torch

    source = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")
    target = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{other}")
    timing = compare({"peer": lambda: target.copy_(source)}, device=f"cuda:{device}", rounds=10, cold=False)[
        "peer"
    ]
    return size_bytes / (timing.median_ns * 1e-9)
