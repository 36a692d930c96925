# SPDX-License-Identifier: Apache-2.0
"""The exercise's training under the real recorder and a fake CUPTI, where every operator launches one kernel.

Operators have names of their own in backward (gelu_backward), so it is known beforehand on which forward line
each must land; on a GPU, test_gpu_backward_lines.py asks the same of real kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from exercises.training_trace import FOLDER, line_of

from profiling_lab.demo.cost import read_cost
from profiling_lab.report import bottleneck
from profiling_lab.report.bottleneck import Bottleneck
from profiling_lab.trace import Trace

STEPS = 2
BLOCKS, TOKENS = 2, 32  # of the script's tiny configuration
TRAIN = """
from profiling_lab.demo.training import TINY, training_script
with training_script() as script:
    training = script.build(script.parse_arguments(["--device", "cpu", "--heavy", "{heavy}", *TINY]))
    script.train_epoch(*training, 1)
    with profiling_lab.record(OUT), launch_per_operator(fake):
        script.train_epoch(*training, {steps})
"""

# Backward operator -> the forward line that it is the backward of, and how often a step runs it.
BACKWARD = {
    "gelu_backward": ("feed_forward_layer", "model.py", "hidden = F.gelu(up(x))", BLOCKS),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "attention_layer",
        "model.py",
        "mixed = F.scaled_dot_product_attention(",
        BLOCKS,
    ),
    "embedding_dense_backward": (
        "TransformerWithHeavyLayer.forward",
        "model.py",
        "x = self.embedding(tokens)",
        1,
    ),
    "nll_loss_backward": ("training_step", "train_model.py", "loss = nn.functional.cross_entropy(", 1),
}


OWN = ("model.py", "train_model.py")  # not the driver of the fake, which is in every stack


@pytest.mark.parametrize("heavy", ["slow", "loop", "fast"])
def test_training_is_charged_to_its_lines(heavy: str, run_warm: Any, tmp_path: Path) -> None:
    run_warm(TRAIN.format(heavy=heavy, steps=STEPS))
    with Trace.open(tmp_path / "out.sqlite") as trace:
        found = bottleneck.find(trace, own=OWN, sources=FOLDER)
    check_backward_lines(found, heavy)
    assert found.coverage.attributed_frac > 0.95, found.coverage.unattributed
    # Every kernel takes the same time here, so the loop of tiny kernels must win, and only the loop.
    assert (found.layers[0].name == "HeavyLayer") == (heavy == "loop")
    kernels = {layer.name: layer.kernels for layer in found.layers}
    for layer in ("attention_layer", "feed_forward_layer"):
        assert kernels[layer] % (BLOCKS * STEPS) == 0, "every block of every step launches the same"


def check_backward_lines(found: Bottleneck, heavy: str) -> None:
    """Each backward operator is on its forward line, as often as it ran, and nowhere else."""
    expected = dict(BACKWARD)
    if heavy == "loop":
        expected["tanh_backward"] = ("HeavyLayer.forward", "model.py", "return heavy_layer(", TOKENS)
    else:
        name = "profiling_lab::heavy_layer_backward"
        expected[name] = ("HeavyLayer.forward", "model.py", "return heavy_layer(", 1)
    rows = {row.name: row for row in found.kernels}
    for name, (function, file, text, per_step) in expected.items():
        assert rows[name].count == per_step * STEPS, name
        assert [stack.phase for stack in rows[name].stacks] == ["backward"], name
        frame = rows[name].stacks[0].frames[0]
        assert bottleneck.place(found, frame) == f"{file}:{function}() line {line_of(file, text)}", name


def test_demo_records_in_turns_and_keeps_the_cost(run_warm: Any, tmp_path: Path) -> None:
    run_warm("""
from pathlib import Path
from profiling_lab.demo.training import TINY, record_training
with launch_per_operator(fake):
    record_training(Path(OUT), "loop", print, steps=2, arguments=("--device", "cpu", *TINY))
""")
    with Trace.open(tmp_path / "out.sqlite") as trace:
        found, cost = bottleneck.find(trace, own=OWN, sources=FOLDER), read_cost(trace)
    assert cost is not None and (cost.heavy, cost.recorded_steps, cost.steps_per_round) == ("loop", 4, 2)
    assert cost.plain_step_ns > 0 and cost.recorded_step_ns > 0
    steps = {row.name: row for row in found.kernels}["nll_loss_backward"].count
    assert steps == cost.recorded_steps, "the kept recording holds the steps that it says it holds"
    assert found.layers[0].name == "HeavyLayer"


def test_demo_never_overwrites(run: Any, tmp_path: Path) -> None:
    (tmp_path / "out.sqlite").write_text("mine")
    done = run(
        "from pathlib import Path; from profiling_lab.demo.training import record_training\n"
        "record_training(Path(OUT), 'slow', print)",
        ok=False,
    )
    assert done.returncode != 0 and "exists already" in done.stderr
    assert (tmp_path / "out.sqlite").read_text() == "mine"
