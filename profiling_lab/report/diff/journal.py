# SPDX-License-Identifier: Apache-2.0
"""The journal of an optimisation: one line of JSON for each comparison, appended, the dropped turns too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from profiling_lab.analysis.diff.diff import DiffResult
from profiling_lab.errors import UsageError
from profiling_lab.report.diff.text import verdict


def append(
    path: Path, result: DiffResult, note: str, before: Sequence[str], after: Sequence[str]
) -> dict[str, object]:
    """Append what came out, with the number of the turn. Raises UsageError if the file is no journal or
    cannot be written.
    """
    line: dict[str, object] = {
        "turn": turns(path) + 1,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "note": note,
        "before": list(before),
        "after": list(after),
        "verdict": result.state if result.comparable else "not comparable",
        "sentence": verdict(result),
        "before_ns": result.before.median_ns,
        "after_ns": result.after.median_ns,
        "change_ns": result.change_ns,
        "interval": asdict(result.interval) if result.interval else None,
    }
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UsageError(f"the journal {path} cannot be written: {error.strerror}") from None
    return line


def turns(path: Path) -> int:
    """How many turns a journal has; 0 if there is none yet. Raises UsageError if it is something else."""
    if not path.exists():
        return 0
    try:
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        return max((int(line["turn"]) for line in lines), default=0)
    except (OSError, ValueError, TypeError, KeyError):
        raise UsageError(f"{path} is no journal of diff: expected lines of JSON, each with a turn") from None
