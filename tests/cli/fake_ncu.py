#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ncu, for tests: it runs the program, and gives it the launches of a real export.

FAKE_NCU is a folder: launches.csv is the export of a program that launched all that is in it; metrics.txt
what --query-metrics prints; refuse.txt, if it is there, is printed into the report instead. The arguments are
noted in arguments.json. The filters select among the launches as ncu's do.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

FLAGS = {"--csv", "--query-metrics"}


def main() -> int:
    folder = Path(os.environ["FAKE_NCU"])
    words = sys.argv[1:]
    options: dict[str, list[str]] = {}
    while words and words[0].startswith("-"):
        option = words.pop(0)
        options.setdefault(option, []).extend([] if option in FLAGS else [words.pop(0)])
    if "--query-metrics" in options:
        print((folder / "metrics.txt").read_text())
        return 0
    (folder / "arguments.json").write_text(json.dumps([options, words]))
    status = subprocess.run(words).returncode
    refuse = folder / "refuse.txt"
    (log,) = options["--log-file"]
    Path(log).write_text(refuse.read_text() if refuse.is_file() else profiled(folder, options))
    return status


def profiled(folder: Path, options: dict[str, list[str]]) -> str:
    with (folder / "launches.csv").open(newline="") as file:
        header, units, *rows = csv.reader(file)
    kernel, number = header.index("Kernel Name"), header.index("ID")
    (name,), (skip,), (count,) = (
        options[key] for key in ("--kernel-name", "--launch-skip", "--launch-count")
    )
    pattern = re.compile(name.removeprefix("regex:"))
    matched = [row for row in rows if pattern.search(row[kernel].partition("(")[0].split("::")[-1])]
    chosen = matched[int(skip) :][: int(count)]
    if not chosen:
        return "==PROF== Connected to process 1\n==WARNING== No kernels were profiled.\n"
    for i, row in enumerate(chosen):
        row[number] = str(i)
    lines = [",".join(f'"{cell}"' for cell in row) for row in (header, units, *chosen)]
    return "\n".join(["==PROF== Connected to process 1", *lines, "==PROF== Disconnected", ""])


if __name__ == "__main__":
    raise SystemExit(main())
