#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Part 2: the same with Python stacks. Writes python_profile.nsys-rep and python_profile.sqlite.
# Arguments go to train_model.py: ./profile_python.sh --heavy loop
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v nsys >/dev/null; then
  echo "profile_python.sh: nsys (NVIDIA Nsight Systems) is not on the PATH. Install it, or record without it:" \
    "profiling-lab record -o run.sqlite train_model.py --epochs 2" >&2
  exit 2
fi
# --python-backtrace=cuda alone records nothing and says nothing. It rides on two other things:
#   --cudabacktrace=all:0     backtraces of CUDA calls; the :0 matters, by default only calls longer than 80 us count
#   --sample=process-tree     CPU sampling, which must not be off
nsys profile --trace=cuda,nvtx --python-backtrace=cuda --cudabacktrace=all:0 --sample=process-tree \
  --force-overwrite=true -o python_profile "${PYTHON:-python}" -u train_model.py --epochs 2 "$@"
# The stacks are JSON inside the report, and an export leaves JSON out unless it is asked for.
nsys export --type=sqlite --include-json=true --force-overwrite=true -o python_profile.sqlite python_profile.nsys-rep
