# SPDX-License-Identifier: Apache-2.0
"""Keep the states in docs/curriculum: rows that rest on exercises alone, and the counts on the first page.

python tools/curriculum_page.py            # rewrites both
python tools/curriculum_page.py --check    # exit code 1 if a page is not what the catalogue and the rows say
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from benchmark_tables import table

from profiling_lab.exercises import catalogue

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "curriculum"
INDEX = FOLDER / "index.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)
STATES = ("works", "partly", "planned", "not covered")
ROW = re.compile(r"^\| (?P<item>S\d+) \| (?P<what>.+?) \| (?P<state>[a-z ]+) \| (?P<where>.+) \|$", re.M)
_EXERCISES = re.compile(r"^exercises? E(\d\d)(?: to E(\d\d))?(?: \(\d+ of \d+ built\))?")
_COUNTS = re.compile(r"<!-- counts -->\n.*?<!-- end of counts -->\n", re.S)


def with_states(page: str) -> str:
    """The page with the rows that rest on exercises as the catalogue has them today."""
    built = {exercise.number for exercise in catalogue()}

    def row(found: re.Match[str]) -> str:
        named = _EXERCISES.match(found["where"])
        if not named:
            return found.group()
        first, last = int(named[1]), int(named[2] or named[1])
        wanted = set(range(first, last + 1))
        count = len(wanted & built)
        state = "works" if count == len(wanted) else "partly" if count else "planned"
        text = f"exercise E{first:02}"
        if last > first:
            text = f"exercises E{first:02} to E{last:02} ({count} of {len(wanted)} built)"
        return f"| {found['item']} | {found['what']} | {state} | {text}{found['where'][named.end() :]} |"

    return ROW.sub(row, page)


def counts(pages: dict[Path, str]) -> str:
    rows, everything = [], Counter[str]()
    for path, page in pages.items():
        title = page.splitlines()[0].removeprefix("# The curriculum: ")
        found = Counter(match["state"] for match in ROW.finditer(page))
        everything += found
        cells = (str(found.total()), *(str(found[state]) for state in STATES))
        rows.append((f"[{title}]({path.name})", *cells))
    rows.append(("all", str(everything.total()), *(str(everything[state]) for state in STATES)))
    return "\n".join(table(("part", "items", *STATES), rows))


def main() -> int:
    now = {path: with_states(path.read_text()) for path in PAGES}
    block = f"<!-- counts -->\n{counts(now)}\n<!-- end of counts -->\n"
    now[INDEX] = _COUNTS.sub(lambda _: block, INDEX.read_text())
    stale = [path for path, text in now.items() if path.read_text() != text]
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path.name}\n" for path in stale)
        return int(bool(stale))
    for path in stale:
        path.write_text(now[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
