# SPDX-License-Identifier: Apache-2.0
"""A comparison as JUnit's XML: comparable or not, the gate and each budget are a test."""

from __future__ import annotations

from xml.etree import ElementTree

from profiling_lab.analysis.diff.diff import DiffResult
from profiling_lab.analysis.diff.memory import MemoryLimit
from profiling_lab.analysis.diff.verdict import LimitResult
from profiling_lab.report.diff.text import limit_line, verdict
from profiling_lab.report.paths import shown_path


def junit(result: DiffResult, lenient: bool = False) -> str:
    """What the noise leaves undecided is an error; `lenient`: it counts as skipped."""
    suite = ElementTree.Element("testsuite", name="profiling-lab diff")
    test = ElementTree.SubElement(suite, "testcase", classname="diff", name="comparable")
    if not result.comparable:
        ElementTree.SubElement(test, "error", message=verdict(result))
    ElementTree.SubElement(test, "system-out").text = verdict(result)
    for what, judged in result.limits:
        _limit(suite, what, judged, result.comparable, not (lenient and judged.is_noise))
    for tag, attribute in (("testcase", "tests"), ("failure", "failures"), ("error", "errors")):
        suite.set(attribute, str(len(list(suite.iter(tag)))))
    suite.set("skipped", str(len(list(suite.iter("skipped")))))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _limit(
    suite: ElementTree.Element,
    what: str,
    judged: LimitResult | MemoryLimit,
    comparable: bool,
    undecided_fails: bool,
) -> None:
    where = {}
    if isinstance(judged, LimitResult) and judged.file:
        where = {"file": shown_path(judged.file), "line": str(judged.line)}
    test = ElementTree.SubElement(
        suite, "testcase", {"classname": f"diff.{what}", "name": judged.text, **where}
    )
    message = limit_line(what, judged)
    if not comparable:
        ElementTree.SubElement(test, "skipped", message="the recordings are not comparable")
    elif judged.outcome == "fail":
        ElementTree.SubElement(test, "failure", message=message)
    elif judged.outcome == "undecided":
        ElementTree.SubElement(test, "error" if undecided_fails else "skipped", message=message)
