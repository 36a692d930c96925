# SPDX-License-Identifier: Apache-2.0
"""Draw what `profiling-lab demo` printed as a picture of a terminal, in the colours in which it prints.

    profiling-lab demo > docs/demo.txt; python tools/terminal_picture.py < docs/demo.txt > docs/demo.svg

Nothing is added but the prompt.
"""

from __future__ import annotations

import io
import re
import sys

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from profiling_lab.report.screen.terminal import emphasised

COMMAND = "profiling-lab demo"
_TABLE_TITLES = re.compile(r"line +function +")
_TABLE_ROW = re.compile(r"[\w.]+:\d+ {2,}")


def shown(line: str) -> Text:
    """A line of what the demo printed, as its terminal shows it: the table's writer makes its titles bold."""
    if _TABLE_TITLES.match(line):
        return Text(line, style="bold")
    return Text(line) if _TABLE_ROW.match(line) else emphasised(line)


def drawing(output: str) -> str:
    lines = output.rstrip().splitlines()
    console = Console(record=True, width=max(80, *(len(line) + 1 for line in lines)), file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")))
    for line in lines:
        console.print(shown(line))
    drawn = console.export_svg(title=COMMAND, theme=MONOKAI, unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # no font from the network


def main() -> int:
    sys.stdout.write(drawing(sys.stdin.read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
