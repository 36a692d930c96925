# SPDX-License-Identifier: Apache-2.0
"""Attention of one new token with a cache of 65536, and its statistics: the program to be profiled.

make && python run.py
python run.py --steps 100
"""

import argparse
import ctypes
import sys
from pathlib import Path

import torch

HEADS, KEYS, DIM, PAGE = 32, 65536, 64, 64
LIBRARY = Path(__file__).with_name("libattention.so")


def attend(library, *tensors):
    """Call `attend` of attention.cu with these tensors, and the numbers of heads and keys."""
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in tensors]
    error = library.attend(*pointers, HEADS, KEYS)
    if error:
        sys.exit(f"attend returned the CUDA error {error}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("attention.cu needs a GPU; recorded/ has what an H200 showed")
    if not LIBRARY.is_file():
        sys.exit("there is no libattention.so: run make")
    library = ctypes.CDLL(str(LIBRARY))
    torch.manual_seed(0)
    tensors = [
        torch.randn(HEADS, DIM, device="cuda"),
        torch.randn(HEADS, KEYS, DIM, device="cuda"),
        torch.randn(HEADS, KEYS, DIM, device="cuda"),
        torch.empty(HEADS, DIM, device="cuda"),
        torch.empty(HEADS, device="cuda"),
        torch.empty(HEADS, KEYS // PAGE, device="cuda"),
        torch.empty(HEADS * (KEYS + 8192), device="cuda"),
    ]
    attend(library, *tensors)  # loads the kernels
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(args.steps):
        attend(library, *tensors)
    end.record()
    torch.cuda.synchronize()
    print(f"{torch.cuda.get_device_name()}: {begin.elapsed_time(end) / args.steps:.3f} ms per step")


if __name__ == "__main__":
    main()
