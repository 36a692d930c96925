# SPDX-License-Identifier: Apache-2.0
"""Python scripts, each in a fork of one process that has imported torch: importing it takes longer than most
of them, and they are many.

A script runs as `python script` does, from its own `__main__` to its handlers of atexit. But torch was there
before it began, the outermost frame is that of this module's program, OMP_NUM_THREADS is as in the tests, and
the interpreter is not taken down, which takes 0.3 s. What is about importing torch, about the start or end of
a process or about its outermost frames needs a process of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

_FORKS = """
import atexit, gc, json, os, runpy, sys, threading, traceback, types
import torch
import torch._dynamo  # as the first optimizer or dispatch mode does
gc.collect(), gc.freeze()  # a collection in a fork would copy every page
installed = list(sys.path[1:])
for line in sys.stdin.buffer:
    task = json.loads(line)
    child = os.fork()
    if child:
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)
        continue
    for number, name in enumerate(("/dev/null", task["out"], task["err"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number), os.close(opened)
    os.environ.clear(), os.environ.update(task["environment"]), os.chdir(task["folder"])
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    script, *sys.argv[1:] = task["arguments"]
    sys.argv[0] = script
    sys.path[:] = [os.path.dirname(script) or task["folder"], *filter(None, named), *installed]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__file__, main.__builtins__ = script, __builtins__
    status = 1
    try:
        if script == "-m":
            del sys.argv[0]
            runpy._run_module_as_main(sys.argv[0])
        else:
            with open(script, "rb") as file:
                code = compile(file.read(), script, "exec")
            exec(code, main.__dict__)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    threading._shutdown(), atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(status)
"""


@functools.cache
def _forks() -> subprocess.Popen[str]:
    """One for all tests of this process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # A process that has looked for GPUs through CUDA cannot fork others that use them.
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-c", _FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",  # not the source tree, whose package may not be built
        env=environment,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def run(
    arguments: list[str], folder: Path, environment: Mapping[str, str], timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a script or `-m MODULE` with its arguments in `folder`, where what it prints is kept meanwhile."""
    out, err = folder / ".printed", folder / ".errors"
    out.unlink(missing_ok=True)
    err.unlink(missing_ok=True)
    task = {
        "arguments": arguments,
        "folder": str(folder),
        "environment": dict(environment),
        "out": str(out),
        "err": str(err),
    }
    forks = _forks()
    assert forks.stdin is not None and forks.stdout is not None
    print(json.dumps(task), file=forks.stdin, flush=True)
    child = int(forks.stdout.readline())
    clock = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
    clock.start()
    status = os.waitstatus_to_exitcode(int(forks.stdout.readline()))
    clock.cancel()
    texts = [path.read_text() for path in (out, err)]
    out.unlink(), err.unlink()
    return subprocess.CompletedProcess(arguments, status, *texts)
