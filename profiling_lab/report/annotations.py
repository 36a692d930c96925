# SPDX-License-Identifier: Apache-2.0
"""Workflow commands that CI systems read from a job's output and pin to lines of the change."""

from __future__ import annotations

from typing import Literal, TypeAlias

from profiling_lab.report.paths import shown_path

Level: TypeAlias = Literal["error", "warning", "notice"]


def annotation(level: Level, title: str, message: str, file: str = "", line: int = 0) -> str:
    """`::warning file=src/model.py,line=87,title=...::message`; without a file it belongs to the job."""
    where = f"file={_property(shown_path(file))},line={line}," if file and line else ""
    return f"::{level} {where}title={_property(title)}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
