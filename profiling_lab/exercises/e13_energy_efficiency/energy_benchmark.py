# SPDX-License-Identifier: Apache-2.0
"""Which workload is the most efficient? Its joules and its TFLOP/s per watt are wrong.

python energy_benchmark.py readings.json
"""

import argparse
import json


def summary(readings):
    """Of each workload: the milliseconds, joules, their error and joules above idle of a call; TFLOP/s per W.

    Joules are all that the GPU used. Work whose shape is not known has no TFLOP/s per watt: None.
    """
    idle = readings["idle"]
    idle_w = (idle["end_mj"] - idle["begin_mj"]) / 1e3 / idle["seconds"]
    rows = []
    for each in readings["workloads"]:
        seconds = each["seconds"] / each["calls"]
        joules = each["power_w"] * seconds
        above_idle_j = joules - idle_w * seconds
        flops = each["m"] * each["n"] * each["k"] if "m" in each else None
        rows.append(
            {
                "name": each["name"],
                "ms": 1e3 * seconds,
                "joules": joules,
                "error_j": each["power_w"] * readings["period_s"] / each["calls"],
                "above_idle_j": above_idle_j,
                "tflops_per_w": None if flops is None else flops / above_idle_j / 1e12,
            }
        )
    return rows


def show(path):
    with open(path) as file:
        readings = json.load(file)
    print(f"{readings['gpu']:22} {'ms':>8} {'J':>10} {'+/-':>9} {'J above idle':>13} {'TFLOP/s per W':>14}")
    for row in summary(readings):
        rate = "-" if row["tflops_per_w"] is None else f"{row['tflops_per_w']:.4f}"
        print(
            f"{row['name']:22} {row['ms']:8.4f} {row['joules']:10.4g} {row['error_j']:9.2g} "
            f"{row['above_idle_j']:13.4g} {rate:>14}"
        )


def main():
    parser = argparse.ArgumentParser(description="Compare the energy of several workloads.")
    parser.add_argument("readings")
    show(parser.parse_args().readings)


if __name__ == "__main__":
    main()
