# SPDX-License-Identifier: Apache-2.0
"""Fill the pages in docs/guide from the recordings, programs and results in the repository.

python tools/guide_page.py            # rewrites the marked blocks, and docs/guide/roofline.svg
python tools/guide_page.py --check    # exit code 1 if one of them is not what the files say today

Three marks, each above the block that it fills: `prints: COMMAND`, what a command prints of the recordings of
`recordings`; `source: FILE FUNCTION`, code of an exercise; `figures: NAME`, a table of benchmark results.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from os.path import relpath
from pathlib import Path
from statistics import geometric_mean, median

from analysis_page import with_prints
from benchmark_tables import BLOCKS, RESULTS, Line, base, every_line, newest_run, table
from counter_figures import COUNTERS
from counter_figures import FIGURES as COUNTER_FIGURES

from profiling_lab.analysis.coverage import coverage
from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.consistency import CYCLES
from profiling_lab.analysis.ncu.figures import DRAM, weighted
from profiling_lab.exercises import entries
from profiling_lab.trace import Trace
from profiling_lab.trace.ownership import Ownership

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "benchmarks"))

from svg_charts import Line as Drawn  # noqa: E402
from svg_charts import Panel, Point, draw_panels  # noqa: E402

PAGES = sorted((REPO / "docs" / "guide").rglob("*.md"))
PICTURE = REPO / "docs" / "guide" / "roofline.svg"
EXERCISES = REPO / "profiling_lab" / "exercises"
CLINIC = [
    EXERCISES / each.package
    for each in entries()
    if each.module == "07-bottleneck-clinic" and (EXERCISES / each.package / "recorded/console.txt").is_file()
]
_SOURCE = re.compile(r"<!-- source: (?P<file>\S+) (?P<name>[\w.]+) -->\n```python\n.*?```\n", re.DOTALL)
_FIGURES = re.compile(r"<!-- figures: (?P<name>\w+) -->\n.*?<!-- end of figures -->\n", re.DOTALL)
_REPAIR = re.compile(r"speed: passed: ([\d.]+ ms) per step before, ([\d.]+ ms) after: ([\d.]+) times")
ROWS, D = 8192, 4096
"""The size at which heavy_layer.py times bare GEMMs long enough to reach the GPU's rate."""
ACTIVE_CYCLES = "sm__cycles_active.avg"
EASY_WINS = (
    ("pinned memory", "pageable_upload"),
    ("mixed precision (bf16)", "fp32_products"),
    ("a larger batch", "one_row_at_a_time"),
)
"""Programs whose defect is that it is missing."""
FLOPS = 2 * D * D * (2 * D + ROWS)
"""Of its forward: two products of the weights, then one with the rows."""


def recordings(folder: Path) -> None:
    """before.sqlite and after.sqlite of every recorded repair, the demo's run.sqlite, and ddp, a job."""
    for exercise in CLINIC:
        (folder / exercise.name[:3]).mkdir()
        for side, name in (("before", "starter"), ("after", "solution")):
            recorded = exercise / "recorded" / f"{name}_h200.sqlite"
            if recorded.is_file():
                shutil.copy(recorded, folder / exercise.name[:3] / f"{side}.sqlite")
    recorded = EXERCISES / "e17_python_backtrace" / "recorded"
    shutil.copy(recorded / "demo_h200.sqlite", folder / "run.sqlite")
    for side in ("before", "after"):
        shutil.copy(REPO / "docs" / "fast_ops" / f"{side}_h200.sqlite", folder / f"{side}.sqlite")
    shutil.copytree(REPO / "tests" / "data" / "ddp_h200", folder / "ddp")
    shutil.copy(COUNTERS / "kernel_pairs_h200.csv", folder / "kernel_pairs.csv")


def source(file: str, name: str) -> str:
    """A function, method or class of an exercise's program, as it is written there."""
    text = (EXERCISES / file).read_text()
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        (node,) = (each for each in getattr(node, "body", ()) if getattr(each, "name", None) == part)
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines)


def clinic(which: str = "") -> list[str]:
    """What each repair was worth: the judge of the exercise on an H200, original and repair in turns."""
    rows = []
    for exercise in (each for each in CLINIC if each.name.startswith(which)):
        found = _REPAIR.search((exercise / "recorded" / "console.txt").read_text())
        if found:
            number, name = exercise.name.split("_", 1)
            rows.append((f"{number.upper()} `{name.replace('_', '-')}`", *found.groups()))
    return table(("exercise, on an H200", "step before", "step after", "times as fast"), rows)


def selected(lines: list[Line], provider: str, metric: str, **case: object) -> list[Line]:
    """The lines of a provider and a metric whose case has these values."""
    return [
        line
        for line in lines
        if (line["provider"], line["metric"]) == (provider, metric) and case.items() <= line["case"].items()
    ]


def _gemm_rates() -> dict[str, Line]:
    """The last line of the bare GEMMs of heavy_layer for each dtype, with `rate` in TFLOP/s added."""
    lines = selected(every_line("heavy_layer"), "products", "time", rows=ROWS, d=D, direction="forward")
    return {line["case"]["dtype"]: line | {"rate": FLOPS / line["value"] * 1e-3} for line in lines}


def _copy_tb_per_s() -> float:
    return median(line["value"] * 1e-3 for line in selected(newest_run("layer_norm_gelu"), "copy", "rate"))


def ridge() -> list[str]:
    """The intensity from which the arithmetic units are the limit, from rates that were measured."""
    rates, copy = _gemm_rates(), _copy_tb_per_s()
    rows = [
        (name, f"{line['rate']:.0f} TFLOP/s", f"{copy:.2f} TB/s", f"{line['rate'] / copy:.0f} FLOP/byte")
        for name, line in rates.items()
    ]
    text = f"GEMMs of {ROWS} x {D} x {D} and a copy in memory. {base(list(rates.values()), 'heavy_layer')}, "
    text += f"{base(newest_run('layer_norm_gelu'), 'layer_norm_gelu')}:"
    return [text, "", *table(("dtype", "GEMM", "copy, read + written", "ridge point"), rows)]


def roofline() -> str:
    """Operations of this package under the rates that this GPU reaches in bf16."""
    peak, copy = float(_gemm_rates()["bfloat16"]["rate"]), _copy_tb_per_s()
    forward = {"direction": "forward", "dtype": "bfloat16"}
    norm_gelu, points = newest_run("layer_norm_gelu"), {}
    for provider, name in (("ours", "fused"), ("eager", "eager")):
        (line,) = selected(norm_gelu, provider, "rate", d=D, **forward)
        # 10 FLOP an element, 2 bytes read and 2 written: estimate_arithmetic_intensity's count
        points[f"layer norm and GELU, {name}"] = Point(2.5, line["value"] * 1e-3 * 2.5)
    for rows in (512, 16384):
        (line,) = selected(
            newest_run("attention"), "flash", "rate", rows=rows, head_dim=128, causal=False, **forward
        )
        points[f"flash_attention, {rows} rows"] = Point(rows / 2, line["value"])
    line = selected(every_line("heavy_layer"), "fast", "time", rows=ROWS, d=D, **forward)[-1]
    moved_bytes = 2 * (2 * ROWS * D + 3 * D * D)
    points["heavy_layer"] = Point(round(FLOPS / moved_bytes), FLOPS / line["value"] * 1e-3)
    right = 2 * max(point.x for point in points.values())
    roof = tuple(Point(x, min(peak, x * copy)) for x in (1, round(peak / copy), right))
    lines = [Drawn("rates measured: copy, then GEMM", roof, dots=False)]
    lines += [Drawn(name, (point,), joined=False) for name, point in points.items()]
    note = f"{norm_gelu[0]['gpu']}, bf16, forward; bytes: each tensor moved once"
    panel = Panel("memory-bound on the slope, compute-bound on the flat", tuple(lines))
    labels = ("FLOP per byte of inputs and outputs", "TFLOP/s")
    return str(draw_panels("Roofline", note, [[panel]], *labels, log_y=True))


def sampling() -> list[str]:
    """What periodic samples of all Python stacks cost."""
    lines = [line for line in newest_run("recorder_sampling") if line["metric"] == "overhead"]
    rows = [(line["provider"], f"{line['value']:.3f} x") for line in lines]
    text = f"On top of a recording without samples. {base(lines, 'recorder_sampling')}:"
    return [text, "", *table(("record --sample-python", "step time"), rows)]


def launch_blocking() -> list[str]:
    lines = [line for line in every_line("switches") if line["provider"].startswith("CUDA_LAUNCH_BLOCKING")]
    rows = [(f"`{line['provider']}`", f"{line['value']:.1f} ms") for line in lines]
    return [f"A step of the demo. {base(lines, 'switches')}:", "", *table(("variable", "step"), rows)]


def autotuning() -> list[str]:
    lines = [line for line in every_line("switches") if line["metric"] == "time"]
    rows = []
    for off, on in zip(
        *(selected(lines, f"benchmark {state}", "time") for state in ("off", "on")), strict=True
    ):
        case = off["case"]
        shape = (
            f"{case['batch']} x {case['in']} x {case['side']} x {case['side']} to {case['out']} channels, "
        )
        shape += f"{case['kernel']} x {case['kernel']}"
        rows.append((shape, f"{off['value'] / 1e3:.1f} µs", f"{on['value'] / 1e3:.1f} µs"))
    text = f"Forward, float32. {base(lines, 'switches')}:"
    return [text, "", *table(("convolution", "`benchmark = False`", "`benchmark = True`"), rows)]


def easy_wins() -> list[str]:
    """What each was worth where it helps: programs of the diagnosis benchmark, and one op compiled."""
    steps = {
        (line["case"]["program"], line["provider"]): line
        for line in every_line("diagnosis")
        if line["metric"] == "step"
    }
    rows, used = [], []
    for what, program in EASY_WINS:
        old, new = (steps[program, state] for state in ("as it is", "mended"))
        used += [old, new]
        times = (f"{line['value']:.2f} ms" for line in (old, new))
        rows.append((what, f"`{program}`", *times, f"{old['value'] / new['value']:.1f}"))
    shares = [
        selected(newest_run("layer_norm_gelu"), name, "share_of_copy", dtype="bfloat16", direction="forward")
        for name in ("compile default", "eager")
    ]
    compiled, eager = (geometric_mean(line["value"] for line in lines) for lines in shares)
    rows.append(("`torch.compile`", "LayerNorm and GELU, bf16, forward", "-", "-", f"{compiled / eager:.1f}"))
    text = f"{base(used, 'diagnosis')}; {base(shares[0], 'layer_norm_gelu')}:"
    return [text, "", *table(("easy win", "program", "step before", "after", "times as fast"), rows)]


def use() -> list[str]:
    """How busy the GPU was by its recording, and what of it the counters say was used, for one program."""
    folder, rows = EXERCISES / "e35_long_kernel" / "recorded", []
    for side in ("starter", "solution"):
        with Trace.open(folder / f"{side}_h200.sqlite") as trace:
            busy = coverage(trace, trace.stacks.own_rows(Ownership()))
        launches = ncu_report.read(folder / f"{side}_h200.csv").launches
        active = weighted(launches, lambda k: k.value(ACTIVE_CYCLES) / k.value(CYCLES))
        dram = weighted(launches, lambda k: k.value(DRAM) / 100)
        assert active is not None and dram is not None
        shares = (busy.busy_ns / busy.span_ns, active, dram)
        rows.append((f"E35 `long-kernel`, {side}", *(f"{100 * share:.0f} %" for share in shares)))
    return table(("program, on an H200", "GPU busy", "SMs with work", "DRAM, of peak"), rows)


def peers() -> list[str]:
    """The newest answers to the diagnosis benchmark; ours at first sight on the same programs."""
    lines = every_line("diagnosis")
    theirs = [line for line in lines if "window" in line["case"]]
    newest = {line["provider"]: line["run"] for line in theirs}
    theirs = [line for line in theirs if line["run"] == newest[line["provider"]]]
    programs = {line["case"]["program"] for line in theirs}
    ours: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line["provider"] == "profiling-lab check" and line["case"]["program"] in programs:
            ours.setdefault((line["case"]["program"], line["metric"]), line)
    named = {("`profiling-lab check`", "whole"): [*ours.values()]}
    for line in theirs:
        named.setdefault((line["provider"], line["case"]["window"]), []).append(line)
    rows = []
    for (provider, window), mine in named.items():
        said: dict[str, dict[str, float]] = {}
        for line in mine:
            if line["case"]["counts"]:
                said.setdefault(line["case"]["program"], {})[line["metric"]] = line["value"]
        planted = [each for each in said.values() if "cause" in each]
        healthy = [each["false_alarm"] for each in said.values() if "false_alarm" in each]
        counts = (
            sum(each["cause"] * each["line"] for each in planted),
            sum(each["cause"] for each in planted),
        )
        alarms = f"{sum(healthy):.0f} of {len(healthy)}" if healthy else "no verdict"
        rows.append((provider, window, *(f"{count:.0f} of {len(planted)}" for count in counts), alarms))
    header = ("tool", "read", "cause and line first", "cause first", "false alarms, healthy")
    return [f"{base([*ours.values(), *theirs], 'diagnosis')}:", "", *table(header, rows)]


def ncu_cost() -> list[str]:
    """A program alone and under each set of Nsight Compute."""
    lines = every_line("ncu_cost")
    found: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    for line in lines:
        case = line["case"]["program"], line["case"]["launches"]
        found.setdefault(case, {})[line["provider"], line["metric"]] = line["value"]
    rows = []
    for (program, launches), at in found.items():
        for name in ("basic", "full"):
            if (name, "seconds") in at:
                times = (f"{at[which, 'seconds']:.1f} s" for which in ("alone", name))
                rows.append((f"`{program}`", str(launches), name, *times, f"{at[name, 'passes']:.0f}"))
    header = ("program", "launches profiled", "set", "alone", "under ncu", "runs of each launch")
    return [f"{base(lines, 'ncu_cost')}:", "", *table(header, rows)]


OWN: dict[str, Callable[[], list[str]]] = {"clinic": clinic, "ridge": ridge, "sampling": sampling}
OWN |= {"launch_blocking": launch_blocking, "autotuning": autotuning, "easy_wins": easy_wins, "use": use}
OWN |= {"peers": peers, **COUNTER_FIGURES}
OWN |= {"ncu_cost": ncu_cost}
OWN |= {exercise.name[:3]: partial(clinic, exercise.name[:3]) for exercise in CLINIC}


def filled(page: Path, folder: Path) -> str:
    def figures(match: re.Match[str]) -> str:
        name = match["name"]
        text = "\n".join((OWN | BLOCKS)[name]()).replace("(results:", f"({relpath(RESULTS, page.parent)}/")
        return f"<!-- figures: {name} -->\n{text}\n<!-- end of figures -->\n"

    def code(match: re.Match[str]) -> str:
        text = source(match["file"], match["name"])
        return f"<!-- source: {match['file']} {match['name']} -->\n```python\n{text}\n```\n"

    return with_prints(_SOURCE.sub(code, _FIGURES.sub(figures, page.read_text())), folder)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        recordings(Path(name))
        now = {page: filled(page, Path(name)) for page in PAGES} | {PICTURE: roofline()}
    stale = [path for path, text in now.items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path.relative_to(REPO)}\n" for path in stale)
        return int(bool(stale))
    for path in stale:
        path.write_text(now[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
