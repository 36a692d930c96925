# SPDX-License-Identifier: Apache-2.0
"""What communication costs each rank: the sum of its kernels, the time in which any ran, and what is exposed.

python analyze_nccl.py run1

`profiling-lab collectives` and `ranks` show more. Here are the intervals behind their numbers.
"""

import sys

from profiling_lab.analysis.ranks.reading import files_of
from profiling_lab.errors import LabError
from profiling_lab.trace import Trace
from profiling_lab.trace.operation_classes import OperationClass, operation_classes


def union(spans):
    """The same time as disjoint intervals, in order: what overlaps counts once."""
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def shared(one, other):
    """The time that is in both of two unions."""
    time, i, j = 0, 0, 0
    while i < len(one) and j < len(other):
        time += max(min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]), 0)
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return time


def length(spans):
    return sum(end - start for start, end in spans)


def report(path):
    with Trace.open(path) as trace:
        classes = operation_classes(trace.operations).tolist()
        spans = list(
            zip(trace.operations.start_ns.tolist(), trace.operations.end_ns.tolist(), classes, strict=True)
        )
    talks = [(start, end) for start, end, kind in spans if kind == OperationClass.COMMUNICATION]
    computes = union((start, end) for start, end, kind in spans if kind == OperationClass.COMPUTE)
    busy = union(talks)
    hidden = shared(busy, computes)
    parts = (
        ("summed", length(talks)),
        ("any", length(busy)),
        ("hidden", hidden),
        ("exposed", length(busy) - hidden),
    )
    print(f"{path}: {len(talks)} kernels", *(f"{name} {ns / 1e6:.3f} ms" for name, ns in parts), sep=", ")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python analyze_nccl.py FOLDER, with a recording for each rank")
    try:
        for path in files_of(sys.argv[1:]):
            report(path)
    except LabError as error:
        sys.exit(f"analyze_nccl.py: {error}")


if __name__ == "__main__":
    main()
