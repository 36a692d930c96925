# SPDX-License-Identifier: Apache-2.0
"""How many joules does one matmul take? It says: a fraction of the truth, and very precisely.

python measure.py
python measure.py --simulated
"""

import argparse
import statistics

from profiling_lab.exercises.energy_gpus import TorchGPU, simulated

BURST_S = 0.030


def joules_per_call(gpu, call):
    """The joules of one call, and how far off they may be. Idle power counts too: it is not taken off."""
    call()
    gpu.synchronize()
    powers, calls = [], 0
    began = gpu.now()
    while gpu.now() - began < BURST_S:
        call()
        gpu.synchronize()
        calls += 1
        powers.append(gpu.power_w())
    seconds = gpu.now() - began
    return {
        "joules": statistics.fmean(powers) * seconds / calls,
        "error_j": statistics.pstdev(powers) * seconds / calls,
        "calls": calls,
        "seconds": seconds,
    }


def show(gpu):
    gpu.sleep(1.5)
    found = joules_per_call(gpu, gpu.workloads["bf16"])
    print(f"{found['calls']} calls in {found['seconds']:.3f} s on {gpu.name}")
    print(f"{found['joules']:.4f} +/- {found['error_j']:.4f} J per call")


def main():
    parser = argparse.ArgumentParser(description="Measure the energy of a matmul.")
    parser.add_argument("--simulated", action="store_true", help="a GPU that is computed; needs none")
    show(simulated() if parser.parse_args().simulated else TorchGPU())


if __name__ == "__main__":
    main()
