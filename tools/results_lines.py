# SPDX-License-Identifier: Apache-2.0
"""The lines under benchmarks/results, and tables of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "results"

Line = dict[str, Any]


def every_line(name: str) -> list[Line]:
    """The lines of a results file; none where the benchmark has not been run."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def newest_run(name: str) -> list[Line]:
    """The lines of the last run in a results file."""
    lines = every_line(name)
    return [line for line in lines if line["run"] == lines[-1]["run"]]


def base(lines: list[Line], name: str) -> str:
    """What the figures were measured on, and at which commits: the code may have gone on since."""
    one = lines[0]
    date, gpu = (", ".join(dict.fromkeys(texts)) for texts in (
        (line["date"][:10] for line in lines), (line["gpu"] for line in lines)
    ))  # fmt: skip
    versions = f"driver {one['driver']}, torch {one['torch']}, cuDNN {one['cudnn']}"
    commits = ", ".join(dict.fromkeys(line["git"][:7] for line in lines))
    return f"{gpu}, {versions}, {date}, at {commits} ([lines](results:{name}.jsonl))"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ("---",) * len(header), *rows)]
