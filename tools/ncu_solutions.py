# SPDX-License-Identifier: Apache-2.0
"""Write the worked answers of E05 to E08 from the recorded reports of ncu: answer.toml, the tables in the
notes, and the figure of E07.

    python tools/ncu_solutions.py            # after a new recording
    python tools/ncu_solutions.py --check    # exit code 1 if a file is not what the recording says
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

from profiling_lab.analysis.ncu import report as ncu_report
from profiling_lab.analysis.ncu.consistency import LOADS
from profiling_lab.exercises import answers, ncu_questions, workspace
from profiling_lab.exercises.e05_memory_metrics import grade as memory
from profiling_lab.exercises.e06_compute_metrics import grade as compute
from profiling_lab.exercises.e07_roofline_practice import grade as roofline
from profiling_lab.exercises.e08_optimization_loop import grade as loop
from profiling_lab.exercises.e08_optimization_loop import reports as log

GRADES = {each.ENTRY.slug: each for each in (memory, compute, roofline)}
FIGURE = "roofline_h200.svg"
EXPECTED = {  # of each round of E08: the counter that is expected to move, and where
    1: (loop.COUNTERS[2], "down"),
    2: ("sm__warps_active.avg.pct_of_peak_sustained_active", "up"),
    3: (loop.BARRIER, "down"),
    4: (LOADS[0], "down"),
}
_TABLE = re.compile(r"<!-- answers -->\n.*?<!-- end of answers -->\n", re.S)

Right = dict[str, object]


def right_answers(slug: str, recorded: Path) -> Right:
    """By key of answer.toml, from the reports in `recorded`."""
    if slug == loop.ENTRY.slug:
        return _rounds(recorded)
    report = ncu_report.read(recorded / Path(ncu_questions.STARTER).name)
    found: Right = {}
    for question in GRADES[slug].QUESTIONS:
        value = question.right(report)
        is_number = isinstance(question, ncu_questions.Number)
        found[question.key] = float(f"{value:.4g}") if is_number else sorted(value)[0]
    return found


def _rounds(recorded: Path) -> Right:
    paths = sorted(recorded.glob("round*_h200.csv"))
    found = [log.opened(path, path.name) for path in paths]
    right: Right = {}
    best = found[0]
    for number, after in enumerate(found[1:], 1):
        metric, moves = EXPECTED[number]
        kept = after.duration_ns < (1 - log.FASTER_FRAC) * best.duration_ns
        old, new = best.longest.value(metric), after.longest.value(metric)
        values: Right = {"metric": metric, "moves": moves, "kept": "yes" if kept else "no"}
        values |= {"before": float(f"{old:.6g}"), "after": float(f"{new:.6g}")}
        values["us"] = float(f"{after.duration_ns / 1e3:.5g}")
        right |= {f"round{number}.{key}": value for key, value in values.items()}
        best = after if kept else best
    return right


def filled(text: str, right: Right) -> str:
    """answer.toml with these values. Raises LookupError for a key that is not there."""
    for key, value in right.items():
        section, _, name = key.partition(".")
        pattern = rf'(^\[{re.escape(section)}\][^\[]*?^{name} = )("[^"]*"|[-\d.e+]+)'
        shown = json.dumps(value)
        text, count = re.subn(pattern, lambda found, s=shown: found[1] + s, text, count=1, flags=re.M | re.S)
        if not count:
            raise LookupError(f"{key} is not in answer.toml")
    return text


def tabled(notes: str, right: Right, gpu: str = "H200") -> str:
    """The notes with their table of answers."""
    rows = [
        f"| `{key}` | {value if isinstance(value, str) else f'{value:g}'} |" for key, value in right.items()
    ]
    block = "\n".join(["<!-- answers -->", f"| answer | on the {gpu} |", "|---|---|", *rows])
    return _TABLE.sub(lambda _: f"{block}\n<!-- end of answers -->\n", notes)


def figure(recorded: Path) -> str:
    """The roofline of the recording, as the solution's script draws it."""
    script = _module(roofline.ENTRY.folder / workspace.SOLUTIONS / "roofline.py")
    report = ncu_report.read(recorded / Path(ncu_questions.STARTER).name)
    text: str = script.drawing(script.points(report), *script.roofs(report))
    return text


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("roofline_of_the_solution", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(slug: str, folder: Path, recorded: Path) -> dict[str, str]:
    """The files of `folder` (an exercise's solutions) as the reports in `recorded` have them, by name."""
    right = right_answers(slug, recorded)
    files = {
        answers.FILE: filled((folder / answers.FILE).read_text(), right),
        workspace.NOTES: tabled((folder / workspace.NOTES).read_text(), right),
    }
    return files | ({FIGURE: figure(recorded)} if slug == roofline.ENTRY.slug else {})


def main() -> int:
    stale = []
    for entry in (*(grade.ENTRY for grade in GRADES.values()), loop.ENTRY):
        folder = entry.folder / workspace.SOLUTIONS
        if not list((entry.folder / workspace.RECORDED).glob("*.csv")):
            continue  # not recorded yet
        for name, text in written(entry.slug, folder, entry.folder / workspace.RECORDED).items():
            path = folder / name
            if not path.is_file() or path.read_text() != text:
                stale.append(path)
                if "--check" not in sys.argv[1:]:
                    path.write_text(text)
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path}\n" for path in stale)
        return int(bool(stale))
    return 0


if __name__ == "__main__":
    sys.exit(main())
