# SPDX-License-Identifier: Apache-2.0
"""Measure the links, and record train.py on all GPUs: what was made is named in communication.json.

python communication_benchmark.py
python communication_benchmark.py --bucket-mb 64 -o second.json      the second run, after your prediction
python communication_benchmark.py --show communication.json          print it again
python communication_benchmark.py --cpu                              two processes, no GPU: the links alone
"""

import argparse
import json
import tempfile
from pathlib import Path

from profiling_lab.analysis.collectives.nccl_text import VARIABLES, nccl_facts, shown, telling_lines
from profiling_lab.exercises.rank_programs import on_ranks, recorded, run
from profiling_lab.measure import machine
from profiling_lab.measure.local_ranks import gpus

PROGRAM, LINKS = "train.py", "links.json"
MOST = 4
RECORDED_STEPS = "4:11"
"""the first steps connect the ranks and grow memory"""


def measured_links(ranks, cpu):
    """`profiling-lab interconnect`, into the file LINKS."""
    how = ["--cpu", "--largest", "4"] if cpu else []
    command = ["-m", "profiling_lab", "interconnect", "--ranks", str(ranks), "-o", LINKS, "--overwrite", *how]
    print(run(command), end="")


def traced(ranks, name, program):
    """Record the program, and keep what NCCL says of itself: the names of the files, and its lines."""
    with tempfile.TemporaryDirectory() as folder:
        said = {**VARIABLES, "NCCL_DEBUG_FILE": f"{folder}/nccl.%p.txt"}
        files = recorded(ranks, name, program, RECORDED_STEPS, **said)
        texts = [path.read_text(errors="replace") for path in sorted(Path(folder).iterdir())]
    return files, telling_lines("\n".join(texts))


def show(found):
    """What there is to look at."""
    print("\n".join(shown(nccl_facts("\n".join(found["nccl"])))))
    files = " ".join(found["recordings"])
    print(f"profiling-lab interconnect {found['links']}")
    print(f"profiling-lab collectives {files} --by kind --links {found['links']}")
    print(f"profiling-lab ranks {files}")


def main():
    parser = argparse.ArgumentParser(description="Measure links, and record train.py.")
    parser.add_argument("-o", "--output", type=Path, default=Path("communication.json"))
    parser.add_argument("--bucket-mb", type=int, default=0, help="another bucket size; the links are known")
    parser.add_argument("--cpu", action="store_true", help="two processes without GPUs")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print one of these files, measure nothing")
    args = parser.parse_args()
    if args.show:
        show(json.loads(args.show.read_text()))
        return
    ranks = 2 if args.cpu else min(gpus(), MOST)
    if ranks < 2:
        raise SystemExit(f"expected two GPUs, found {ranks}: recorded/ has what four H200 gave")
    if not args.bucket_mb or not Path(LINKS).is_file():
        measured_links(ranks, args.cpu)
    if args.cpu:
        print(run([*on_ranks(ranks), PROGRAM, "--device", "cpu"]), end="")
        return
    more = ["--bucket-mb", str(args.bucket_mb)] if args.bucket_mb else []
    files, nccl = traced(ranks, args.output.stem, [PROGRAM, *more])
    here = machine("cuda")
    found = {
        "gpu": here.gpu, "driver": here.driver, "torch": here.torch, "date": here.date,
        "bucket_mb": args.bucket_mb, "links": LINKS, "recordings": files, "nccl": nccl,
    }  # fmt: skip
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    show(found)


if __name__ == "__main__":
    main()
