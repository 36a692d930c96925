#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nvcc and the static CUDA runtime from their Python packages into /usr/local/cuda; no driver is needed to compile.
set -euo pipefail
version=${CUDA_VERSION:-13.0}
packages=(nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvvm nvidia-cuda-crt)
python3 -m pip install --quiet --no-deps --target /opt/cuda "${packages[@]/%/==$version.*}"
toolkit=$(dirname "$(dirname "$(find /opt/cuda -name nvcc -type f)")")
ln -sfn lib "$toolkit/lib64" # where nvcc looks for the static runtime
ln -sfn "$toolkit" /usr/local/cuda
