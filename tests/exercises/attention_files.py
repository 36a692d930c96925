# SPDX-License-Identifier: Apache-2.0
"""Made recordings and reports of E32 to E35: the real names and launches of their kernels, times and counts
chosen here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders import TraceBuilder

US = 1_000
GPU = "Test GPU"
SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
COLUMNS = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
COLUMNS = (*COLUMNS, "Block Size", "Grid Size", "Device", "CC")


@dataclass(frozen=True)
class Made:
    """One kernel of a made program: its launch, its time, and its metrics."""

    kernel: str
    grid: tuple[int, int, int]
    us: float
    metrics: Mapping[str, float]
    threads: int = 256
    shared: int = 1024
    registers: int = 32
    line: str = "/home/learner/run.py:22 attend"


def occupancy(by_shared: int, by_registers: int, pct: float, shared: int) -> dict[str, float]:
    limits = {"blocks": 32, "registers": by_registers, "shared_mem": by_shared, "warps": 8}
    return {
        **{f"launch__occupancy_limit_{name}": value for name, value in limits.items()},
        "sm__maximum_warps_per_active_cycle_pct": pct,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 0.99 * pct,
        "launch__shared_mem_per_block": shared,
    }


def loads(sectors: float, used: float, dram: float) -> dict[str, float]:
    return {
        SECTORS: sectors,
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct": used,
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": dram,
    }


def work(active: float, reductions: int, instructions: int) -> dict[str, float]:
    return {
        "sm__cycles_active.avg": active,
        "sm__cycles_elapsed.avg": 1e6,
        "device__attribute_multiprocessor_count": 132,
        "smsp__inst_executed_op_global_red.sum": reductions,
        "smsp__inst_executed.sum": instructions,
    }


MADE = {
    "low-memory-throughput": (
        Made("scores_kernel", (16, 1024, 1), 1500, loads(31.5, 12.6, 17.0)),
        Made("mix_kernel", (1024, 1, 1), 380, loads(9.1, 97.0, 72.0)),
        Made("softmax_kernel", (1024, 1, 1), 20, loads(4.0, 100.0, 11.0)),
    ),
    "low-occupancy": (
        Made("attend_kernel", (1024, 1, 1), 4000, occupancy(1, 5, 12.5, 136192), shared=135168),
    ),
    "long-kernel": (
        Made("attend_kernel", (32, 1, 1), 4000, work(2.4e5, 0, 10**7), shared=8192),
        Made("entropy_kernel", (256, 32, 1), 1200, work(9e5, 65536, 10**6)),
        Made("pages_kernel", (128, 1, 1), 800, work(9e5, 0, 4 * 10**6)),
    ),
}
"""of the starters: the kernel that takes most of the time first"""
REPAIRED = {
    "low-memory-throughput": (
        Made("mix_kernel", (1024, 1, 1), 380, loads(9.1, 97.0, 72.0)),
        Made("scores_kernel", (16, 1024, 1), 330, loads(15.0, 100.0, 75.0)),
        Made("softmax_kernel", (1024, 1, 1), 20, loads(4.0, 100.0, 11.0)),
    ),
    "low-occupancy": (Made("attend_kernel", (1024, 1, 1), 1300, occupancy(32, 4, 50.0, 5184)),),
    "long-kernel": (
        Made("part_kernel", (32, 32, 1), 380, work(9e5, 0, 10**7)),
        Made("combine_kernel", (32, 1, 1), 5, work(9e5, 0, 10**7)),
    ),
}


def attention_trace(path: Path, line: Callable[[str], int], solved: bool = False, shift: int = 0) -> Path:
    """A recording of E32's train.py. `line` finds a line by its text; `shift` moves all of them."""
    path.unlink(missing_ok=True)
    builder = TraceBuilder()

    def launch(kernel: str, us: float, text: str, function: str) -> None:
        where = f"/home/learner/train.py:{line(text) + shift} SelfAttention.{function}"
        builder.launch(kernel, int(US * us), stack=where)

    elementwise = "void at::native::vectorized_elementwise_kernel<4, at::native::{}<float>>(int)"
    for _ in range(5):
        launch("sgemm", 300, "self.project(x)", "forward")
        if solved:
            launch("attention_fwd_sm90_kernel", 300, "def attend", "attend")
            continue
        launch("nvjet_gemm", 500, "scores = q @", "attend")
        launch(elementwise.format("DivFunctor"), 500, "scores / math", "attend")
        launch(elementwise.format("MaskedFill"), 900, "masked_fill(later", "attend")
        launch("void softmax_warp_forward<float>(int)", 400, "F.softmax", "attend")
        launch("nvjet_gemm", 500, "weights @ v", "attend")
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name=GPU)
    return builder.write(path)


def made_trace(slug: str, path: Path, kernels: tuple[Made, ...] | None = None, slower: float = 1.0) -> Path:
    path.unlink(missing_ok=True)
    builder = TraceBuilder()
    for _ in range(10):
        for made in kernels or MADE[slug]:
            names = {
                "demangledName": builder.string(f"{made.kernel}(const float *, int)"),
                "shortName": builder.string(made.kernel),
                "registersPerThread": made.registers,
                "staticSharedMemory": 0,
                "dynamicSharedMemory": made.shared,
            }
            sizes = (*made.grid, made.threads, 1, 1)
            names |= dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), sizes, strict=True))
            ns = int(US * made.us * (slower if made.kernel == MADE[slug][0].kernel else 1.0))
            table = "CUPTI_ACTIVITY_KIND_KERNEL"
            builder.operation(table, ns, names, api="cudaLaunchKernel_v7000", stack=made.line)
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name=GPU)
    return builder.write(path)


def made_report(slug: str, path: Path, kernels: tuple[Made, ...] | None = None, **changes: float) -> Path:
    """`changes`: metrics of the planted kernel, by the end of their names."""
    rows = []
    for number, made in enumerate(kernels or MADE[slug]):
        metrics: dict[str, Any] = {"gpu__time_duration.sum": US * made.us, **made.metrics}
        if number == 0:
            for end, value in changes.items():
                (name,) = (
                    each for each in metrics if each.rpartition(".")[0].endswith(end) or each.endswith(end)
                )
                metrics[name] = value
        rows.append((number, made, metrics))
    names = list(dict.fromkeys(name for _, _, metrics in rows for name in metrics))
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL)
    table.writerow([*COLUMNS, *names])
    table.writerow([""] * (len(COLUMNS) + len(names)))
    for number, made, metrics in rows:
        own = [number, 1, "python3.12", "localhost", f"{made.kernel}(const float *, int)", 1, 7]
        own += [f"({made.threads}, 1, 1)", str(made.grid), 0, "9.0"]
        table.writerow([*own, *(metrics.get(name, "n/a") for name in names)])
    path.write_text(f"==PROF== Connected to process 1\n{text.getvalue()}")
    return path


UNITS = tuple(
    f"{each}__throughput.avg.pct_of_peak_sustained_elapsed" for each in ("dram", "lts", "l1tex", "sm")
)


def rung(kernel: str, us: float, megabytes: float, *busy: float) -> Made:
    moved = {"dram__bytes_read.sum": 0.75e6 * megabytes, "dram__bytes_write.sum": 0.25e6 * megabytes}
    return Made(kernel, (32, 16, 1), us, {**moved, **dict(zip(UNITS, busy, strict=True))})


RUNGS = (
    rung("naive_scores_kernel", 7000, 150, 1, 30, 95, 60),
    rung("ladder_softmax_kernel", 150, 270, 50, 40, 30, 20),
    rung("naive_values_kernel", 6000, 150, 1, 30, 90, 60),
    rung("tiled_scores_kernel", 400, 150, 10, 20, 70, 80),
    rung("ladder_softmax_kernel", 150, 270, 50, 40, 30, 20),
    rung("tiled_values_kernel", 380, 150, 10, 20, 70, 80),
    rung("ladder_flash_kernel", 420, 17, 1, 5, 75, 78),
    rung("attention_fwd_sm90_kernel", 25, 17, 15, 20, 30, 60),
)
