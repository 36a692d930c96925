# SPDX-License-Identifier: Apache-2.0
"""Draw a roofline from a report of ncu.

python roofline.py REPORT.csv -o roofline.svg [--json points.json]
"""

import argparse
import json
import math
from pathlib import Path

from profiling_lab.analysis.ncu.report import read

WIDTH, HEIGHT, MARGIN = 760, 480, 60
X, Y = (1e-2, 1e4), (1e-3, 1e3)  # FLOP per byte, TFLOP/s
NEAR_ROOF = 0.55  # with less than this share of its roof a kernel is bound by something else
OP = "smsp__sass_thread_inst_executed_op_"


def flop(launch):
    """The floating-point operations of a launch."""
    counts = {"fadd": 1, "fmul": 1, "ffma": 2}
    return sum(count * launch.value(f"{OP}{each}_pred_on.sum") for each, count in counts.items())


def moved(launch):
    """The bytes that a launch moves to and from device memory."""
    return launch.value("dram__bytes_read.sum") + launch.value("dram__bytes_write.sum")


def roofs(report):
    """Measured: bytes per second of peak_copy, FLOP per second of peak_fma."""
    copy, fma = report.last("peak_copy"), report.last("peak_fma")
    return moved(copy) / copy.duration_ns * 1e9, flop(fma) / fma.duration_ns * 1e9


def point(launch, memory, compute):
    """Where a launch is: FLOP per byte, TFLOP/s, the share of its roof (0 to 1), and what it is bound by."""
    seconds = launch.duration_ns / 1e9
    rate = flop(launch) / seconds
    intensity = flop(launch) / moved(launch) if moved(launch) else math.inf
    bound = "memory" if intensity < compute / memory else "compute"
    share = moved(launch) / seconds / memory if bound == "memory" else rate / compute
    if share < NEAR_ROOF:
        bound = "neither"
    return {
        "kernel": launch.function,
        "intensity": intensity,
        "tflops": rate / 1e12,
        "share": share,
        "bound": bound,
    }


def points(report):
    """A point for each kernel but the two roofs: of its last launch."""
    memory, compute = roofs(report)
    last = {launch.function: launch for launch in report.launches}
    return [
        point(launch, memory, compute)
        for name, launch in last.items()
        if name not in ("peak_copy", "peak_fma")
    ]


def place(value, ends, size):
    """The place of a value on a logarithmic axis."""
    low, high = (math.log10(end) for end in ends)
    at = (math.log10(min(max(value, ends[0]), ends[1])) - low) / (high - low)
    return MARGIN + at * (size - 2 * MARGIN)


def drawing(found, memory, compute):
    """The figure as SVG. A kernel without FLOP or without bytes is at the edge."""

    def at(intensity, tflops):
        return place(intensity, X, WIDTH), HEIGHT - place(tflops, Y, HEIGHT)

    ridge = compute / memory
    corners = [at(X[0], memory * X[0] / 1e12), at(ridge, compute / 1e12), at(X[1], compute / 1e12)]
    line = " ".join(f"{x:.2f},{y:.2f}" for x, y in corners)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<polyline id="roof" fill="none" stroke="black" points="{line}"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}">FLOP per byte of device memory</text>',
        f'<text x="12" y="{MARGIN - 20}">TFLOP/s</text>',
        f'<text x="{MARGIN}" y="{HEIGHT - 30}">{X[0]:g}</text>',
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 30}">{X[1]:g}</text>',
    ]
    colors = {"memory": "steelblue", "compute": "darkorange", "neither": "gray"}
    for each in found:
        x, y = at(each["intensity"], each["tflops"])
        name, color = each["kernel"], colors[each["bound"]]
        lines.append(f'<circle id="{name}" cx="{x:.2f}" cy="{y:.2f}" r="5" fill="{color}"/>')
        lines.append(f'<text x="{x + 8:.2f}" y="{y - 6:.2f}" font-size="12">{name}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Draw a roofline from a report of ncu.")
    parser.add_argument("report", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("roofline.svg"))
    parser.add_argument("--json", type=Path, help="the points, for other programs")
    args = parser.parse_args()
    report = read(args.report)
    found = points(report)
    memory, compute = roofs(report)
    ridge = compute / memory
    print(f"roofs: {memory / 1e9:.0f} GB/s, {compute / 1e12:.1f} TFLOP/s, ridge at {ridge:.1f} FLOP/byte")
    for each in found:
        print(
            f"{each['kernel']:<18}{each['intensity']:10.3f} FLOP/byte {each['tflops']:8.3f} TFLOP/s "
            f"{100 * each['share']:5.1f} % of its roof  {each['bound']}"
        )
    args.output.write_text(drawing(found, memory, compute))
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
