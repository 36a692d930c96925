# SPDX-License-Identifier: Apache-2.0
"""Run a Python script in this process as `python script.py ...` does, without frames of the launcher.

The script is `__main__` (so pickling, multiprocessing and `if __name__ == "__main__"` work), sees its own
`sys.argv` and `sys.path`, and ends as without us: same exit code, same traceback, same Ctrl-C.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import BuiltinImporter, ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from profiling_lab.errors import UnreadableInputError

_SIGINT_EXIT = 130  # 128 + SIGINT, what a shell reports


@dataclass(frozen=True, slots=True)
class Script:
    """A script to run. `facts` become attributes of `__main__`, like those that Python sets."""

    name: str  # as typed by the user, for messages
    argv0: str
    folder: str  # goes to sys.path[0]
    facts: dict[str, object]
    load: Callable[[], CodeType]  # raises what Python raises for invalid code


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a script ended, and what the process must do to end in the same way."""

    exit_code: int
    interrupted: bool = False  # Ctrl-C: the process must die of SIGINT
    in_child: bool = False  # a forked child returned from the script: it has no recording


def find_script(path: str) -> Script:
    """The script that `python path` runs: a file, a folder or archive with a `__main__.py`, or `-` (standard
    input). Raises UnreadableInputError if there is none."""
    if path == "-":
        return _script_from_stdin()
    if os.path.isdir(path):
        return _script_inside(path, "a directory without a __main__.py")
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except FileNotFoundError:
        where = f"looked in {os.getcwd()}"
        where += "" if os.path.dirname(path) else " and, for a program, on PATH"
        raise UnreadableInputError(f"there is no script {path} ({where})") from None
    except OSError as error:
        raise UnreadableInputError(f"cannot read {path}: {error.strerror}") from None
    if b"\0" in source:
        return _script_inside(path, "a binary file")
    full = os.path.abspath(path)
    return Script(
        name=path,
        argv0=path,
        folder=os.path.dirname(os.path.realpath(path)),
        facts={
            "__file__": full,
            "__cached__": None,
            "__loader__": SourceFileLoader("__main__", full),
            "__package__": None,
            "__spec__": None,
        },
        load=lambda: compile(source, full, "exec", dont_inherit=True),
    )


def _script_from_stdin() -> Script:
    if sys.stdin is None or sys.stdin.isatty():
        raise UnreadableInputError("expected a script on the standard input, but it is a terminal")
    source = sys.stdin.buffer.read()
    return Script(
        name="stdin",
        argv0="-",
        folder="",
        facts={
            "__file__": "<stdin>",
            "__cached__": None,
            "__loader__": BuiltinImporter,
            "__package__": None,
            "__spec__": None,
        },
        load=lambda: compile(source, "<stdin>", "exec", dont_inherit=True),
    )


def _script_inside(path: str, what: str) -> Script:
    """The `__main__.py` of a folder or archive (zipapp). `what` describes `path` if there is none."""
    folder = os.path.abspath(path)
    spec = PathFinder.find_spec("__main__", [folder])
    if spec is None:
        raise UnreadableInputError(f"expected a Python script, but {path} is {what}")
    return replace(_script_of(spec), name=path, argv0=path, folder=folder)


def find_module(name: str) -> Script:
    """The module that `python -m name` runs. Imports its parent packages, as Python does."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()
    asked = name
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise UnreadableInputError(f"cannot find the module {name}: {error}") from None
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise UnreadableInputError(f"there is no module {name} that can be run")
    return replace(_script_of(spec), name=asked)


def _script_of(spec: ModuleSpec) -> Script:
    loader: Any = spec.loader

    def load() -> CodeType:
        code: CodeType | None = loader.get_code(spec.name)
        if code is None:
            raise ImportError(f"no code object available for {spec.name}")
        return code

    return Script(
        name=spec.name,
        argv0=spec.origin or spec.name,
        folder=os.getcwd(),
        facts={
            "__file__": spec.origin,
            "__cached__": spec.cached,
            "__loader__": loader,
            "__package__": spec.parent,
            "__spec__": spec,
        },
        load=load,
    )


def run_script(
    script: Script,
    arguments: Sequence[str],
    about_to_run: Callable[[], None] = lambda: None,
    has_run: Callable[[], None] = lambda: None,
) -> ScriptResult:
    """Run `script` and report how it ended. Its output, exceptions and threads are as without us.

    `about_to_run` is called from the frame that executes the script, so that the launcher's frames can be
    hidden; `has_run` is called when the script returns.
    """
    owner = os.getpid()
    main = ModuleType("__main__")
    main.__dict__.update(script.facts, __builtins__=builtins)
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    sys.argv[:] = [script.argv0, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = script.folder
    result, error = ScriptResult(0), None
    try:
        code = script.load()
        about_to_run()
        try:
            exec(code, main.__dict__)
        finally:
            has_run()
    except SystemExit as stop:
        result = ScriptResult(_exit_code(stop.code))
    except BaseException as raised:
        error = raised
    if error is not None:  # outside of the handler: the script's excepthook must not see a current exception
        result = _result_of(error)
    if os.getpid() != owner:
        return replace(result, in_child=True)
    try:
        _wait_for_threads()
    except KeyboardInterrupt as raised:
        result = _result_of(raised)
    return result


def _result_of(error: BaseException) -> ScriptResult:
    """Print the traceback of an uncaught exception."""
    _show(error)
    interrupted = isinstance(error, KeyboardInterrupt)
    return ScriptResult(_SIGINT_EXIT if interrupted else 1, interrupted)


def end_process(result: ScriptResult) -> int:
    """The process's exit code. After Ctrl-C it raises instead, so that Python dies of SIGINT without
    output.
    """
    if result.interrupted:
        sys.excepthook = lambda *_: None  # the traceback was printed already
        raise KeyboardInterrupt
    return result.exit_code


def _exit_code(asked: object) -> int:
    """The exit code of `sys.exit(asked)`: a text is printed and means failure."""
    if asked is None:
        return 0
    if isinstance(asked, int):
        return asked
    sys.stderr.write(f"{asked}\n")
    return 1


def _wait_for_threads() -> None:
    """Wait for the script's threads, as Python does before it exits. Their launches are recorded."""
    pools = sys.modules.get("concurrent.futures.thread")
    finish_pools = getattr(pools, "_python_exit", None)  # idle pool threads end only on request
    if finish_pools is not None:
        finish_pools()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _show(error: BaseException) -> None:
    """Print the traceback as Python does, starting with the script's first frame."""
    _drop_launcher(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    vars(sys)["last_exc"] = error  # from 3.12 on
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as second:  # the script's own hook failed
        _drop_launcher(second)
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(second), second, second.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _drop_launcher(error: BaseException) -> None:
    """Remove the leading frames of this file and of the import system from the traceback."""
    traceback = error.__traceback__
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen importlib"):
            break
        traceback = traceback.tb_next
    error.__traceback__ = traceback
