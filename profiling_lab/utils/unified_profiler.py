# SPDX-License-Identifier: Apache-2.0
"""Record a script on one GPU, several, or several machines: other names for `profiling-lab record`.

python -m profiling_lab.utils.unified_profiler train.py --epochs 10
python -m profiling_lab.utils.unified_profiler --mode multi-gpu --gpus 4 train.py
"""

from __future__ import annotations

import argparse
import glob
import itertools
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling_lab.errors import LabError, UsageError
from profiling_lab.recording.output_name import is_taken
from profiling_lab.utils import nvtx
from profiling_lab.utils.training import profile_training

MODES = ("auto", "single", "multi-gpu", "multi-node", "deepspeed")


@dataclass(frozen=True, slots=True)
class ProfilingConfig:
    """What UnifiedProfiler records.

    mode: "auto" is "multi-gpu" with more than one of `gpus`, else "single". gpus: processes per machine.
    nodes, node_rank, rendezvous (HOST:PORT): for "multi-node", the same command on each machine with its
    node_rank. "deepspeed" is for its launcher, on one machine. profile_steps: record only as many steps
    after `warmup_steps`; None: the whole run.
    Raises UsageError for values that contradict each other.
    """

    mode: str = "auto"
    output_dir: str = "profiles"
    gpus: int = 1
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None
    warmup_steps: int = 1
    profile_steps: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode must be one of {', '.join(MODES)}, not {self.mode!r}")
        if self.gpus < 1 or self.nodes < 1:
            raise UsageError(f"gpus and nodes must be at least 1, not {self.gpus} and {self.nodes}")
        if self.mode == "single" and self.gpus > 1:
            raise UsageError(f"mode single is for one GPU, not {self.gpus}: use multi-gpu")
        if self.mode == "multi-node" and (self.rendezvous is None or not 0 <= self.node_rank < self.nodes):
            raise UsageError(
                "mode multi-node expects rendezvous HOST:PORT, and node_rank below nodes; got "
                f"{self.rendezvous}, {self.node_rank} of {self.nodes}"
            )


class UnifiedProfiler:
    """Runs a script under `profiling-lab record`; each rank writes a file of its own into output_dir."""

    def __init__(self, config: ProfilingConfig | None = None) -> None:
        self.config = config or ProfilingConfig()
        self.recordings: tuple[Path, ...] = ()
        """those of the last run"""

    def command(self, script: str, arguments: Sequence[str] = ()) -> list[str]:
        """The command that profile_script runs. Recordings that exist are kept: the new ones get a number."""
        config = self.config
        output = _free(Path(config.output_dir), Path(script).stem)
        record = [sys.executable, "-m", "profiling_lab", "record", "-o", str(output)]
        if config.profile_steps is not None:
            record += ["--warmup", str(config.warmup_steps), "--active", str(config.profile_steps)]
            record += ["--repeat", "1"]
        launcher: list[str] = []
        if config.mode == "deepspeed":
            launcher = ["deepspeed", "--num_gpus", str(config.gpus)]
        elif config.mode in ("multi-gpu", "multi-node") or config.gpus > 1:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(config.gpus)]
        if config.mode == "multi-node":
            launcher += ["--nnodes", str(config.nodes), "--node-rank", str(config.node_rank)]
            launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", str(config.rendezvous)]
        return [*record, *launcher, script, *arguments]

    def profile_script(self, script: str, arguments: Sequence[str] = ()) -> int:
        """Run the script with its arguments and record it; returns its exit code, -N after signal N.

        Ctrl-C is the script's: this waits until its recordings are written and its processes are gone.
        Raises UsageError if there is no such script, no deepspeed for its mode, or output_dir cannot be made.
        """
        if not Path(script).is_file():
            raise UsageError(f"expected a Python script, found no file {script}")
        if self.config.mode == "deepspeed" and shutil.which("deepspeed") is None:
            raise UsageError("mode deepspeed runs the program deepspeed, which is not on the PATH")
        try:
            Path(self.config.output_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the folder {self.config.output_dir} cannot be made: {error.strerror}"
            ) from None
        before = self._files()
        with subprocess.Popen(self.command(script, arguments)) as process:
            status = _waited_for(process)
        self.recordings = tuple(sorted(self._files() - before))
        return status

    def generate_report(self) -> str:
        """The recordings of the last run, or all in output_dir and its folders if this object ran none: for
        each the command that reads it, and what `profiling-lab ranks` says of several.
        """
        files = self.recordings or tuple(sorted(self._files()))
        if not files:
            return f"no recording in {self.config.output_dir}"
        lines = [f"profiling-lab lines {file}" for file in files]
        if len(files) > 1:
            names = dict.fromkeys(re.sub(r"\.rank\d+\.", ".rank*.", str(file)) for file in files)
            lines += [f"profiling-lab ranks {' '.join(names)}", "", _merged(files)]
        return "\n".join(lines)

    def _files(self) -> set[Path]:
        return set(Path(self.config.output_dir).rglob("*.sqlite"))


def _free(folder: Path, stem: str) -> Path:
    """stem.sqlite, or stem-2.sqlite and so on, such that no rank's file is there either."""
    for number in itertools.count(1):
        path = folder / f"{stem if number == 1 else f'{stem}-{number}'}.sqlite"
        if not is_taken(path) and not any(folder.glob(f"{glob.escape(path.stem)}.rank*.sqlite*")):
            break
    return path


def _merged(files: Sequence[Path]) -> str:
    """The ranks of a job together, or why that cannot be said."""
    from profiling_lab import api  # the analysis: not for those who only record

    try:
        return str(api.ranks(files))
    except LabError as error:
        return f"no summary of all ranks: {error}"


def _waited_for(process: subprocess.Popen[bytes]) -> int:
    """The exit code. SIGTERM is passed on, if this is the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if is_main else None
    if is_main:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            with suppress(KeyboardInterrupt):  # the terminal sends it to the script as well
                return process.wait()
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def get_profiler_context(enabled: bool = True, **options: Any) -> AbstractContextManager[Any]:
    """A context for the whole training loop: profile_training(**options), or one that does nothing."""
    return profile_training(**options) if enabled else nullcontext()


class ProfilerWrapper:
    """profile_training for programs without one block: profile_step(number) around each step, finish() at
    the end, or `with`. The recording begins with the first step. The options are those of profile_training.
    """

    def __init__(self, enabled: bool | None = None, **options: Any) -> None:
        self._enabled, self._options = enabled is not False, options
        self._recording = ExitStack()
        self.recorder: Any = None

    def profile_step(self, step: int | None = None) -> AbstractContextManager[Any]:
        """One step, in an NVTX range of that name."""
        if self._enabled and self.recorder is None:
            self.recorder = self._recording.enter_context(profile_training(**self._options))
        return nvtx.range("step" if step is None else f"step {step}") if self._enabled else nullcontext()

    def finish(self) -> Path | None:
        """End the recording; returns its file, None if there is none."""
        self._recording.close()
        summary = getattr(self.recorder, "summary", None)
        return None if summary is None else summary.path

    def __enter__(self) -> ProfilerWrapper:
        return self

    def __exit__(self, *failure: Any) -> bool | None:
        return self._recording.__exit__(*failure)


class NVTXAnnotator:
    """The functions of profiling_lab.utils.nvtx, which can be switched off."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def range(self, name: str, color: str | int | None = None) -> AbstractContextManager[Any]:
        return nvtx.range(name, color) if self._enabled else nullcontext()

    def mark(self, name: str) -> None:
        if self._enabled:
            nvtx.mark(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the script's exit code (128 + N after signal N), 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description="Record a script; like profiling-lab record.")
    parser.add_argument("--mode", choices=MODES, default="auto")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="processes per machine (default: 1)")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="machines")
    parser.add_argument("--node-rank", type=int, default=0, metavar="N", help="which of them this is")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="of the first machine")
    parser.add_argument("-o", "--output-dir", default="profiles", metavar="FOLDER")
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="steps before those of --steps")
    parser.add_argument("--steps", type=int, metavar="N", help="record this many steps (default: the run)")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the script")
    chosen = parser.parse_args(arguments)
    try:
        config = ProfilingConfig(
            chosen.mode, chosen.output_dir, chosen.gpus, chosen.nodes, chosen.node_rank, chosen.rendezvous,
            chosen.warmup, chosen.steps,
        )  # fmt: skip
        profiler = UnifiedProfiler(config)
        code = profiler.profile_script(chosen.script, chosen.arguments)
    except LabError as error:
        parser.error(str(error))
    sys.stderr.write(profiler.generate_report() + "\n")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
