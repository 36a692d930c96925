# SPDX-License-Identifier: Apache-2.0
"""How many joules does one matmul take? By the energy counter, with an error bar.

python measure.py
python measure.py --simulated
"""

import argparse

from profiling_lab.exercises.energy_gpus import TorchGPU, next_change, simulated

LEAST_S, BATCH = 4.0, 10


def joules_per_call(gpu, call):
    """The joules of one call, and how far off they may be. Idle power counts too: it is not taken off."""
    call()
    gpu.synchronize()
    earlier, _ = next_change(gpu)
    began, first_mj = next_change(gpu)
    calls = 0
    while gpu.now() - began < LEAST_S:
        for _ in range(BATCH):  # the GPU does not wait for the host between them
            call()
        gpu.synchronize()
        calls += BATCH
    ended, last_mj = next_change(gpu)  # up to a period later, in which the GPU does nothing
    joules, seconds = (last_mj - first_mj) / 1e3, ended - began
    period = began - earlier
    return {
        "joules": joules / calls,
        "error_j": joules / seconds * period / calls,
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
