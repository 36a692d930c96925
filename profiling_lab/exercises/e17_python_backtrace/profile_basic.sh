#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Part 1: a profile without Python. Writes basic_profile.nsys-rep and prints the kernels by time.
# Arguments go to train_model.py: ./profile_basic.sh --heavy loop
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v nsys >/dev/null; then
  echo "profile_basic.sh: nsys (NVIDIA Nsight Systems) is not on the PATH. Install it, or record without it:" \
    "profiling-lab record -o run.sqlite train_model.py --epochs 2" >&2
  exit 2
fi
# nsys does not overwrite a report by default: a second run would fail at its end.
nsys profile --trace=cuda,nvtx --force-overwrite=true -o basic_profile \
  "${PYTHON:-python}" -u train_model.py --epochs 2 "$@"
nsys stats --force-export=true --report cuda_gpu_kern_sum basic_profile.nsys-rep
