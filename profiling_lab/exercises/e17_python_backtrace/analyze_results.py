# SPDX-License-Identifier: Apache-2.0
"""Print the most expensive kernels, the Python lines that launched them, and a conclusion.

python analyze_results.py run.sqlite
"""

import argparse
import sys
from pathlib import Path

from profiling_lab.errors import LabError
from profiling_lab.report import bottleneck
from profiling_lab.trace import Trace

RECORDED = Path(__file__).parent / "recorded" / "demo_h200.sqlite"


def main():
    parser = argparse.ArgumentParser(
        description="Show the most expensive kernels and the lines that launched them."
    )
    parser.add_argument("trace", nargs="?", default=RECORDED, help="from profiling-lab record or nsys export")
    parser.add_argument("--limit", type=int, default=5, help="how many kernels to show (5)")
    parser.add_argument("--max-depth", type=int, default=6, help="how many frames to show of each stack (6)")
    parser.add_argument("--module", help="show only frames whose file name ends with this, e.g. model.py")
    args = parser.parse_args()
    try:
        found = bottleneck.find(Trace.open(args.trace))
    except LabError as error:
        print(f"analyze_results.py: {error}", file=sys.stderr)
        return error.exit_code
    print("Top CUDA Kernels by Time:")
    for line in bottleneck.kernel_tree(found, limit=args.limit, depth=args.max_depth, module=args.module):
        print(line)
    print()
    print(f"Conclusion: {bottleneck.conclusion(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
