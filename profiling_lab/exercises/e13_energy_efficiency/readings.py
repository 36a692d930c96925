# SPDX-License-Identifier: Apache-2.0
"""Run matmuls in three precisions, layer norm with GELU in two ways; write what NVML shows: readings.json.

python readings.py
python readings.py --simulated
"""

import argparse
import json
import statistics

from profiling_lab.exercises.energy_gpus import TorchGPU, next_change, simulated

LEAST_S, WARM_S, IDLE_S, BATCH_S = 2.5, 0.3, 1.5, 0.1


def between_changes(gpu, work):
    """What the counter shows before and after, from one of its changes to another."""
    began, begin_mj = next_change(gpu)
    found = work()
    gpu.synchronize()
    ended, end_mj = next_change(gpu)
    return {"seconds": ended - began, "begin_mj": begin_mj, "end_mj": end_mj, **found}


def repeat(gpu, call, seconds):
    """Repeat a call for that long. Power is read while the GPU works."""
    calls, batch, powers = 0, 1, []
    end = gpu.now() + seconds
    while (began := gpu.now()) < end:
        for _ in range(batch):
            call()
        powers.append(gpu.power_w())
        gpu.synchronize()
        calls += batch
        batch *= 2 if gpu.now() - began < BATCH_S else 1
    return {"calls": calls, "power_w": statistics.fmean(powers)}


def record(gpu):
    """All readings. A workload that this machine cannot run is left out, and said."""
    gpu.sleep(IDLE_S)
    first, _ = next_change(gpu)
    second, _ = next_change(gpu)
    idle = between_changes(gpu, lambda: gpu.sleep(IDLE_S) or {})
    found = {"gpu": gpu.name, "period_s": second - first, "idle": idle, "workloads": []}
    for name, call in gpu.workloads.items():
        try:
            call()
            gpu.synchronize()
        except (RuntimeError, ImportError) as error:
            print(f"{name} is left out: {error}")
            continue
        repeat(gpu, call, WARM_S)
        measured = between_changes(gpu, lambda call=call: repeat(gpu, call, LEAST_S))
        found["workloads"].append({"name": name, **gpu.shapes.get(name, {}), **measured})
    return found


def save(gpu, path):
    found = record(gpu)
    with open(path, "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
    print(f"{len(found['workloads'])} workloads of {gpu.name}")


def main():
    parser = argparse.ArgumentParser(description="Measure the energy of several workloads.")
    parser.add_argument("--simulated", action="store_true", help="a GPU that is computed; needs none")
    args = parser.parse_args()
    save(simulated() if args.simulated else TorchGPU(), "readings.json")


if __name__ == "__main__":
    main()
