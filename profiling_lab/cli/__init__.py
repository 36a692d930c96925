# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, one line each in COMMANDS.

A command module has `HELP` (one line), `EXAMPLES` (shown by --help), `add_arguments(parser)` and
`run(args) -> int`. Commands parse, analyses compute, reporters print; only `main` prints errors.
Heavy imports belong inside `run`: `record` executes the user's script in this process, so
whatever this module imports lands in the user's trace.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

COMMANDS = (
    "demo",
    "record",
    "attach",
    "detach",
    "status",
    "recover",
    "merge",
    "lines",
    "kernels",
    "apis",
    "copies",
    "syncs",
    "ranges",
    "streams",
    "steps",
    "gaps",
    "overlap",
    "check",
    "rules",
    "diff",
    "report",
    "ranks",
    "collectives",
    "export",
    "info",
    "doctor",
    "exercise",
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="profiling-lab",
        description="Find the Python line that costs GPU time, forward and backward, and the reason; "
        "check whether a change helped.",
        epilog="exit codes: 0 ok, 1 a finding or regression over its limit, 2 usage, "
        "3 not comparable or not enough data, 4 unreadable input",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        module = import_module(f"profiling_lab.cli.{name}")
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    from profiling_lab.errors import LabError, UnreadableInputError

    if sys.stdout is None:
        import os

        # Started with standard output closed: writing must fail, and no other file may get descriptor 1.
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.version:
        import profiling_lab

        print(f"profiling-lab {profiling_lab.__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 2
    if args.command != "record" and hasattr(sys.stdout, "reconfigure"):  # record's is the script's
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may not be valid text
    try:
        status: int = args.run(args)
        sys.stdout.flush()
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
