# SPDX-License-Identifier: Apache-2.0
"""Texts use the words of CUDA, PyTorch and Nsight documentation.

Each pattern stands for a habit that read as if translated. To quote one of them on purpose, end the line with
`# word: quoted` (in C++ `// word: quoted`, in Markdown `<!-- word: quoted -->`). What a program printed, in a
`text` block of a page, is not checked here: the texts of the program are.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from of_each import of_each

OWN = Path(__file__).resolve()
REPO = OWN.parents[1]
FOLDERS = (
    "benchmarks/",
    "profiling_lab/analysis/",
    "profiling_lab/api/",
    "profiling_lab/cli/",
    "profiling_lab/demo/",
    "profiling_lab/doctor/",
    "profiling_lab/exercises/",
    "profiling_lab/export/",
    "profiling_lab/integrations/",
    "profiling_lab/measure/",
    "profiling_lab/models/",
    "profiling_lab/ops/",
    "profiling_lab/recording/",
    "profiling_lab/report/",
    "profiling_lab/rules/",
    "profiling_lab/trace/",
    "profiling_lab/utils/",
    "tests/",
    "tools/",
    "csrc/analysis/",
    "csrc/cuda/",
    "csrc/ops/",
    "csrc/recorder/",
    "csrc/torch_abi/",
    "csrc/trace/",
    "docs/",
)
SUFFIXES = {".py", ".md", ".toml", ".h", ".c", ".cpp", ".cu", ".cuh"}
QUOTED = re.compile(r"(#|//|<!--) word: quoted( -->)?$")
PRINTED = re.compile(r"^```text\n.*?^```$", re.S | re.M)
INSTEAD = {
    r"dear(er|est|ly)?|dearest_\w+|costliest": "expensive, hottest",
    r"soften\w*": "the operation's name, such as lazy rescaling",
    r"settle[sd]?|settling": "decide, stabilise",
    r"two doors": "two paths",
    r"multiprocessors?": "SM",
    r"of the user's|of one's own": "the user's own ..., your own ...",
    r"stood still|stands? still": "was blocked (host), was idle (GPU)",
    r"(held|holds?) the host( up)?": "blocked the host, blocks the host",
    r"memory sets?": "memset",
    r"products of matrices|matrix products?": "matrix multiplication, GEMM",
    r"pass(es|ing)? over memory": "memory-bound",
    r"side by side": "concurrently, overlapping",
    r"told apart|tells? (\w+ )?apart": "distinguish",
    r"nobody|somebody": "say who or what",
    r"beside": "next to, together with, besides",
    r"that is none": "not a ...",
    r"(?<!here )(is|are|was) no (trace|SQLite|GPU trace|valid|function|tuple|signal|spool)\b": "not a",
    r"so many|so much": "say the number or the limit",
    r"stretch(es)?": "interval, window, part",
    r"(goes|go) with commas|goes by the clock|by the clock": "seconds, by time",
    r"what became of|how it went": "the result of",
    r"(lies|lie|lay) (beside|idle|there)": "is",
    r"(Here|There) lies|Counted (is|are)|Compared (is|are)": "no inversions: the rule counts, compares",
    r"class (Seat|Card|Question|Verdict|Conductor|Meaning|Ending|Held|Wanted)\b": "a name of the field",
}
PATTERNS = [
    (re.compile(words), re.compile(rf"(?<![\w.\"-])(?:{words})(?![\w(])"), instead)
    for words, instead in INSTEAD.items()
]


def sources() -> list[Path]:
    """Files under version control in these folders; in an unpacked sdist, all files in them."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=True).stdout
        names = [name for name in listing.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [
            path.relative_to(REPO).as_posix() for folder in FOLDERS for path in (REPO / folder).rglob("*")
        ]
    chosen = [REPO / n for n in names if n.startswith(FOLDERS) or re.fullmatch(r"profiling_lab/\w+\.pyi?", n)]
    return [path for path in chosen if path.is_file() and path.suffix in SUFFIXES and path != OWN]


def found_in(text: str) -> list[str]:
    """`line: words (what to say instead)` for each banned phrase."""
    text = PRINTED.sub(lambda block: "\n" * block.group().count("\n"), text)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if not QUOTED.search(line)]
    rest = "\n".join(line for _, line in lines)
    return [
        f"{number}: {match.group()!r} (say: {instead})"
        for words, pattern, instead in PATTERNS
        if words.search(rest)  # most files have none of them, and without what is around them it is fast
        for number, line in lines
        for match in pattern.finditer(line)
    ]


@of_each(sources())
def test_words_of_the_field(path: Path) -> None:
    assert not found_in(path.read_text())


def test_the_check_finds_what_it_bans() -> None:
    assert found_in("the host stood still\n# x") == [
        "1: 'stood still' (say: was blocked (host), was idle (GPU))"
    ]
    assert len(found_in("two doors, beside 132 multiprocessors\nclass Verdict:")) == 4
    assert found_in("called 'two doors'  # word: quoted\nbeside <!-- word: quoted -->") == []
    assert found_in("```text\nbeside\n```\nbeside") == ["4: 'beside' (say: next to, together with, besides)"]
    assert found_in("the GPU was idle, the launch queue was full") == []
