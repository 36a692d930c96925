# SPDX-License-Identifier: Apache-2.0
"""How many times faster is the new implementation?

python benchmark.py
python benchmark.py --device torch
"""

import argparse
import statistics

from device import SimulatedGPU, TorchDevice

RUNS, WARM_UPS, INPUTS = 40, 40, 4


def timed(device, call, x):
    """The time of one call, in milliseconds. The GPU has nothing else to do before and after it."""
    device.synchronize()
    begin = device.now()
    call(x)
    device.synchronize()
    return 1e3 * (device.now() - begin)


def compare(device):
    """The times of both implementations, and how many times faster the new one is."""
    inputs = [device.make_input("float32", seed) for seed in range(INPUTS)]
    old_ms, new_ms = [], []
    for turn in range(WARM_UPS + RUNS):  # in turns, each call with another input than the last one
        old = timed(device, device.old, inputs[2 * turn % INPUTS])
        new = timed(device, device.new, inputs[(2 * turn + 1) % INPUTS])
        if turn >= WARM_UPS:
            old_ms.append(old)
            new_ms.append(new)
    return {
        "old_ms": old_ms,
        "new_ms": new_ms,
        "speedup": statistics.median(old_ms) / statistics.median(new_ms),
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
