# SPDX-License-Identifier: Apache-2.0
"""Grade the script of E07: run it on reports that are made anew each time, and look at what it writes."""

from __future__ import annotations

import json
import math
import os
import random
import secrets
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling_lab.analysis.ncu.report import parse
from profiling_lab.exercises.e07_roofline_practice.reports import Point, made, points
from profiling_lab.exercises.exercise import GradedCheck, failed, not_checked, passed

FILE = "roofline.py"
REPORTS = 4
LIMIT_S = 60.0
SLACK_FRAC = 0.01
NAMES = ("points", "intensity", "rate", "share", "bound", "figure")
ADVICE = {
    "intensity": "FLOP over bytes of device memory: what counts as a FLOP, and which bytes move?",
    "rate": "FLOP over the duration, in TFLOP/s",
    "share": "of the roof that is above the point: left of the ridge that is the memory's",
    "bound": "left or right of the ridge, and `neither` for less than 55 % of the roof",
}


def checks(workspace: Path) -> list[GradedCheck]:
    """The check "points", and one for each part of a point and for the figure."""
    script = workspace / FILE
    if not script.is_file():
        return _without("points", f"there is no {FILE} in this folder")
    chance = random.Random(secrets.randbelow(2**31))
    wrong: dict[str, str] = {}
    for _ in range(REPORTS):
        text = made(chance)
        right = points(parse(text))
        found, drawn = _run(script, text)
        if isinstance(found, str):
            return _without("points", found)
        if set(found) != set(right):
            return _without("points", f"points for {', '.join(sorted(found))}, expected {', '.join(right)}")
        for name, point in right.items():
            for part, told in _differences(point, found[name]).items():
                wrong.setdefault(part, f"{name} of a made report: {told}. {ADVICE[part]}")
        if told := _misdrawn(drawn, right):
            wrong.setdefault("figure", told)
    return [
        failed(name, wrong[name]) if name in wrong else passed(name, f"right in {REPORTS} made reports")
        for name in NAMES
    ]


def _without(name: str, why: str) -> list[GradedCheck]:
    rest = [not_checked(each, "there are no points to check") for each in NAMES if each != name]
    return [failed(name, why), *rest]


def _run(script: Path, text: str) -> tuple[Mapping[str, Mapping[str, Any]] | str, str]:
    """The points by kernel and the figure; or why there are none."""
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as folder:
        report, figure, numbers = (
            Path(folder) / name for name in ("report.csv", "roofline.svg", "points.json")
        )
        report.write_text(text, encoding="utf-8")
        command = [sys.executable, str(script), str(report), "-o", str(figure), "--json", str(numbers)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{FILE} does not end within {LIMIT_S:g} s", ""
        if done.returncode:
            return f"{FILE} fails on a made report: {(done.stderr.strip().splitlines() or [''])[-1]}", ""
        try:
            found = {each["kernel"]: each for each in json.loads(numbers.read_text())}
            return found, figure.read_text()
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{FILE} does not write its points or its figure: {error!r}", ""


def _differences(right: Point, found: Mapping[str, Any]) -> dict[str, str]:
    wrong = {}
    numbers = (("intensity", "intensity", 1.0), ("rate", "tflops", 1e-12), ("share", "share", 1.0))
    for part, key, scale in numbers:
        true = {"intensity": right.intensity, "rate": right.flops, "share": right.share_frac}[part] * scale
        given = found.get(key)
        if not isinstance(given, int | float) or not _close(float(given), true):
            wrong[part] = f"{key} is {given!r}"
    if found.get("bound") != right.bound:
        wrong["bound"] = f"{found.get('bound')!r} is not what binds it"
    return wrong


def _close(given: float, right: float) -> bool:
    return given == right or abs(given - right) <= SLACK_FRAC * abs(right)


def _misdrawn(text: str, right: Mapping[str, Point]) -> str:
    """Circles must lie on logarithmic axes: their places are a straight line over the logarithms."""
    try:
        tree = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        return f"the figure is no SVG: {error}"
    circles = {each.get("id"): each for each in tree.iter() if each.tag.endswith("circle")}
    missing = sorted(set(right) - set(circles))
    if missing:
        return f"the figure has no circle for {', '.join(missing)}"
    if not any(each.get("id") == "roof" for each in tree.iter()):
        return "the figure has no roof"
    inside = [each for each in right.values() if 0 < each.intensity < math.inf]
    for axis, values in (
        ("cx", [math.log10(each.intensity) for each in inside]),
        ("cy", [math.log10(each.flops) for each in inside]),
    ):
        places = [float(circles[each.kernel].get(axis, "nan")) for each in inside]
        low, high = values.index(min(values)), values.index(max(values))
        slope = (places[high] - places[low]) / (values[high] - values[low])
        for value, place in zip(values, places, strict=True):
            if not abs(places[low] + slope * (value - values[low]) - place) <= 2.0:
                return f"the circles are not where their points are ({axis})"
    return ""
