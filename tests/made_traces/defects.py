# SPDX-License-Identifier: Apache-2.0
"""Random programs with one planted defect, as they are and mended, on the machine of rig.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from made_traces.rig import PAGEABLE, PINNED, Rig

US, MS = 1_000, 1_000_000
STEPS, WARM = 12, 3
GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_NNT"
ELEMENTWISE = "vectorized_elementwise_kernel<4, gelu>"

Action = Callable[[Rig, bool], None]
"""one part of a step, mended or not"""


@dataclass(frozen=True)
class Defect:
    causes: tuple[str, ...]
    """rules or causes that name it"""
    line: int
    """one of its lines; those of a function begin with the same digit"""
    actions: tuple[tuple[str, Action], ...]
    """where in a step ("begin", "layer", "end"), and what"""


def layers(pick: random.Random) -> Callable[[Rig, int], None]:
    """An ordinary layer; programs differ in whether the host or the GPU is the slower one."""
    heavy = pick.choice((0.1, 0.5, 1.0, 3.0, 10.0))
    kernels = [
        (GEMM if pick.random() < 0.5 else ELEMENTWISE, 20 + number, round(heavy * pick.randrange(4, 40) * US))
        for number in range(pick.randrange(2, 8))
    ]

    def layer(rig: Rig, number: int) -> None:
        for name, line, ns in kernels:
            rig.kernel(name, line, ns)

    return layer


def _sync(pick: random.Random) -> Defect:
    return Defect(("sync_calls",), 41, (("layer", lambda rig, mended: None if mended else rig.sync(41)),))


def _item(pick: random.Random) -> Defect:
    return Defect(("implicit_sync",), 42, (("layer", lambda rig, mended: None if mended else rig.item(42)),))


def _host(pick: random.Random) -> Defect:
    ns = round(pick.uniform(2, 40) * MS)
    return Defect(("host_work",), 43, (("begin", lambda rig, mended: None if mended else rig.host(43, ns)),))


def _loader(pick: random.Random) -> Defect:
    ns = round(pick.uniform(2, 40) * MS)
    load: Action = lambda rig, mended: None if mended else rig.host(44, ns, loading=True)  # noqa: E731
    return Defect(("dataloader",), 44, (("begin", load),))


def _collects(pick: random.Random) -> Defect:
    ns = round(pick.uniform(1, 20) * MS)
    act: Action = lambda rig, mended: None if mended else rig.pause("gc generation 2", 45, ns)  # noqa: E731
    return Defect(("garbage_collection",), 45, (("end", act),))


def _compiles(pick: random.Random) -> Defect:
    ns = round(pick.uniform(5, 80) * MS)
    act: Action = lambda rig, mended: None if mended else rig.pause("torch.compile f", 46, ns)  # noqa: E731
    return Defect(("recompilation",), 46, (("begin", act),))


def _slower(cause: str, line: int, slow: str, fast: str, nominal: float) -> Callable[[random.Random], Defect]:
    """A kernel of each layer takes longer than another would. nominal: by the rule's own factor, and some."""

    def planted(pick: random.Random) -> Defect:
        ns = round(pick.uniform(20, 400) * US)
        left = nominal * pick.uniform(0.7, 1.4)

        def act(rig: Rig, mended: bool) -> None:
            rig.kernel(fast if mended else slow, line, round(ns * left) if mended else ns)

        return Defect((cause,), line, (("layer", act),))

    return planted


def _gone(cause: str, line: int, name: str, with_product: bool = False) -> Callable[[random.Random], Defect]:
    """A kernel of each layer that nothing needs."""

    def planted(pick: random.Random) -> Defect:
        ns, count = round(pick.uniform(5, 300) * US), pick.randrange(1, 5)

        def act(rig: Rig, mended: bool) -> None:
            for _ in range(0 if mended else count):
                rig.kernel(name, line, ns)

        return Defect((cause,), line, (("layer", act),))

    return planted


def _attention(pick: random.Random) -> Defect:
    product, between = round(pick.uniform(20, 100) * US), round(pick.uniform(30, 300) * US)
    fused = pick.uniform(0.5, 1.5)

    def act(rig: Rig, mended: bool) -> None:
        if mended:
            rig.kernel("flash_fwd_kernel<64>", 51, round(2 * product * fused))
            return
        rig.kernel(GEMM, 51, product)
        rig.kernel("vectorized_elementwise_kernel<4, MulFunctor>", 51, between)
        rig.kernel("softmax_warp_forward<float, 10>", 51, between)
        rig.kernel(GEMM, 51, product)

    return Defect(("unfused_attention",), 51, (("layer", act),))


def _tiny(pick: random.Random) -> Defect:
    count, ns = pick.randrange(20, 200), round(pick.uniform(1.5, 7) * US)
    left = pick.uniform(0.02, 0.5)

    def act(rig: Rig, mended: bool) -> None:
        for _ in range(max(round(count * left), 1) if mended else count):
            rig.kernel("vectorized_elementwise_kernel<4, AddFunctor>", 52, ns)

    return Defect(("tiny_kernels",), 52, (("end", act),))


def _pageable(pick: random.Random) -> Defect:
    size, slow = round(pick.uniform(4, 200) * 1e6), pick.uniform(2, 8)

    def act(rig: Rig, mended: bool) -> None:
        rig.copy("HtoD", 53, size, 25.0 if mended else slow, PINNED if mended else PAGEABLE)

    return Defect(("pageable_copy", "blocked_copy"), 53, (("begin", act),))


def _in_line(pick: random.Random) -> Defect:
    size = round(pick.uniform(4, 200) * 1e6)

    def act(rig: Rig, mended: bool) -> None:
        rig.copy("HtoD", 54, size, 25.0, PINNED, stream=13 if mended else 7)

    return Defect(("serial_copy",), 54, (("begin", act),))


def _churn(pick: random.Random) -> Defect:
    ns = round(pick.uniform(20, 300) * US)
    return Defect(
        ("allocation_churn",), 55, (("layer", lambda rig, mended: None if mended else rig.allocate(55, ns)),)
    )


def _chain(pick: random.Random) -> Defect:
    ns, count = round(pick.uniform(10, 150) * US), pick.randrange(3, 12)

    def act(rig: Rig, mended: bool) -> None:
        for number in range(1 if mended else count):
            rig.kernel(f"vectorized_elementwise_kernel<4, F{number}>", 56, ns)

    return Defect(("memory_bound",), 56, (("layer", act),))


def _download(pick: random.Random) -> Defect:
    size, slow = round(pick.uniform(2, 60) * 1e6), pick.uniform(2, 8)

    def act(rig: Rig, mended: bool) -> None:
        rig.copy("DtoH", 57, size, 25.0 if mended else slow, PINNED if mended else PAGEABLE)
        if not mended:
            rig.sync(57)

    return Defect(("pageable_copy", "sync_calls", "host_work"), 57, (("end", act),))


def _loop_of_reads(pick: random.Random) -> Defect:
    """Each result is read, and looked at by a function in Python."""
    count, ns = pick.randrange(10, 60), round(pick.uniform(0.05, 1) * MS)

    def act(rig: Rig, mended: bool) -> None:
        for _ in range(0 if mended else count):
            rig.copy("DtoH", 58, 2_048, 5.0)
            rig.sync(58)
            rig.host(81, ns, via=58)

    return Defect(("host_work", "sync_calls", "implicit_sync"), 81, (("end", act),))


def _on_the_host(pick: random.Random) -> Defect:
    """Gradients are copied to the host, an optimizer works there, and weights are copied back."""
    tensors, size = pick.randrange(4, 20), round(pick.uniform(0.2, 8) * 1e6)
    slow, ns = pick.uniform(2, 8), round(pick.uniform(1, 40) * MS)

    def act(rig: Rig, mended: bool) -> None:
        if mended:
            rig.kernel("multi_tensor_apply_kernel<adam>", 91, round(tensors * size / 1_000))
            return
        for _ in range(tensors):
            rig.copy("DtoH", 91, size, slow, PAGEABLE)
            rig.sync(91)
        rig.host(92, ns)
        for _ in range(tensors):
            rig.copy("HtoD", 93, size, slow, PAGEABLE)

    return Defect(("host_work", "pageable_copy", "sync_calls", "blocked_copy"), 91, (("after", act),))


def _streams(pick: random.Random) -> Defect:
    """Two branches of a layer on two streams that wait for each other, though neither needs the other."""
    ns = round(pick.uniform(30, 400) * US)

    def act(rig: Rig, mended: bool) -> None:
        rig.kernel(GEMM, 71, ns)
        if not mended:
            rig.wait_event(72, 13, on=7)
        rig.kernel(GEMM, 73, ns, stream=13)
        if not mended:
            rig.wait_event(72, 7, on=13)

    return Defect(("stream_chain",), 72, (("layer", act),))


DEFECTS: dict[str, Callable[[random.Random], Defect]] = {
    "waits": _sync,
    "reads": _item,
    "host": _host,
    "loader": _loader,
    "collects": _collects,
    "compiles": _compiles,
    "fp32": _slower("tensor_cores", 47, "ampere_sgemm_128x64_nn", GEMM, 0.15),
    "double": _slower("double_precision", 48, "gemm<double>_d884gemm", GEMM, 0.1),
    "fourier": _slower("slow_fourier", 49, "multi_bluestein_fft<512>", "vector_fft<512>", 0.2),
    "layout": _gone("layout_copies", 50, "elementwise_kernel<128, direct_copy_kernel_cuda>"),
    "attention": _attention,
    "tiny": _tiny,
    "pageable": _pageable,
    "in line": _in_line,
    "churn": _churn,
    "chain": _chain,
    "download": _download,
    "loop of reads": _loop_of_reads,
    "on the host": _on_the_host,
    "streams": _streams,
}


def run(kind: str, seed: int, mended: bool) -> tuple[Rig, Defect]:
    """A random program with this defect; the same seed gives the same program."""
    pick = random.Random(f"{kind} {seed}")
    defect = DEFECTS[kind](pick)
    layer, depth = layers(pick), pick.randrange(3, 20)
    trains, reads_loss, host_ns = (
        pick.random() < 0.5,
        pick.random() < 0.3,
        round(pick.choice((0, 20, 200)) * US),
    )
    rig = Rig(dispatch_ns=round(pick.uniform(3, 12) * US))
    for number in range(STEPS):
        begin_ns = rig.now_ns

        def act(where: str) -> None:
            for at, action in defect.actions:
                if at == where:
                    action(rig, mended)

        rig.host(10, host_ns)
        rig.tape = [] if trains else None
        act("begin")
        for each in range(depth):
            layer(rig, each)
            act("layer")
        act("end")
        rig.backward()
        act("after")
        for _ in range(4):
            rig.kernel("multi_tensor_apply_kernel<adam>", 60, 20 * US)
        if reads_loss:
            rig.item(61)
        rig.step(number, begin_ns)
    return rig, defect
