# SPDX-License-Identifier: Apache-2.0
"""How often Python is sampled: the options of `record` and `attach`."""

from __future__ import annotations

import argparse

USUAL_HZ = 200
"""costs nothing that can be measured (benchmarks/results/recorder_sampling.jsonl)"""
CLOSE_HZ = 1000


def add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-samples",
        action="store_true",
        help=f"do not sample the Python stacks of all threads (default: {USUAL_HZ} times a second from the "
        "first CUDA call on: `gaps` and `check` then name the lines the host was in)",
    )
    parser.add_argument("--sample-python", action="store_true", help=f"sample them {CLOSE_HZ} times a second")
    parser.add_argument(
        "--sample-hz", metavar="N", type=int, default=None, help="sample them N times a second"
    )


def sampling_options(args: argparse.Namespace) -> list[object]:
    """What was asked for; nothing of it is true where the defaults are left as they are."""
    return [args.no_samples, args.sample_python, args.sample_hz]


def sample_hz(args: argparse.Namespace) -> int:
    """Samples a second; 0: none. Samples are stacks: without stacks there are none unless asked for.

    Raises UsageError for a rate that is none, and for options that contradict each other.
    """
    from profiling_lab.errors import UsageError

    if args.sample_hz is not None and args.sample_hz < 1:
        raise UsageError(f"--sample-hz is a number of samples a second, not {args.sample_hz}")
    if args.no_samples:
        if args.sample_python or args.sample_hz is not None:
            raise UsageError("--no-samples excludes --sample-python and --sample-hz")
        return 0
    if args.sample_hz is not None:
        return int(args.sample_hz)
    if args.sample_python:
        return CLOSE_HZ
    return 0 if args.no_stacks else USUAL_HZ
