#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# nvcc and the static CUDA runtime into a manylinux_2_28 image (AlmaLinux 8); no driver is needed to compile.
set -euo pipefail
version=${CUDA_VERSION:-12-9} # a driver from 525 on runs what 12.x made
arch=$(uname -m)
[ "$arch" = aarch64 ] && arch=sbsa
dnf install -y dnf-plugins-core
dnf config-manager --add-repo "https://developer.download.nvidia.com/compute/cuda/repos/rhel8/$arch/cuda-rhel8.repo"
dnf install -y "cuda-nvcc-$version" "cuda-cudart-devel-$version" "cuda-cccl-$version"
ln -sfn "/usr/local/cuda-${version/-/.}" /usr/local/cuda
