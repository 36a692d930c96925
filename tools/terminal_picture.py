# SPDX-License-Identifier: Apache-2.0
"""Draw the output of a command as a picture of a terminal, so that README shows what a person sees.

    python tools/terminal_picture.py "profiling-lab demo" < output.txt > docs/demo.svg

The text is what the command printed; nothing is added but the prompt.
"""

from __future__ import annotations

import io
import re
import sys

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

# What a reader's eye should find first; the command itself prints plain text where it is piped.
EMPHASIS = (
    (r"Conclusion: .*", "bold green"),
    (r"[\w.]+\.py:[\w.()]+(?: line \d+)?", "cyan"),
    (r"\b\d+\.\d+ %", "bold yellow"),
    (r"(?m)^(?:Recorded|Cost|Next):", "bold"),
    (r"(?m)^(?:Top CUDA kernels|GPU time by line).*$", "bold"),
)


def main() -> int:
    command, output = sys.argv[1], sys.stdin.read().rstrip()
    width = max(len(line) for line in output.splitlines()) + 1
    console = Console(record=True, width=max(80, width), file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    text = Text(output)
    for pattern, style in EMPHASIS:
        text.highlight_regex(pattern, style)
    console.print(text)
    drawing = console.export_svg(title=command, theme=MONOKAI)
    drawing = re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL)  # no font from the network
    sys.stdout.write(drawing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
