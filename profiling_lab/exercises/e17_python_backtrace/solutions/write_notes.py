# SPDX-License-Identifier: Apache-2.0
"""Write analysis_notes.md and answer.toml from the recording, so that no number in them is written by hand.

    python write_notes.py --steps heavy_layer_step.jsonl

The file of step times comes from benchmarks/heavy_layer_step.py, run on the machine of the recording.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path, PurePath

from profiling_lab.report import bottleneck
from profiling_lab.report.bottleneck import Bottleneck
from profiling_lab.trace import Trace

HERE = Path(__file__).parent
RECORDED = HERE.parent / "recorded" / "demo_h200.sqlite"


def step_times(path: Path) -> dict[str, float]:
    """Milliseconds per training step by implementation of HeavyLayer, without a recorder."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["provider"]: row["value"] / 1e6 for row in rows if row["metric"] == "step_time"}


def answer(found: Bottleneck, times: dict[str, float]) -> str:
    """The form, filled in: the learner's file with the values in the place of the explanations."""
    layer = found.layers[0]
    values: dict[str, object] = {
        "layer": layer.name,
        "kernel": kernel_of(found, layer.name),
        "file": PurePath(layer.file).name,
        "line": layer.line,
        "share": round(100 * layer.share_frac, 1),
        "cause": "one kernel whose threads wait for one uncoalesced load after the other: bound by latency, not by arithmetic",
        "change": "HeavyLayer.forward asks for the fast implementation of the same op",
        "speedup": round(times["slow"] / times["fast"], 2),
    }
    text = (HERE.parent / "answer.toml").read_text()
    for key, value in values.items():
        line = f"{key} = {json.dumps(value)}"
        text = re.sub(rf"(?m)^{key} = .*$", lambda _, line=line: line, text)
    return text


def kernel_of(found: Bottleneck, layer: str) -> str:
    """The short name of the layer's costliest kernel: the part of the name that a table shows."""
    full_name = next(iter(found.kernels_of(layer)))
    return next(row.short_name for row in found.kernels if row.name == full_name)


def notes(found: Bottleneck, times: dict[str, float], gpu: str) -> str:
    """The worked answer in words."""
    layer, second = found.layers[0], found.layers[1]
    where = f"`{PurePath(layer.file).name}` line {layer.line}"
    backward = layer.backward_ns / layer.gpu_ns
    tree = "\n".join("    " + line for line in bottleneck.kernel_tree(found, limit=3, depth=4))
    fast = (
        f"`--heavy fast` takes {times['fast']:.2f} ms per step, `--heavy slow` {times['slow']:.2f} ms and `--heavy loop` "
        f"{times['loop']:.2f} ms: the repair is worth {times['slow'] / times['fast']:.2f} times (against the loop "
        f"{times['loop'] / times['fast']:.2f} times)."
    )
    return f"""# E17, a worked answer

Every number here is computed from `recorded/demo_h200.sqlite` ({gpu}) and from the step times measured on the same machine,
by `solutions/write_notes.py`.

## What was found

{tree}

Conclusion: {bottleneck.conclusion(found)}

| question | answer |
|---|---|
| layer | {layer.name} |
| kernel | `{kernel_of(found, layer.name)}` |
| line | {where} |
| share of all GPU time | {layer.share_frac:.1%}, {backward:.0%} of that in backward |
| the next layer | {second.name}, {second.share_frac:.1%} |
| GPU time with a Python line | {found.coverage.attributed_frac:.1%} |

## How

1. `profiling-lab record -o run.sqlite train_model.py --epochs 2`
2. `profiling-lab lines run.sqlite` and read the first row; `profiling-lab kernels run.sqlite` names the kernel below it.
3. The innermost frame of our own code under that kernel is {where}: that is `{layer.rows[0].function}`. The kernel's name alone would
   not have told: a matrix product of attention and one of feed-forward have the same name.

## Why it is slow

The layer is `tanh(x @ w1 @ w2 @ w3 + bias)`: with 4096 tokens of width 512 that is 6.4 GFLOP forward, less than one feed-forward
layer (17.2 GFLOP). It should cost a fraction of that layer and costs more than all of them together, so its arithmetic cannot be the
reason: its one kernel is badly written. `csrc/ops/heavy_layer/README.md` names its defects one by one.

With `--heavy loop` the result and the line are the same, but no kernel is long: the layer loops over the tokens and launches
hundreds of tiny kernels. The list of kernels by time does not show that; the sum by line does.

## The repair

`(x @ w1) @ w2 @ w3` is `x @ (w1 @ w2 @ w3)`: the three small matrices are multiplied once, the many tokens need one product, and bias
and tanh are done while its result is still in registers. {fast}
Output and gradients agree with double precision, as `profiling-lab exercise check` verifies.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the worked answer from the recording.")
    parser.add_argument("--steps", type=Path, required=True, help="JSON lines from benchmarks/heavy_layer_step.py")
    args = parser.parse_args()
    times = step_times(args.steps)
    with Trace.open(RECORDED) as trace:
        found = bottleneck.find(trace, sources=HERE.parent)
        gpu = trace.file.texts("SELECT CAST(name AS TEXT) FROM TARGET_INFO_GPU")[0][0]
    (HERE / "answer.toml").write_text(answer(found, times))
    (HERE / "analysis_notes.md").write_text(notes(found, times, gpu))


if __name__ == "__main__":
    main()
