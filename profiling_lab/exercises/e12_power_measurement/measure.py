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
    """The joules of one call, and how far off they may be; all that the GPU uses counts, not idle power less."""
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


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Measure the energy of a matmul.")
    parser.add_argument("--simulated", action="store_true", help="a GPU that is computed; needs none")
    args = parser.parse_args(arguments)
    gpu = simulated() if args.simulated else TorchGPU()
    gpu.sleep(1.5)
    found = joules_per_call(gpu, gpu.workloads["bf16"])
    print(f"{found['calls']} calls in {found['seconds']:.3f} s on {gpu.name}")
    print(f"{found['joules']:.4f} +/- {found['error_j']:.4f} J per call")
    gpu.close()


if __name__ == "__main__":
    main()
