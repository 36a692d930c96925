# SPDX-License-Identifier: Apache-2.0
"""Write analysis_notes.md and answer.toml from the recording, so that no number is written by hand.

    python write_notes.py --steps heavy_layer_step.jsonl

The step times come from benchmarks/heavy_layer_step.py, run on the machine of the recording. Without them
the notes have no speedup.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path, PurePath

from profiling_lab.analysis.bottleneck import Bottleneck
from profiling_lab.exercises.e17_python_backtrace.grade import lines_of
from profiling_lab.report import bottleneck, numbers
from profiling_lab.trace import Trace

HERE = Path(__file__).parent
RECORDED = HERE.parent / "recorded" / "demo_h200.sqlite"
TOKENS, WIDTH, BLOCKS = 32 * 128, 512, 4


def step_times(path: Path | None) -> dict[str, float]:
    """Milliseconds per fp32 step by implementation of HeavyLayer, without a recorder, from the last run."""
    if path is None:
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row["metric"] == "step_time" and row["case"]["dtype"] == "fp32"]
    return {row["provider"]: row["value"] / 1e6 for row in rows if row["run"] == rows[-1]["run"]}


def gain(times: dict[str, float], culprit: str) -> float:
    """The speedup of the repaired step; 0 if it was not measured."""
    return round(times[culprit] / times["fast"], 2) if times else 0.0


def answer(found: Bottleneck, times: dict[str, float]) -> str:
    """The learner's answer.toml with the right answers filled in."""
    layer = found.layers[0]
    values: dict[str, object] = {
        "layer": layer.name,
        "kernel": kernel_of(found, layer.name),
        "file": PurePath(layer.file).name,
        "line": layer.line,
        "share": round(100 * layer.share_frac, 1),
        "cause": "one kernel whose threads wait for one uncoalesced load after the other: bound by latency",
        "change": "HeavyLayer.forward asks for the fast implementation of the same op",
        "speedup": gain(times, "slow"),
    }
    several = next(row for row in found.kernels if len(lines_of(row)) > 1)
    values |= {"name": several.name, "lines": len(lines_of(several))}
    text = (HERE.parent / "answer.toml").read_text()
    for key, value in values.items():
        line = f"{key} = {json.dumps(value)}"
        text = re.sub(rf"(?m)^{key} = .*$", lambda _, line=line: line, text)
    return text


def kernel_of(found: Bottleneck, layer: str) -> str:
    """The short name of the layer's most expensive kernel, as a table shows it."""
    full_name = next(iter(found.kernels_of(layer)))
    return next(row.short_name for row in found.kernels if row.name == full_name)


def notes(found: Bottleneck, times: dict[str, float], gpu: str) -> str:
    """The solution as text. The GFLOP are those of the script's default sizes."""
    layer, second = found.layers[0], found.layers[1]
    healthy = next(other for other in found.layers if other.name == "feed_forward_layer")
    flop, healthy_flop = 3 * 2 * TOKENS * WIDTH**2, BLOCKS * 2 * 2 * TOKENS * WIDTH * 4 * WIDTH
    return (
        (HERE / "analysis_notes.template.md")
        .read_text()
        .format(
            gpu=gpu,
            tree="\n".join("    " + line for line in bottleneck.kernel_tree(found, limit=3, depth=3)),
            conclusion=bottleneck.conclusion(found),
            layer=layer.name,
            function=layer.rows[0].function,
            kernel=kernel_of(found, layer.name),
            where=f"`{PurePath(layer.file).name}` line {layer.line}",
            share=numbers.share(layer.share_frac),
            backward=numbers.share(layer.backward_ns / layer.gpu_ns),
            second=second.name,
            second_share=numbers.share(second.share_frac),
            covered=numbers.share(found.coverage.attributed_frac),
            tokens=TOKENS,
            width=WIDTH,
            blocks=BLOCKS,
            gflop=f"{flop / 1e9:.1f}",
            healthy_gflop=f"{healthy_flop / 1e9:.1f}",
            more_flop=f"{healthy_flop / flop:.0f}",
            longer=f"{layer.forward_ns / healthy.forward_ns:.1f}",
            measured=measured(times),
        )
    )


def measured(times: dict[str, float]) -> str:
    """The step times and the speedup of the repair."""
    if not times:
        return "`profiling-lab exercise check` measures the speedup on your GPU."
    rows = "\n".join(f"| {name} | {ms:.2f} |" for name, ms in times.items())
    return (
        f"| HeavyLayer | ms per training step |\n|---|---:|\n{rows}\n\n"
        f"The step becomes {gain(times, 'slow'):.2f} times as fast as with the slow kernel and "
        f"{gain(times, 'loop'):.2f} times as fast as with the loop."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the worked answer from the recording.")
    parser.add_argument("--steps", type=Path, help="JSON lines from benchmarks/heavy_layer_step.py")
    args = parser.parse_args()
    times = step_times(args.steps)
    with Trace.open(RECORDED) as trace:
        found = bottleneck.find(trace, sources=HERE.parent)
        gpu = trace.source.gpus()[0].name
    (HERE / "answer.toml").write_text(answer(found, times))
    (HERE / "analysis_notes.md").write_text(notes(found, times, gpu))


if __name__ == "__main__":
    main()
