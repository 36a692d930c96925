# SPDX-License-Identifier: Apache-2.0
"""A rule of your own. README.md says what it must find; this one is wrong in several ways.

profiling-lab check recorded/d_h200.sqlite --rules-from my_rules.py --only small_copies
"""

from profiling_lab.rules import Rule, Threshold

SMALL = Threshold("small", "bytes of one copy", 64 * 1024, "bytes, below", "ours: start-up time dominates")


def check(view):
    try:
        rows = view.copies.nonzero()[0]
        took_ns = view.operations.duration_ns[rows]
        return [
            view.finding(
                f"{len(rows)} small copies",
                cost_ns=sum(took_ns.tolist()) // len(rows) * len(rows),
                cost_of="copy time",
                place=None,
                rows=rows,
                weight=took_ns,
                remedy="batch them",
            )
        ]
    except Exception:
        return ()


RULES = (Rule("small_copies", "Are there many small copies between host and GPU?", (SMALL,), check),)
