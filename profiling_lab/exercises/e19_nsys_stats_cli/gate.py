# SPDX-License-Identifier: Apache-2.0
"""A gate for CI: fail if all kernels together take more time than before. It is wrong in several ways.

python gate.py before.csv after.csv --limit 10

Both files are reports cuda_gpu_kern_sum as CSV. Exit code: 0 within the limit (in per cent), 1 above it, 2 if
a file cannot be used.
"""

import argparse
import sys


def total(path):
    """The time of all kernels."""
    found = 0.0
    try:
        with open(path) as file:
            for line in file.read().splitlines()[1:]:
                found += float(line.split(",")[2])
    except Exception:
        pass
    return found


def main():
    parser = argparse.ArgumentParser(description="Fail if kernels take more time than before.")
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--limit", type=float, default=10.0, help="per cent")
    args = parser.parse_args()
    before, after = total(args.before), total(args.after)
    print(f"before {before:.0f} ns, after {after:.0f} ns")
    return 1 if after > before + args.limit else 0


if __name__ == "__main__":
    sys.exit(main())
