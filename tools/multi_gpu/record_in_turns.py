# SPDX-License-Identifier: Apache-2.0
"""Records on two or more GPUs what the exercises on several need; what comes back is assembled without a GPU.

    python tools/multi_gpu/record_in_turns.py --out raw/ --tar raw.tar.gz --seconds 50 [--ranks 4]
    python tools/multi_gpu/assemble_scaling.py raw/ --out recordings/      E15, E16
    python tools/multi_gpu/assemble_exercises.py raw/ --out recordings/    E04, E11, E38

Most of a run's ten seconds goes into imports, CUDA contexts and NCCL's communicators. So all runs are forks
of one process that has imported torch, they prepare at the same time, and then have the GPUs in turns:
nothing else runs on them meanwhile. The first pieces are the most valuable ones. --tar is written anew after
each of them; when the time is over, what runs is ended, and what is there stays. --only has the names of
pieces, in their order. Without it: E16, E15 and E38; where E15's starter was recorded on these GPUs already
(--starter-gpu has a part of their name), of E15 the solution alone.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from profiling_lab.analysis.collectives.nccl_text import VARIABLES
from profiling_lab.exercises import find, workspace

LIMIT_S = 18.0
"""the most for the preparation of all, and for one turn"""
LEFT_ALONE_S = 2.0
"""how long a rank may go on after another one has failed"""
START, GPU, GROUP = "start", "gpu", "group"
"""where a rank waits for its turn: before all, with its GPU set, in its process group"""
SCALING, COMMUNICATION, COLD = "multi-gpu-scaling", "communication-overhead", "cold-collectives"
TIMELINE, DISTRIBUTED = "multi-gpu-timeline", "distributed-profiling"
COPY, SOLVED = "copy", "solved"
STEPS = "4:11"
BUCKET_MB = 64
MACHINE = "machine.json"

Wait = Callable[[], None]


@dataclass
class Piece:
    """A run of one program."""

    name: str
    slug: str
    program: str
    solved: bool
    """whether it is the solution's"""
    ranks: int
    waits: str
    arguments: Sequence[str] = ()
    record: Sequence[str] | None = None
    """options of `profiling-lab record`; None: it is not recorded"""
    asks_nccl: bool = False
    pids: dict[int, int] = field(default_factory=dict)
    """the rank of each process that has not ended"""
    failed: str = ""


def pieces(cpu: bool, repeats: int, starter: bool, ranks: int = 2) -> list[Piece]:
    """The most valuable first. starter: also of E15. ranks: those of all but E15's times on fewer GPUs."""
    on_cpu = ("--device", "cpu") if cpu else ()
    scaling = ("--scaling", "strong", "weak", "--steps", "5", "--repeats", str(repeats), *on_cpu)
    ten = ("--steps", "10", *on_cpu)
    bucket, steps = ("--bucket-mb", str(BUCKET_MB)), ("--steps", STEPS)

    def of_scaling(name: str, solved: bool) -> list[Piece]:
        timed = [
            Piece(
                f"{name}{n}", SCALING, "train.py", solved, n, where, (*scaling, "--times", f"{name}{n}.json")
            )
            for n, where in ((1, GPU), (2, GROUP), (4, GROUP))
            if n <= ranks
        ]
        return [*timed, Piece(name, SCALING, "train.py", solved, ranks, GROUP, ten, steps)]

    def both(name: str, slug: str, program: str, *more: Any) -> list[Piece]:
        ends = ((f"{name}_starter", False), (f"{name}_solution", True))
        return [Piece(each, slug, program, solved, ranks, *more) for each, solved in ends]

    cold = find(COLD).record_options
    cold_starter = Piece("cold_starter", COLD, "cold_collectives.py", False, ranks, START, on_cpu, cold)
    cold_solution = Piece("cold_solution", COLD, "bandwidth.py", True, ranks, START, on_cpu, cold)
    return [
        Piece("links", COMMUNICATION, "", False, ranks, GROUP, ("--cpu", "--largest", "1") if cpu else ()),
        Piece("communication", COMMUNICATION, "train.py", False, ranks, GROUP, on_cpu, steps, True),
        Piece("second", COMMUNICATION, "train.py", False, ranks, GROUP, (*bucket, *on_cpu), steps, True),
        *(of_scaling("scaling", False) if starter else []),
        *of_scaling("after", True),
        *both("fsdp2", DISTRIBUTED, "train_fsdp.py", GROUP, ten, steps),
        # These wait before all, because the making of the communicator, or the host, is recorded too.
        cold_starter,
        Piece("cold_naive", COLD, "bandwidth.py", False, ranks, GROUP, on_cpu),
        Piece("cold_measured", COLD, "", True, ranks, GROUP),
        cold_solution,
        # The line that wraps the model runs before the steps, so all of it is recorded.
        *both("timeline", TIMELINE, "ddp_training.py", START, on_cpu, ()),
        *both("ddp", DISTRIBUTED, "train_ddp.py", START, ten, steps),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a new folder for what is recorded")
    parser.add_argument("--tar", type=Path, help="pack it into this file after each piece")
    parser.add_argument("--seconds", type=float, default=50.0, help="the most for all of it (default: 50)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="the most for preparing, and for a turn (default: 18)"
    )
    parser.add_argument("--only", default="", help="names of pieces, with commas, in their order")
    parser.add_argument("--starter-gpu", default="", help="E15's starter is there for GPUs of this name")
    parser.add_argument("--ranks", type=int, default=2, help="of a job, each with a GPU (default: 2)")
    parser.add_argument("--repeats", type=int, default=7, help="measurements of each time of E15")
    parser.add_argument("--cpu", action="store_true", help="without GPUs: shows whether it runs")
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    has_starter = bool(args.starter_gpu) and args.starter_gpu in gpu_names()
    usual = pieces(args.cpu, args.repeats, not has_starter, args.ranks)
    by_name = {piece.name: piece for piece in pieces(args.cpu, args.repeats, True, args.ranks)}
    wanted = list(filter(None, args.only.split(","))) or [each.name for each in usual]
    if unknown := set(wanted) - set(by_name):
        parser.error(f"expected pieces among {', '.join(by_name)}, got {', '.join(sorted(unknown))}")
    out = args.out.resolve()
    out.mkdir(parents=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun
    # The forks need not import it again; DDP and FSDP2 import torch._dynamo, which takes seconds.
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    import profiling_lab.cli.interconnect
    import profiling_lab.cli.record  # noqa: F401

    chosen = [by_name[name] for name in wanted]
    say(until, args.seconds, "imported")
    with ports(len(chosen)) as free:
        for piece, port in zip(chosen, free, strict=True):
            start(piece, port, out, args.cpu)
    try:
        prepare(chosen, out, min(until, time.monotonic() + args.limit))
        say(until, args.seconds, "prepared")
        for piece in chosen:
            if time.monotonic() > until:
                piece.failed = "not begun: the time was over"
                continue
            (folder_of(piece, out) / f"{piece.name}.go").touch()
            if args.tar:
                pack(out, args.tar.resolve(), piece)
            take_turn(piece, out, min(until, time.monotonic() + args.limit))
            say(until, args.seconds, f"{piece.name}: {piece.failed or 'done'}")
    finally:
        end(*chosen)
        if args.tar:
            pack(out, args.tar.resolve())
            say(until, args.seconds, f"{args.tar.stat().st_size} bytes")
    for piece in chosen:
        if piece.failed:
            print(f"{piece.name}: {piece.failed}")
    return 1 if any(piece.failed for piece in chosen) else 0


def say(until: float, seconds: float, text: str) -> None:
    print(f"{seconds - (until - time.monotonic()):5.1f} s  {text}", flush=True)


@contextlib.contextmanager
def ports(number: int) -> Any:
    """Distinct ones that nothing listens on; they are kept until the end of the block."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        yield [str(each.getsockname()[1]) for each in sockets]


def folder_of(piece: Piece, out: Path) -> Path:
    return out / find(piece.slug).entry.package


def start(piece: Piece, port: str, out: Path, cpu: bool) -> None:
    """Fork its ranks, which prepare and then wait."""
    folder, exercise = folder_of(piece, out), find(piece.slug)
    source = exercise.folder / workspace.SOLUTIONS if piece.solved else exercise.folder
    program = folder / (SOLVED if piece.solved else COPY) / piece.program
    program.parent.mkdir(parents=True, exist_ok=True)
    if piece.program and not program.exists():  # a fork may be reading it
        shutil.copy(source / piece.program, program)
    with open(folder / f"{piece.name}.txt", "wb") as printed:
        for rank in range(piece.ranks):
            pid = fork(
                lambda rank: in_rank(piece, rank, program, folder, cpu),
                rank, piece.ranks, port, printed.fileno(),
            )  # fmt: skip
            piece.pids[pid] = rank


def fork(work: Callable[[int], int], rank: int, ranks: int, port: str, out: int) -> int:
    """A process that does work(rank), with torchrun's variables set; it prints into the file `out`."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(out, number)
            setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
        code = work(rank)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def in_rank(piece: Piece, rank: int, program: Path, folder: Path, cpu: bool) -> int:
    """The work of a process."""
    os.chdir(folder)
    faulthandler.register(signal.SIGUSR1, file=sys.stdout)  # before it is ended: where it is
    if piece.asks_nccl:
        os.environ |= {**VARIABLES, "NCCL_DEBUG_FILE": f"{folder}/{piece.name}.nccl.%p.txt"}
    if piece.ranks == 1:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            del os.environ[name]

    def wait() -> None:
        (folder / f"{piece.name}.ready{rank}").touch()
        while not (folder / f"{piece.name}.go").exists():
            time.sleep(0.003)

    wait_at(piece.waits, wait, cpu)
    code = work(piece, program, cpu)
    if rank == 0 and not (folder / MACHINE).exists():
        from profiling_lab.measure import machine

        (folder / MACHINE).write_text(json.dumps(asdict(machine("cpu" if cpu else "cuda"))))
    return code


def wait_at(where: str, wait: Wait, cpu: bool) -> None:
    """Wait now, or put the wait behind the function of torch that the program calls in its preparation."""
    import torch
    from torch import distributed

    if where == START or (where == GPU and cpu):
        wait()
        return
    module: Any = distributed if where == GROUP else torch.cuda
    name = "init_process_group" if where == GROUP else "set_device"
    original = getattr(module, name)

    def then_wait(*arguments: Any, **more: Any) -> None:
        original(*arguments, **more)
        setattr(module, name, original)
        if not cpu:
            torch.zeros(1, device="cuda")  # makes the CUDA context
            torch.cuda.synchronize()
        wait()

    setattr(module, name, then_wait)


def work(piece: Piece, program: Path, cpu: bool) -> int:
    from profiling_lab.cli import main as profiling_lab

    if piece.name == "links":
        return int(profiling_lab(["interconnect", "-o", "links.json", *piece.arguments]))
    if piece.name == "cold_measured":
        return measured(cpu)
    if piece.record is None:
        sys.argv[:] = [str(program), *piece.arguments]
        runpy.run_path(str(program), run_name="__main__")
        return 0
    record = ["record", *piece.record, "-o", f"{piece.name}.sqlite", str(program), *piece.arguments]
    return int(profiling_lab(record))


def measured(cpu: bool) -> int:
    """What `exercise repair` of E38 does on two GPUs, with the solution."""
    from torch import cuda, distributed

    from profiling_lab.exercises.e38_cold_collectives import repair

    if cpu:
        return 0
    cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    found = repair.measured(str(find(COLD).folder / workspace.SOLUTIONS / "bandwidth.py"))
    if not distributed.get_rank():
        Path("cold_measured.json").write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
    return 0


def prepare(chosen: Sequence[Piece], out: Path, until: float) -> None:
    """Wait until all that can prepare have done so."""
    while time.monotonic() < until:
        reap(chosen)
        if all(
            (folder_of(piece, out) / f"{piece.name}.ready{rank}").exists()
            for piece in chosen
            for rank in piece.pids.values()
        ):
            return
        time.sleep(0.01)


def take_turn(piece: Piece, out: Path, until: float) -> None:
    """Wait for the end of a piece that may go on."""
    folder = folder_of(piece, out)
    while piece.pids:
        reap([piece])
        if piece.failed:
            until = min(until, time.monotonic() + LEFT_ALONE_S)
        if time.monotonic() > until:
            piece.failed = piece.failed or "not done in time"
            end(piece)
        time.sleep(0.005)
    for mark in (*folder.glob(f"{piece.name}.ready*"), folder / f"{piece.name}.go"):
        mark.unlink(missing_ok=True)
    if piece.failed:
        said = (folder / f"{piece.name}.txt").read_text(errors="replace")
        print(said if len(said) < 3000 else f"{said[:1500]}\n...\n{said[-1500:]}", flush=True)
        for path in (*folder.glob(f"{piece.name}.rank*"), folder / f"{piece.name}.txt"):
            path.unlink()


def reap(running: Sequence[Piece]) -> None:
    """Note which of their processes have ended, and how."""
    for piece in running:
        for pid, rank in list(piece.pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del piece.pids[pid]
                if status:
                    piece.failed = piece.failed or f"rank {rank}: wait status {status}"


def end(*running: Piece) -> None:
    """Their processes say where they are, and are ended."""
    pids = [pid for piece in running for pid in piece.pids]
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    time.sleep(0.2 if pids else 0)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for piece in running:
        piece.pids.clear()


def pack(out: Path, target: Path, running: Piece | None = None) -> None:
    """All that is there, but for what is being written."""
    part = target.with_name(f"{target.name}.part")
    with tarfile.open(part, "w:gz", compresslevel=6) as archive:
        for path in sorted(each for each in out.rglob("*") if each.is_file()):
            own = running is not None and path.is_relative_to(folder_of(running, out))
            is_mark = path.suffix == ".go" or path.suffix.startswith(".ready")
            if not is_mark and not (own and running and path.name.startswith(running.name)):
                archive.add(path, f"{out.name}/{path.relative_to(out)}")
    part.replace(target)


def gpu_names() -> str:
    """As nvidia-smi has them; torch would set up CUDA in this process, which must be forked."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


if __name__ == "__main__":
    sys.exit(main())
