# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, its name in GROUPS, which --help shows.

A command module has `HELP` (one line), `EXAMPLES` (shown by --help), `add_arguments(parser)` and
`run(args) -> int`. Commands parse, analyses compute, reporters print; only `main` prints errors.
Heavy imports belong inside `run`: `record` executes the user's script in this process, so
whatever this module imports lands in the user's trace.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from profiling_lab.cli._completion import SHELLS, completion
from profiling_lab.cli._parser import Parser, columns

GROUPS = (
    ("learn", ("demo", "exercise")),
    (
        "record",
        ("doctor", "peaks", "interconnect", "record", "attach", "detach", "status", "recover", "merge"),
    ),
    ("read a recording: your code", ("lines", "ranges", "steps", "critical-path", "report", "info")),
    (
        "read a recording: the GPU",
        (
            "kernels",
            "roofline",
            "ncu",
            "copies",
            "streams",
            "overlap",
            "gaps",
            "memory",
            "counters",
            "energy",
        ),
    ),
    ("read a recording: the CPU", ("apis", "syncs")),
    ("find problems", ("check", "rules")),
    ("compare", ("ab", "bench", "diff", "ranks", "collectives")),
    ("other tools", ("export", "mcp")),
)
COMMANDS = tuple(name for _, names in GROUPS for name in names)
_SOLVE_EQUATIONS = {"energy", "counters"}
_READ = {name for title, names in GROUPS if title.startswith("read") for name in names}
_READ = (_READ | {"check", "diff", "ranks", "collectives", "export"}) - _SOLVE_EQUATIONS
"""commands that need numpy's arrays and no more of it"""


def module_of(command: str) -> str:
    """`critical_path` of `critical-path`."""
    return command.replace("-", "_")


def build_parser(wanted: Sequence[str] = COMMANDS) -> Parser:
    """The command line. `wanted`: the commands it has; each takes a few milliseconds to build."""
    width = columns() - 2
    parser = Parser(
        prog="profiling-lab",
        description="Find the Python line that costs GPU time, forward and backward, and the reason; "
        "check whether a change helped.",
        formatter_class=partial(argparse.HelpFormatter, max_help_position=18, width=width),  # type: ignore[arg-type]
        epilog="exit codes: 0 ok, 1 a finding or regression over its limit, 2 usage, "
        "3 not comparable or not enough data, 4 unreadable input",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        metavar="SHELL",
        help=f"print a script that completes arguments in this shell, and exit: {', '.join(SHELLS)}",
    )
    parser.groups = GROUPS
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in wanted:
        module = import_module(f"profiling_lab.cli.{module_of(name)}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=width),  # type: ignore[arg-type]
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _print_completion(parser: Parser, args: argparse.Namespace) -> int:
    print(completion(parser, args.print_completion))
    return 0


def _load_numpy() -> None:
    """Without OpenBLAS's thread for each core: starting them takes longer than a small table.

    The variable goes again: the processes that this one starts are not concerned.
    """
    import os

    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        try:
            import numpy  # noqa: F401
        finally:
            del os.environ["OPENBLAS_NUM_THREADS"]


def main(argv: list[str] | None = None) -> int:
    from profiling_lab.errors import LabError, UnreadableInputError

    if sys.stdout is None:
        import os

        # Started with standard output closed: writing must fail, and no other file may get descriptor 1.
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    first = (sys.argv[1:] if argv is None else argv)[:1]
    parser = build_parser(first if first and first[0] in COMMANDS else COMMANDS)
    args = parser.parse_args(argv)
    if args.version:
        import profiling_lab

        print(f"profiling-lab {profiling_lab.__version__}")
        return 0
    if args.print_completion:
        args.command, args.run = "--print-completion", partial(_print_completion, parser)
    if args.command is None:
        parser.print_help()
        return 2
    if args.command != "record":  # its streams are the script's
        from profiling_lab.report.screen.encoding import STAND_INS

        # A file name may not be valid text, and the locale's encoding may have no letter for micro.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors=STAND_INS)
    # With arguments of its own it was called by a program, whose numpy is not ours to limit.
    is_ours = argv is None and args.command in _READ
    if is_ours:
        _load_numpy()
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        if is_ours:
            gc.freeze()  # Python would look for cycles among all objects once more, and then end
        return status
    except LabError as error:
        print(f"profiling-lab {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:  # the process dies of SIGINT, without a traceback
        sys.excepthook = lambda *_: None
        raise
    except OSError as error:
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more at exit
        if isinstance(error, BrokenPipeError):  # `profiling-lab lines run.sqlite | head`
            return 0
        where = f"{error.filename}: " if error.filename else ""
        print(f"profiling-lab {args.command}: {where}{error.strerror or error}", file=sys.stderr)
        return UnreadableInputError.exit_code  # 1 is a finding
