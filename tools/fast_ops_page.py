# SPDX-License-Identifier: Apache-2.0
"""Fill docs/fast_ops.md and docs/fast_ops/loss.svg from the results of benchmarks and the two recordings.

python tools/fast_ops_page.py            # rewrites both
python tools/fast_ops_page.py --check    # exit code 1 if either is not what they say

What is behind it: benchmarks/train_fast_ops.py and benchmarks/heavy_layer.py.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from analysis_page import with_prints
from benchmark_tables import RESULTS, Line, base, table
from loss_curves import Panel, drawing

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fast_ops.md"
FOLDER = PAGE.with_suffix("")
PICTURE = FOLDER / "loss.svg"
COMPILED = ("compile default", "compile max-autotune-no-cudagraphs")
RECORDINGS = ("before", "after")
_TABLE = re.compile(r"<!-- table: (?P<name>\w+) -->\n.*?<!-- end of table -->\n", re.DOTALL)


def training() -> list[str]:
    """What a step takes before and after, and how far the curves of loss are from each other."""
    lines = [*_newest_with("loss"), *_newest_with("step_time")]
    found: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for line in lines:
        if line["metric"] != "loss":
            case = found.setdefault(_case(line), {})
            case[line["provider"], line["metric"]] = line["value"]
    rows = [
        (
            model,
            dtype,
            f"{value['before', 'step_time'] / 1e6:.2f} ms",
            f"{value['after', 'step_time'] / 1e6:.2f} ms",
            f"{value['after', 'speedup']:.2f} x",
            f"{value['after', 'distance_to_before']:.1e}",
            f"{value['before', 'distance_of_seeds']:.1e}",
        )
        for (model, dtype), value in found.items()
    ]
    header = ("model", "dtype", "step before", "step after", "faster", "curve after to before, nats",
              "one seed to another, nats")  # fmt: skip
    return [f"{_base(lines, 'train_fast_ops')}:", "", *table(header, rows)]


def heavy_layer() -> list[str]:
    """GPU time of the op, its bare GEMMs and its peers; each row is of one run."""
    cases: dict[tuple[int, int, str, str], list[Line]] = {}
    for line in _lines("heavy_layer"):
        case = line["case"]
        found = cases.setdefault((case["rows"], case["d"], case["dtype"], case["direction"]), [])
        if found and found[-1]["run"] != line["run"]:
            found.clear()
        found.append(line)
    rows = []
    for (count, d, dtype, direction), lines in cases.items():
        value = {(line["provider"], line["metric"]): line["value"] for line in lines}

        def best(start: str, value: dict[tuple[str, str], float] = value) -> str:
            times = [v for (name, metric), v in value.items() if metric == "time" and name.startswith(start)]
            return f"{min(times) / 1e3:,.1f}" if times else "-"

        share = value["fast", "share_of_products"]
        times = [best(name) for name in ("fast", "products", "eager", *COMPILED, "gelu epilogue")]
        rows.append((f"{count} x {d}", dtype, direction, times[0], times[1], f"{share:.2f}", *times[2:]))
    header = ("rows x d", "dtype", "", "fast", "its bare products", "their share", "eager",
              "compile", "compile max-autotune", "GELU epilogue")  # fmt: skip
    shown = [line for lines in cases.values() for line in lines]
    return [f"{_base(shown, 'heavy_layer')}, microseconds:", "", *table(header, rows)] if shown else []


def _lines(name: str) -> list[Line]:
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _newest_with(metric: str) -> list[Line]:
    """Of each case the last run that measured this: curves and times may be of several."""
    lines = _lines("train_fast_ops")
    last = {_case(line): line["run"] for line in lines if line["metric"] == metric}
    return [line for line in lines if line["run"] == last.get(_case(line))]


def _case(line: Line) -> tuple[str, str]:
    return line["case"]["model"], line["case"]["dtype"]


def _base(lines: list[Line], name: str) -> str:
    return base(lines, name).replace("(results:", "(../benchmarks/results/")


def panels() -> list[Panel]:
    curves: dict[str, dict[tuple[str, int], list[tuple[float, float]]]] = {}
    for line in _newest_with("loss"):
        if line["metric"] == "loss":
            case = line["case"]
            panel = curves.setdefault(f"{case['model']}, {case['dtype']}", {})
            panel.setdefault((line["provider"], case["seed"]), []).append((case["step"], line["value"]))
    return [Panel(title, dict(found)) for title, found in curves.items()]


def filled(page: str) -> str:
    """The page with each table from the results and each example as its command prints it today."""
    tables = {"training": training, "heavy_layer": heavy_layer}
    page = _TABLE.sub(
        lambda found: "\n".join(
            [f"<!-- table: {found['name']} -->", *tables[found["name"]](), "<!-- end of table -->", ""]
        ),
        page,
    )
    with tempfile.TemporaryDirectory() as name:
        for recording in RECORDINGS:
            (source,) = FOLDER.glob(f"{recording}_*.sqlite")
            shutil.copy(source, Path(name) / f"{recording}.sqlite")
        return with_prints(page, Path(name))


def main() -> int:
    now = {PAGE: filled(PAGE.read_text()), PICTURE: drawing(panels())}
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in now.items() if not path.is_file() or path.read_text() != text]
        sys.stderr.writelines(f"{name}\n" for name in stale)
        return int(bool(stale))
    for path, text in now.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
