# SPDX-License-Identifier: Apache-2.0
"""Who holds memory? Reads a trace that torch.profiler wrote with profile_memory=True.

python memory.py trace.json                            the peak, when it is, and what is alive then
python memory.py trace.json --within "train > loss"    the same for the highest moment within a range

Each block of memory has the ranges (record_function) in which it was allocated, and the operator. What
allocates a block does not keep it: a list, a variable or a graph does, and no trace shows these. Look for
blocks that are alive long after the range in which they were made.
"""

import argparse
import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

MB = 1e6
OUTSIDE = "-"


@dataclass(frozen=True)
class Block:
    """Memory that was allocated at once."""

    bytes: int
    within: str
    """the ranges, the outermost first: "train > loss" """
    op: str
    """the outermost operator of the innermost range"""


@dataclass(frozen=True)
class Moment:
    """What is alive at some time."""

    bytes: int
    within: str
    blocks: tuple


class Spans:
    """Spans of one thread that contain each other, and the innermost or outermost around a time."""

    def __init__(self):
        self.spans, self.starts, self.parents = [], [], []

    def add(self, event, name):
        self.spans.append((event["ts"], event["ts"] + event.get("dur", 0), name))

    def sort(self):
        self.spans.sort(key=lambda span: (span[0], -span[1]))
        self.starts = [span[0] for span in self.spans]
        open_spans = []
        for number, (begin, _, _) in enumerate(self.spans):
            while open_spans and self.spans[open_spans[-1]][1] <= begin:
                open_spans.pop()
            self.parents.append(open_spans[-1] if open_spans else -1)
            open_spans.append(number)

    def around(self, time):
        """All spans that contain this time, innermost first."""
        number = bisect_right(self.starts, time) - 1
        found = []
        while number >= 0:
            if self.spans[number][1] >= time:
                found.append(self.spans[number])
            number = self.parents[number]
        return found


def read(path):
    """The events of a trace."""
    path = Path(path)
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return json.loads(data)["traceEvents"]


def moments(events):
    """All moments at which memory was allocated or freed, with what is alive after it, in order of time."""
    ranges, ops = defaultdict(Spans), defaultdict(Spans)
    changes = []
    for event in events:
        thread, category, name = event.get("tid"), event.get("cat"), event.get("name", "")
        if category == "user_annotation" and "#" not in name:  # torch's own: Optimizer.step#AdamW.step
            ranges[thread].add(event, name)
        elif category == "cpu_op":
            ops[thread].add(event, name)
        elif name == "[memory]" and event["args"]["Device Type"] == 0:
            changes.append(event)
    for spans in (*ranges.values(), *ops.values()):
        spans.sort()
    alive, total = {}, 0
    for event in sorted(changes, key=lambda each: (each["ts"], each["args"].get("Ev Idx", 0))):
        thread, time, args = event["tid"], event["ts"], event["args"]
        around = ranges[thread].around(time)
        within = " > ".join(span[2] for span in reversed(around)) or OUTSIDE
        if args["Bytes"] < 0:
            freed = alive.pop(args["Addr"], None)  # None: allocated before the profiler started
            total -= freed.bytes if freed else 0
        else:
            own = [span[2] for span in ops[thread].around(time) if not around or span[0] >= around[0][0]]
            alive[args["Addr"]] = Block(args["Bytes"], within, own[-1] if own else OUTSIDE)
            total += args["Bytes"]
        yield total, within, alive


def peak(events, within=""):
    """The moment with most memory; within one range if it is named."""
    highest = Moment(0, OUTSIDE, ())
    for total, where, alive in moments(events):
        if total > highest.bytes and (not within or where == within):
            highest = Moment(total, where, tuple(alive.values()))
    return highest


def main():
    parser = argparse.ArgumentParser(description="Show what holds memory at the peak.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--within", default="", help='the highest moment within these ranges: "train > loss"')
    args = parser.parse_args()
    events = read(args.trace)
    found = peak(events, args.within)
    if not found.blocks:
        parser.error("no memory events (profile_memory=True), or none within that range")
    print(f"{found.bytes / MB:.1f} MB at the peak, within {found.within}\n")
    print(f"{'MB':>8} {'blocks':>7} {'largest':>8}  {'allocated within':20}  operator")
    groups = defaultdict(list)
    for block in found.blocks:
        groups[block.within, block.op].append(block.bytes)
    for (within, op), sizes in sorted(groups.items(), key=lambda each: -sum(each[1])):
        if sum(sizes) >= found.bytes / 200:
            size = f"{sum(sizes) / MB:8.2f} {len(sizes):7} {max(sizes) / MB:8.2f}"
            print(f"{size}  {within:20}  {op}")


if __name__ == "__main__":
    main()
