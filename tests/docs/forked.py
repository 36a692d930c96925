# SPDX-License-Identifier: Apache-2.0
"""Python programs of a page, each in a fork of one process that has imported torch: importing it and taking
the interpreter down again take longer than most of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from package_root import PACKAGE_ROOT

# Each runs as `python -c` does, in a folder of its own; what it prints goes to a file there.
_EACH = """
import json, os, sys, traceback, types
import torch
for folder, program in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(folder)
            printed = os.open("printed", os.O_WRONLY | os.O_CREAT)
            os.dup2(printed, 1), os.dup2(printed, 2)
            sys.argv = ["-c"]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            main.__builtins__ = __builtins__
            exec(compile(program, "<string>", "exec"), main.__dict__)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    print(json.dumps([folder, os.waitpid(child, 0)[1]]), flush=True)
"""


def outcomes(programs: Mapping[Path, str]) -> dict[Path, tuple[int, str]]:
    """By folder, which is made, the wait status of its program and what it printed."""
    pytest.importorskip("torch")
    for folder in programs:
        folder.mkdir()
    path = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", _EACH],
        input=json.dumps({str(folder): program for folder, program in programs.items()}),
        env={**os.environ, "PYTHONPATH": path},
        cwd="/",  # not the source tree, whose package may not be built
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    return {folder: (found[str(folder)], (folder / "printed").read_text()) for folder in programs}
