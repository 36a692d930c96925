# SPDX-License-Identifier: Apache-2.0
"""`profiling-lab interconnect`: what the links between the GPUs of this machine, or of a job, reach."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from profiling_lab.cli import _trace_arguments as shared

if TYPE_CHECKING:
    from profiling_lab.analysis.collectives.links import Links

HELP = "measure what the links between GPUs reach: latency and bandwidth of each collective, by size"
EXAMPLES = """\
  profiling-lab interconnect                          every GPU of this machine; prints a fit per collective
  profiling-lab interconnect -o links.json            keep the times, for `collectives --links links.json`
  profiling-lab interconnect links.json --by size     print what was measured before, with every size
  profiling-lab interconnect --ranks 2 --largest 64   two GPUs, messages up to 64 MiB
  profiling-lab interconnect --cpu --ranks 2          two processes and gloo, to see what it does: no GPU
  torchrun --nnodes 2 ... -m profiling_lab interconnect -o links.json
                                                      the ranks of a job; rank 0 prints and writes

Takes some seconds, and memory for two messages of the largest size. Measure while the GPUs are idle.
Bandwidths are the bus bandwidths of nccl-tests: what each link carries, comparable with its figure. The
latency is that of one call after another on the GPU; the time in which the host launches it is not in it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="print this file of `interconnect -o`, measure nothing"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="also write the times to this file")
    parser.add_argument("--overwrite", action="store_true", help="replace that file if it exists")
    parser.add_argument(
        "--ranks", metavar="N", type=shared.positive, help="how many (default: the GPUs of this machine)"
    )
    parser.add_argument(
        "--largest",
        metavar="MIB",
        type=shared.positive,
        default=1024,
        help="the largest buffer, in MiB (default: 1024)",
    )
    parser.add_argument("--cpu", action="store_true", help="measure gloo between processes, without GPUs")
    parser.add_argument(
        "--by", choices=("kind", "size"), default="kind", help="a fit per collective (default), or every size"
    )
    shared.add_format(parser)


def run(args: argparse.Namespace) -> int:
    import os
    from pathlib import Path

    from profiling_lab.analysis.collectives.links import load, save
    from profiling_lab.errors import UsageError
    from profiling_lab.report.links import links_report
    from profiling_lab.report.table import write

    if args.file:
        if args.output:
            raise UsageError("expected FILE to print or -o FILE to write, got both")
        write(links_report(load(Path(args.file)), args.by), args.format)
        return 0
    is_first = int(os.environ.get("RANK", "0")) == 0
    if args.output and is_first and Path(args.output).exists() and not args.overwrite:
        raise UsageError(f"{args.output} exists already; choose another name with -o or pass --overwrite")
    found = _measured(args)
    if found is None:
        return 0
    if args.output:
        save(found, Path(args.output))
    write(links_report(found, args.by), args.format)
    return 0


def _measured(args: argparse.Namespace) -> Links | None:
    """None on ranks other than 0 of a job."""
    from profiling_lab.analysis.collectives.links import Links, LinkTime
    from profiling_lab.errors import UsageError
    from profiling_lab.measure import links, local_ranks
    from profiling_lab.measure.device import machine

    asked = {"largest_bytes": args.largest << 20}
    rows: list[dict[str, Any]] = []
    if local_ranks.launched():
        rows = local_ranks.in_this_job(links.on_each_rank, asked, device="cpu" if args.cpu else "cuda")
        if not rows:
            return None
    else:
        ranks = args.ranks or (2 if args.cpu else local_ranks.gpus())
        if ranks < 2:
            raise UsageError(
                f"expected at least two ranks, got {ranks}: a link has two ends "
                "(--cpu --ranks 2 needs no GPU)"
            )
        call = "profiling_lab.measure.links:on_each_rank"
        rows = local_ranks.run(call, asked, ranks, device="cpu" if args.cpu else "cuda")[0]
    here = machine("cpu" if args.cpu else "cuda")
    return Links(
        gpu=here.gpu or "",
        date=here.date,
        backend=links.backend(args.cpu),
        driver=here.driver or "",
        torch=here.torch or "",
        topology="" if args.cpu else links.topology(max(row["ranks"] for row in rows)),
        times=tuple(LinkTime(**row) for row in rows),
    )
