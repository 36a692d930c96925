# SPDX-License-Identifier: Apache-2.0
"""Load the GPU in steps, and write down what NVML shows of it meanwhile: samples.csv.

python step_load.py
python step_load.py --simulated
"""

import argparse
import csv

from profiling_lab.exercises.energy_gpus import TorchGPU, simulated

LOADS, LOAD_S, IDLE_S = 3, 1.5, 1.5
BURSTS, BURST_S, PAUSE_S = 10, 0.030, 0.170
POLL_S = 0.001
COLUMNS = ("time_s", "phase", "busy", "energy_mj", "power_w", "instant_w")


def watch(gpu, phase, seconds, rows):
    """Sample for that long."""
    end = gpu.now() + seconds
    while (now := gpu.now()) < end:
        instant = gpu.instant_w()
        rows.append(
            (f"{now:.6f}", phase, int(gpu.is_busy()), gpu.energy_mj(), f"{gpu.power_w():.3f}",
             "" if instant is None else f"{instant:.3f}")
        )  # fmt: skip
        gpu.sleep(POLL_S)


def record(gpu):
    """The rows: idle, load, idle, ..., then bursts that are shorter than everything that NVML shows."""
    rows = []
    gpu.load(0.2)  # warm up
    gpu.synchronize()
    watch(gpu, "idle", IDLE_S, rows)
    for _ in range(LOADS):
        gpu.load(LOAD_S)
        while gpu.is_busy():
            watch(gpu, "load", 0.0005, rows)
        watch(gpu, "idle", IDLE_S, rows)
    for _ in range(BURSTS):
        gpu.load(BURST_S)
        watch(gpu, "bursts", BURST_S + PAUSE_S, rows)
    watch(gpu, "end", IDLE_S / 3, rows)
    return rows


def save(gpu, path):
    rows = record(gpu)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    print(f"{len(rows)} samples of {gpu.name}")


def main():
    parser = argparse.ArgumentParser(description="Load the GPU in steps and sample NVML.")
    parser.add_argument("--simulated", action="store_true", help="a GPU that is computed; needs none")
    args = parser.parse_args()
    save(simulated() if args.simulated else TorchGPU(), "samples.csv")


if __name__ == "__main__":
    main()
