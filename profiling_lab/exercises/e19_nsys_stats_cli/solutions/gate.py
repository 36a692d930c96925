# SPDX-License-Identifier: Apache-2.0
"""A gate for CI: fail if all kernels together take more time than before.

python gate.py before.csv after.csv --limit 10

Both files are reports cuda_gpu_kern_sum as CSV. Exit code: 0 within the limit (in per cent), 1 above it, 2 if
a file cannot be used.
"""

import argparse
import csv
import sys

COLUMN = "Total Time (ns)"


def total(path):
    """The time of all kernels. Leaves the program with code 2 if the file does not tell."""
    try:
        with open(path, newline="") as file:
            times = [int(row[COLUMN]) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        print(f"{path} is not a report cuda_gpu_kern_sum: {error!r}", file=sys.stderr)
        sys.exit(2)
    if not times:
        print(f"{path} holds no kernel", file=sys.stderr)
        sys.exit(2)
    return sum(times)


def main():
    parser = argparse.ArgumentParser(description="Fail if kernels take more time than before.")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--limit", type=float, default=10.0, help="per cent")
    args = parser.parse_args()
    before, after = total(args.before), total(args.after)
    print(f"before {before} ns, after {after} ns")
    return 1 if after > before * (1 + args.limit / 100) else 0


if __name__ == "__main__":
    sys.exit(main())
