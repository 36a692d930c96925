# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of the diagnosis benchmark on this machine's GPU: as they are, mended, and recorded.

    python benchmarks/diagnosis/run.py --out recorded/ [--only NAME,NAME] [--parts times,recordings,profiler]

Each program runs as it is and mended, which measures what its defect costs, and then once more under
`profiling-lab record` with its defaults, whole, as a user would; a healthy one is recorded alone, because
nothing in it can be mended. `recorded/times.jsonl` gets the step times,
`recorded/NAME.sqlite` the recordings; score.py compares what `check` says with truth.toml and these times.
With the part `profiler` each program runs under torch.profiler, too, whole and with stacks and shapes:
`recorded/NAME.json.gz` is what peers.py gives to the tools that read such traces.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the recordings and times.jsonl")
    parser.add_argument("--only", default="", help="names of programs, with commas (default: all)")
    parser.add_argument("--parts", default="times,recordings", help="what to do (default: %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    programs = sorted((HERE / "programs").glob("*.py"))
    if args.only:
        wanted = args.only.split(",")
        programs = [path for path in programs if path.stem in wanted]
        if missing := set(wanted) - {path.stem for path in programs}:
            parser.error(f"there is no program {', '.join(sorted(missing))} in {HERE / 'programs'}")
    from profiling_lab.measure.device import Machine
    from profiling_lab.measure.results import ResultsFile

    status, text = _in_child(
        _tell_machine
    )  # a process that has looked at the GPU cannot fork others that use it
    if status:
        parser.error(text.strip().splitlines()[-1])
    _import_before_forks(programs)
    results = ResultsFile(args.out / "times.jsonl", Machine(**json.loads(text.splitlines()[-1])))
    failed = 0
    for path in programs:
        began = time.monotonic()
        said = ""
        if "times" in args.parts and not path.stem.startswith("healthy_"):
            plain, mended = _step_ms(path, []), _step_ms(path, ["--mended"])
            failed += plain is None or mended is None
            if plain is not None and mended is not None:
                for provider, value in (("as it is", plain), ("mended", mended)):
                    results.add("diagnosis", {"program": path.stem}, provider, "step", value, "ms")
                said = f"{plain:9.2f} ms, mended {mended:9.2f} ms"
        if "recordings" in args.parts:
            failed += not _record(path, args.out)
        if "profiler" in args.parts:
            failed += not _profile(path, args.out)
        print(f"{path.stem:24} {said}  ({time.monotonic() - began:.1f} s)", flush=True)
    return 1 if failed else 0


def _tell_machine() -> int:
    from profiling_lab.measure.device import machine

    print(json.dumps(asdict(machine())))
    return 0


def _import_before_forks(programs: list[Path]) -> None:
    """Libraries that take seconds to import, once instead of in each fork."""
    wanted = "\n".join(path.read_text() for path in programs)
    for imported in re.findall(r"(?m)^from transformers import .+", wanted):
        exec(imported, {})  # imports the modules of these models alone, as the program's own line does


def _step_ms(path: Path, arguments: list[str]) -> float | None:
    """The program's own step time."""
    status, text = program(path, arguments)
    found = re.search(r"step_ms ([\d.]+)", text)
    if status or found is None:
        print(f"{path.stem} {' '.join(arguments)} ended with status {status}: {text[-300:]}", file=sys.stderr)
        return None
    return float(found[1])


def program(path: Path | str, arguments: list[str]) -> tuple[int, str]:
    """Run it in a child. Returns the wait status and the output."""

    def run() -> int:
        sys.argv = [str(path), *arguments]
        runpy.run_path(str(path), run_name="__main__")
        return 0

    return _in_child(run)


def _record(path: Path, out: Path) -> bool:
    from profiling_lab.cli import main as profiling_lab

    recording = out / f"{path.stem}.sqlite"
    status, text = _in_child(
        lambda: profiling_lab(["record", "--overwrite", "-o", str(recording), str(path)])
    )
    if status or not recording.is_file():
        print(f"{path.stem} recorded: status {status}: {text[-500:]}", file=sys.stderr)
        return False
    return True


def _profile(path: Path, out: Path) -> bool:
    trace = out / f"{path.stem}.json.gz"
    trace.unlink(missing_ok=True)

    def run() -> int:
        from torch.profiler import profile

        sys.argv = [str(path)]
        with profile(record_shapes=True, with_stack=True) as profiler:
            runpy.run_path(str(path), run_name="__main__")
        profiler.export_chrome_trace(str(trace))
        return 0

    status, text = _in_child(run)
    if status or not trace.is_file():
        print(f"{path.stem} under torch.profiler: status {status}: {text[-500:]}", file=sys.stderr)
        return False
    return True


def _in_child(run: Callable[[], int]) -> tuple[int, str]:
    """Runs it in a fork of this process, where torch is imported but no CUDA context made: all that happens
    on the GPU happens anew, without the seconds of importing. Returns the wait status and the output."""
    # Asking the driver whether there is a GPU would start it, and a fork of such a process cannot use CUDA.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch._dynamo  # noqa: F401 - the first optimizer imports it, which takes seconds

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.close(reading)
            code = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, errors="replace") as pipe:
        text = pipe.read()
    return os.waitpid(child, 0)[1], text


if __name__ == "__main__":
    raise SystemExit(main())
