# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that use rules: which rules, and which thresholds."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rules-from",
        metavar="FILE.py",
        action="append",
        type=Path,
        default=[],
        help="also use the rules in the tuple RULES of this Python file, which is executed (for an example "
        "see "
        "`profiling-lab rules --help`)",
    )
    parser.add_argument(
        "--set",
        metavar="RULE.NAME=VALUE",
        action="append",
        default=[],
        help="set a threshold, such as dataloader.share=10%%; may be given several times",
    )
