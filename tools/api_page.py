# SPDX-License-Identifier: Apache-2.0
"""Fill docs/api.md with what its examples really print.

python tools/api_page.py            # runs every example of the page and rewrites what it printed
python tools/api_page.py --check    # exit code 1 if the page is not what the examples print

Examples are the blocks with `>>>`. They are one session, in order, with the files of tools/analysis_page.py:
run.sqlite is the H200 recording that ships with the first exercise; and with before.sqlite and after.sqlite,
those of the README.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis_page import examples

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs" / "api.md"
_BLOCK = re.compile(r"(?<=```python\n)>>> .*?(?=```\n)", re.DOTALL)
_STATEMENT = re.compile(r"^>>> .*(?:\n\.\.\. .*)*", re.MULTILINE)


def said(statement: str, names: dict[str, Any]) -> Iterator[str]:
    """What the interpreter prints for a statement, of an exception its last line."""
    source = "\n".join(line[4:] for line in statement.splitlines())
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(compile(source + "\n", "<page>", "single"), names)
        except Exception as error:
            out.write(traceback.format_exception_only(error)[-1])
    yield from (line.rstrip() for line in out.getvalue().splitlines())


def filled(page: str) -> str:
    names: dict[str, Any] = {}

    def block(match: re.Match[str]) -> str:
        lines = []
        for statement in _STATEMENT.findall(match[0]):
            lines += [statement, *said(statement, names)]
        return "\n".join(lines) + "\n"

    with tempfile.TemporaryDirectory() as folder:
        examples(Path(folder))
        for side in ("before", "after"):
            shutil.copy(REPO / "docs" / "fast_ops" / f"{side}_h200.sqlite", Path(folder) / f"{side}.sqlite")
        there = Path.cwd()
        os.chdir(folder)
        try:
            return _BLOCK.sub(block, page)
        finally:
            os.chdir(there)


def main() -> int:
    before = PAGE.read_text()
    now = filled(before)
    if "--check" in sys.argv[1:]:
        lines = (text.splitlines(keepends=True) for text in (before, now))
        sys.stderr.writelines(difflib.unified_diff(*lines, str(PAGE.relative_to(REPO)), "now"))
        return int(now != before)
    PAGE.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
