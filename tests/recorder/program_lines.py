# SPDX-License-Identifier: Apache-2.0
"""The programs of this folder say in comments which of their lines reach the GPU, and in which phases.

`# gpu: forward backward` at the end of a line means: it launches work in forward, and autograd launches work
for it in backward. A recording must show these lines in these phases and no other line of the program.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from profiling_lab.analysis.coverage import Coverage
from profiling_lab.analysis.lines import LinesResult, lines
from profiling_lab.trace import Trace

PROGRAMS = Path(__file__).resolve().parent / "programs"
PHASES = ("forward", "backward", "recompute", "optimizer")
Phases = dict[str, set[str]]
"""source text of a line without its comment -> phases"""


def source(name: str) -> list[str]:
    return (PROGRAMS / f"{name}.py").read_text().splitlines()


def marked(name: str, mark: str = "gpu") -> Phases:
    """What the comments of a program promise."""
    found = (re.match(rf"\s*(.*\S)\s+# {mark}: (.+)$", text) for text in source(name))
    return {match[1]: set(match[2].split()) for match in found if match}


def recorded(result: LinesResult, name: str) -> Phases:
    """What a recording shows of a program."""
    text, out = source(name), {}
    for row in result.rows:
        where = text[row.line - 1].split("  #")[0].strip() if row.file.endswith(f"/{name}.py") else row.key
        out.setdefault(where, set()).update(phase for phase in PHASES if getattr(row, f"{phase}_ns") > 0)
    return out


def lines_of(path: Path, name: str) -> LinesResult:
    with Trace.open(path) as trace:
        return lines(trace, own=(f"programs/{name}.py",))


def share(covered: Coverage, without: tuple[str, ...] = ()) -> str:
    """One line for people: the share of GPU time with a line, and what the rest is."""
    rest = "; ".join(f"{100 * u.ns / covered.gpu_ns:.2f} % {u.reason}" for u in covered.unattributed)
    return f"{100 * covered.attributed_frac:.2f} % of {covered.gpu_ns / 1e6:.2f} ms" + (
        f"; {rest}" if rest else ""
    )


# The fake driver, and what of torch stands between an operator and a dispatch mode.
NOT_IN_A_REAL_STACK = ("fake_driver.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")


def hide_the_driver(path: Path) -> None:
    """The fake launches from Python, a real driver from C++: take its frames off the stacks."""
    with sqlite3.connect(path) as file:
        leaves = (
            "SELECT s.id FROM PYREC_STACK s JOIN PYREC_FRAME f ON f.id = s.frameId"
            " JOIN StringIds file ON file.id = f.fileId WHERE "
            + " OR ".join(f"value LIKE '%/{name}'" for name in NOT_IN_A_REAL_STACK)
        )
        step = "(SELECT parentId FROM PYREC_STACK WHERE id = stackId)"
        while file.execute(f"UPDATE PYREC_LAUNCH SET stackId = {step} WHERE stackId IN ({leaves})").rowcount:
            pass
    file.close()
