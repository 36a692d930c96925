# SPDX-License-Identifier: Apache-2.0
"""The sampling rate of Python stacks: options of `record` and `attach`."""

from __future__ import annotations

import argparse

USUAL_HZ = 200
"""no measurable overhead (benchmarks/results/recorder_sampling.jsonl)"""
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
    """The sampling options; all are false or None if the user set none."""
    return [args.no_samples, args.sample_python, args.sample_hz]


def sample_hz(args: argparse.Namespace) -> int:
    """Samples per second; 0: none. --no-stacks also turns sampling off, unless it was requested.

    Raises UsageError for a rate below 1, and for options that contradict each other.
    """
    from profiling_lab.errors import UsageError

    if args.sample_hz is not None and args.sample_hz < 1:
        raise UsageError(f"--sample-hz expects a number of samples per second, not {args.sample_hz}")
    if args.no_samples:
        if args.sample_python or args.sample_hz is not None:
            raise UsageError("--no-samples cannot be combined with --sample-python or --sample-hz")
        return 0
    if args.sample_hz is not None:
        return int(args.sample_hz)
    if args.sample_python:
        return CLOSE_HZ
    return 0 if args.no_stacks else USUAL_HZ
