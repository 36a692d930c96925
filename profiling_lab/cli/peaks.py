# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab peaks`: the rates that this machine's GPU reaches, measured once."""

from __future__ import annotations

import argparse

HELP = "measure what the GPU of this machine can do: memory, arithmetic per dtype, launches, links"
EXAMPLES = """\
  profiling-lab peaks                         measure (some seconds), print, and keep for `roofline`
  profiling-lab peaks --cached                print what was measured before
  profiling-lab peaks -o h200.json            also write a file for --peaks on another machine

The rates are kept in the user's cache folder, with the version of the driver. Measure on an idle GPU.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="also write them to this file")
    parser.add_argument("--overwrite", action="store_true", help="replace that file if it exists")
    parser.add_argument(
        "--cached", action="store_true", help="print what was measured before, measure nothing"
    )
    parser.add_argument("--device", metavar="N", type=int, default=0, help="which CUDA device (default: 0)")
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="the output format (default: table)"
    )


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from profiling_lab.analysis.roofline.peaks import MEASURED, Peaks, cache_file, load, save
    from profiling_lab.errors import UsageError
    from profiling_lab.measure.device import machine
    from profiling_lab.measure.peaks import gpu_of, measure
    from profiling_lab.report.roofline.peaks import peaks_report
    from profiling_lab.report.table import write

    gpu = gpu_of(args.device)
    if args.output and Path(args.output).exists() and not args.overwrite:
        raise UsageError(f"{args.output} exists already; choose another name with -o or pass --overwrite")
    if args.cached:
        peaks = load(cache_file(gpu))
    else:
        rates = measure(args.device)
        facts = machine(f"cuda:{args.device}")
        peaks = Peaks(
            gpu=gpu,
            source=f"{MEASURED} {facts.date[:10]}",
            memory_bytes_per_s=rates.pop("memory_bytes_per_s"),
            flops_per_s={
                name.removesuffix("_flops_per_s"): rates.pop(name)
                for name in list(rates)
                if name.endswith("_flops_per_s")
            },
            driver=facts.driver or "",
            others=rates,
        )
        save(peaks, cache_file(gpu))
    if args.output:
        save(peaks, Path(args.output))
    write(peaks_report(peaks), args.format)
    return 0
