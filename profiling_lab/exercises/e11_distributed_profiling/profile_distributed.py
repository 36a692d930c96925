# SPDX-License-Identifier: Apache-2.0
"""Record both jobs, rank by rank: with our recorder, and train_ddp.py with torch.profiler too.

python profile_distributed.py run1

writes run1/ddp, run1/fsdp2 and run1/torch, each with a file for every rank. GPUS=4 starts four ranks. The
first steps are not recorded: they make communicators, load kernels and grow memory.
"""

import os
import subprocess
import sys
from pathlib import Path

from profiling_lab.utils.unified_profiler import ProfilingConfig, UnifiedProfiler

GPUS = int(os.environ.get("GPUS", "2"))
WARM, RECORDED = 4, 7  # steps
PROGRAMS = {"ddp": "train_ddp.py", "fsdp2": "train_fsdp.py"}


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python profile_distributed.py FOLDER")
    folder = Path(sys.argv[1])
    for name, program in PROGRAMS.items():
        config = ProfilingConfig(
            "multi-gpu", str(folder / name), GPUS, warmup_steps=WARM, profile_steps=RECORDED
        )
        profiler, arguments = UnifiedProfiler(config), ["--steps", str(WARM + RECORDED)]
        print(*profiler.command(program, arguments), flush=True)
        if status := profiler.profile_script(program, arguments):
            sys.exit(status)
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(GPUS)]
    command = [*start, PROGRAMS["ddp"], "--trace", str(folder / "torch")]
    print(*command, flush=True)
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
