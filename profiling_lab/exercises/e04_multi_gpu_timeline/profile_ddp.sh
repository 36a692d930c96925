#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Records all ranks of ddp_training.py with Nsight Systems: one report of the machine, and its SQLite export, which
# the commands of README.md read as they read a folder. Arguments go to the program: ./profile_ddp.sh --steps 8
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v nsys >/dev/null; then
  echo "profile_ddp.sh: nsys (NVIDIA Nsight Systems) is not on the PATH. Install it, or record without it:" \
    "profiling-lab exercise profile" >&2
  exit 2
fi
# One nsys around torchrun traces the processes below it. CUDA_VISIBLE_DEVICES must not choose one GPU for all of them.
nsys profile --trace=cuda,nvtx --force-overwrite=true -o ddp_profile \
  "${PYTHON:-python}" -m torch.distributed.run --nproc-per-node "${GPUS:-2}" ddp_training.py "$@"
# Message sizes and communicators are in NVTX payloads, which an export leaves out unless it is asked for.
nsys export --type=sqlite --include-blobs=true --force-overwrite=true -o ddp_profile.sqlite ddp_profile.nsys-rep
