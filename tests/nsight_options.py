# SPDX-License-Identifier: Apache-2.0
"""What Nsight Systems and Nsight Compute accept, as far as our pages use it, and a parser of their commands.

Options and values are those of NVIDIA's manuals: docs.nvidia.com/nsight-systems/UserGuide (profile, stats and
export command switch options) and docs.nvidia.com/nsight-compute/NsightComputeCli (2026.1). Where the tools
are installed, tests/docs/test_guide.py asks them.
"""

from __future__ import annotations

import re
import shlex

BOOLEAN = {"true", "false"}
NSYS: dict[str, dict[str, set[str] | None]] = {
    "profile": {
        "--trace": {"cuda", "nvtx", "osrt", "cublas", "cudnn", "mpi", "nccl", "python-gil", "none"},
        "--sample": {"process-tree", "system-wide", "none"},
        "--cpuctxsw": {"process-tree", "system-wide", "none"},
        "--python-backtrace": {"cuda", "none"},
        "--cudabacktrace": None,
        "--python-sampling": BOOLEAN,
        "--python-sampling-frequency": None,
        "--cuda-memory-usage": BOOLEAN,
        "--gpu-metrics-devices": None,
        "--pytorch": {"autograd-nvtx", "autograd-shapes-nvtx", "functions-trace"},
        "--capture-range": {"cudaProfilerApi", "nvtx", "none"},
        "--capture-range-end": {"stop", "stop-shutdown", "none"},
        "--duration": None,
        "--force-overwrite": BOOLEAN,
        "--output": None,
        "-o": None,
    },
    "stats": {"--report": None, "--force-export": BOOLEAN, "--format": None, "-o": None},
    "export": {
        "--type": {"sqlite", "jsonlines", "hdf", "arrow", "arrowdir", "parquetdir", "info"},
        "--include-json": BOOLEAN,
        "--include-blobs": BOOLEAN,
        "-o": None,
    },
}
"""Command -> option -> its values; None: any value."""

NCU = {
    "--set", "--section", "--metrics", "--kernel-name", "--kernel-id", "--launch-count", "--launch-skip",
    "--nvtx", "--nvtx-include", "--clock-control", "--cache-control", "--target-processes", "--import",
    "--csv", "--page", "--print-units", "--export", "-o", "--list-sets", "--list-sections",
    "--query-metrics", "--replay-mode",
}  # fmt: skip
NCU_FLAGS = {"--nvtx", "--csv", "--list-sets", "--list-sections", "--query-metrics"}
NCU_VALUES = {
    "--set": {"basic", "detailed", "full", "roofline"},
    "--section": {
        "SpeedOfLight", "SpeedOfLight_RooflineChart", "SpeedOfLight_HierarchicalSingleRooflineChart",
        "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats",
        "SchedulerStats", "SourceCounters", "InstructionStats",
    },
    "--clock-control": {"base", "boost", "none"},
    "--cache-control": {"all", "none"},
    "--page": {"details", "raw", "source", "session"},
    "--print-units": {"auto", "base"},
}  # fmt: skip

STALLS = {
    "long_scoreboard", "short_scoreboard", "lg_throttle", "mio_throttle", "math_pipe_throttle", "wait",
    "barrier", "not_selected",
}  # fmt: skip
METRICS = {
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum",
    "dram__bytes.sum.per_second",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
    "launch__registers_per_thread",
    "smsp__thread_inst_executed_per_inst_executed.ratio",
    *(f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in STALLS),
}


def problem(line: str) -> str | None:
    """What is wrong with a command line of nsys or ncu; None if nothing is."""
    tool, *words = shlex.split(line, comments=True)
    if tool in ("nsys-ui", "ncu-ui"):
        return None if len(words) == 1 else "expected one report"
    if tool == "nsys":
        return _nsys(words)
    return _ncu(words) if tool == "ncu" else f"unknown tool {tool}"


def _nsys(words: list[str]) -> str | None:
    command, *rest = words
    known = NSYS.get(command)
    if known is None:
        return f"no command nsys {command}"
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        if option not in known:
            return f"nsys {command} has no option {option}"
        if not equals:
            if option.startswith("--") or not rest:
                return f"{option} wants =VALUE"  # long options of nsys have their value after "="
            value = rest.pop(0)
        allowed = known[option]
        if wrong := set(value.split(",")) - allowed if allowed else set():
            return f"{option} has no value {', '.join(wrong)}"
    return None if rest else "expected a program or a report"


def _ncu(words: list[str]) -> str | None:
    listed = imported = False
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option not in NCU:
            return f"ncu has no option {option}"
        listed |= option.startswith(("--list", "--query"))
        imported |= option == "--import"
        if option in NCU_FLAGS:
            continue
        value = words.pop(0)
        if value not in NCU_VALUES.get(option, {value}):
            return f"{option} has no value {value}"
        if option == "--metrics" and (unknown := set(value.split(",")) - METRICS):
            return f"unknown metric {', '.join(unknown)}"
    if listed or imported:
        return f"unexpected {words[0]}" if words else None
    if not words or re.search(r"\.py$", words[0]):
        return "expected a program; a script needs python before it"
    return None
