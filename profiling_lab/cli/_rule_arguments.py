# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that use rules: which rules, and which thresholds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiling_lab.rules import Rule
    from profiling_lab.rules.settings import Settings


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


def chosen_rules(
    args: argparse.Namespace, only: list[str] | None = None, skip: list[str] | None = None
) -> tuple[tuple[Rule, ...], Settings]:
    """The selected rules and the thresholds set for them. Raises UsageError for unknown names."""
    from profiling_lab.rules import RULES, load_rules, parse_settings, select

    rules = (*RULES, *(rule for path in args.rules_from for rule in load_rules(path)))
    settings = parse_settings(args.set, select(rules))
    return select(rules, only, skip or ()), settings


def names(text: str) -> list[str]:
    """`a,b-c` as names of rules."""
    return [name.strip().replace("-", "_") for name in text.split(",") if name.strip()]
