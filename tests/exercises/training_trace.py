# SPDX-License-Identifier: Apache-2.0
"""A synthetic recording of the exercise's training, with the real lines of its files and times chosen by
the test.
"""

from __future__ import annotations

from pathlib import Path

from builders import TraceBuilder

from profiling_lab.exercises import find

FOLDER = find("python-backtrace").folder
STEPS = 2
BLOCKS = 2

# Forward and backward microseconds of each launch, by culprit.
HEAVY_KERNELS = {
    "slow": (("heavy_layer_slow_kernel<float>", 400, 100),),
    "loop": (("gemv_tiny<float>", 4, 4),) * 60,
    "fast": (("heavy_layer_fast_kernel<float>", 20, 20),),
}


def line_of(file: str, text: str) -> int:
    """The line of that text in a file of the exercise: tests keep working when the file changes."""
    found = [i for i, line in enumerate((FOLDER / file).read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} stands {len(found)} times in {file}"
    return found[0]


def stack(*places: tuple[str, str, str]) -> tuple[tuple[str, str, int], ...]:
    """Frames, outermost first, from (function, file, text of the line)."""
    return tuple((function, f"/home/learner/{file}", line_of(file, text)) for function, file, text in places)


MAIN = (
    ("main", "train_model.py", "loss, step_ms = train_epoch("),
    ("train_epoch", "train_model.py", "losses.append(training_step("),
)
STEP = (*MAIN, ("training_step", "train_model.py", "output = model(data)"))
NETWORK = "TransformerWithHeavyLayer.forward"
HEAVY = (
    *STEP,
    (NETWORK, "model.py", "x = x + self.heavy(x)"),
    ("HeavyLayer.forward", "model.py", "return heavy_layer("),
)
BLOCK = (*STEP, (NETWORK, "model.py", "x = block(x)"))
ATTENTION = (
    *BLOCK,
    ("TransformerBlock.forward", "model.py", "x = x + attention_layer("),
    ("attention_layer", "model.py", "return out(mixed"),
)
UP = (
    *BLOCK,
    ("TransformerBlock.forward", "model.py", "return x + feed_forward_layer("),
    ("feed_forward_layer", "model.py", "hidden = F.gelu(up(x))"),
)
OUTPUT = (*STEP, (NETWORK, "model.py", "return self.output_projection("))
UPDATE = (*MAIN, ("training_step", "train_model.py", "optimizer.step()"))


def bare(frames: tuple[tuple[str, str, int], ...]) -> tuple[tuple[str, str, int], ...]:
    """As nsys writes functions: without their class."""
    return tuple((function.rpartition(".")[2], file, line) for function, file, line in frames)


def training_trace(path: Path, culprit: str = "slow", form: str = "recorder") -> Path:
    """Write the recording. By `form` "nsys" it has bare function names and no way back from backward."""
    builder = TraceBuilder(form=form)
    sequence = 0
    for _ in range(STEPS):
        launches: list[tuple[str, int, int, tuple[tuple[str, str, int], ...]]] = []
        for _ in range(BLOCKS):
            launches.append(("sgemm_attention<float>", 30, 60, stack(*ATTENTION)))
            launches.append(("sgemm_wide<float>", 50, 100, stack(*UP)))
        launches += [
            (name, forward, backward, stack(*HEAVY)) for name, forward, backward in HEAVY_KERNELS[culprit]
        ]
        launches.append(("sgemm_vocabulary<float>", 40, 80, stack(*OUTPUT)))
        done = []
        for name, forward, backward, frames in launches:
            shown = bare(frames) if form == "nsys" else frames
            builder.launch(name, forward * 1000, stack=shown, peek=sequence + 1)
            done.append((sequence, name, backward))
            sequence += 1
        for node, name, backward in reversed(done):
            builder.launch(
                f"{name}_backward", backward * 1000, thread=2, node=node, node_name="MmBackward0", peek=0
            )
        builder.launch("multi_tensor_apply_kernel<adam>", 15_000, stack=stack(*UPDATE), peek=sequence)
    builder.row("TARGET_INFO_GPU", vmId=0, id=0, name="Test GPU")
    return builder.write(path)
