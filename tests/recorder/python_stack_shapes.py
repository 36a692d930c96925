# SPDX-License-Identifier: Apache-2.0
"""Ways a Python program can come to call into C, each compared with `sys._getframe`.

Needs nothing but Python and the compiled stacks, so that every Python of a machine can run it:

    python python_stack_shapes.py FOLDER_OF_THE_MODULE MODULE
"""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import json
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable
from typing import Any

Frame = tuple[str, str, int]  # file, function, line


def expected(frame: types.FrameType | None, limit: int) -> list[Frame]:
    """What Python itself says, innermost first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < limit:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append((code.co_filename, name, frame.f_lineno or 0))
        frame = frame.f_back
    return frames


class Checker:
    """`check()` stands for a CUDA call: it takes the stack without the GIL, and compares."""

    def __init__(self, stacks: Any) -> None:
        self.stacks = stacks
        self.checked = 0
        self.differences: list[str] = []

    def check(self, *_: object) -> int:
        # On one line: this frame's own line is compared too.
        stack, want = self.stacks.capture_here(), expected(sys._getframe(), self.stacks.MAX_DEPTH)
        got = [(file, function, line) for file, function, line, _ in self.stacks.stack(stack)]
        if got and got[-1][1] == "<truncated>":
            got.pop()
        self.checked += 1
        if got != want:
            first = next(
                (i for i, (ours, theirs) in enumerate(zip(got, want, strict=False)) if ours != theirs),
                min(len(got), len(want)),
            )
            self.differences.append(
                f"frame {first}: expected {want[first : first + 1]}, captured {got[first : first + 1]}"
            )
        return self.checked


def plain_call(c: Checker) -> None:
    c.check()
    c.check()


def call_over_lines(c: Checker) -> None:
    max(
        c.check(),
        len(
            str(
                c.check(),
            ),
        ),
    )


def generator(c: Checker) -> None:
    def numbers() -> Any:
        c.check()
        yield 1
        c.check()
        yield 2

    def outer() -> Any:
        yield from numbers()

    for _ in outer():
        c.check()


def coroutine(c: Checker) -> None:
    async def inner() -> int:
        c.check()
        await asyncio.sleep(0)
        return c.check()

    async def outer() -> None:
        async with Context():
            await inner()
        async for _ in items():
            c.check()

    class Context:
        async def __aenter__(self) -> None:
            c.check()

        async def __aexit__(self, *_: object) -> None:
            c.check()

    async def items() -> Any:
        yield c.check()

    asyncio.run(outer())


def sort_key(c: Checker) -> None:
    sorted([3, 1, 2], key=lambda n: c.check() * n)
    list(map(c.check, [1, 2]))


def class_body(c: Checker) -> None:
    class Body:
        value = c.check()

        def __getattr__(self, name: str) -> int:
            return c.check()

        @property
        def size(self) -> int:
            return (lambda: c.check())()

        def __enter__(self) -> int:
            return c.check()

        def __exit__(self, *_: object) -> None:
            c.check()

        def __call__(self) -> int:
            return c.check()

        def __del__(self) -> None:
            c.check()

    body = Body()
    body.missing  # noqa: B018
    body.size  # noqa: B018
    with body:
        body()
    del body


def comprehension(c: Checker) -> None:
    [c.check() for _ in range(2)]
    {c.check(): [c.check() for _ in (1,)] for _ in (1,)}
    sum(c.check() for _ in (1, 2))


def partial_and_wrapper(c: Checker) -> None:
    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> int:
            return function(*args, **kwargs)

        return wrapper

    functools.partial(c.check, 1)()
    decorate(c.check)()
    functools.lru_cache(maxsize=None)(lambda _: c.check())(1)


def exec_of_text(c: Checker) -> None:
    exec(compile("\n\n\ndef made():\n  return c.check()\n\nmade()\n", "<made up>", "exec"), {"c": c})
    eval("[c.check() for _ in (1,)]", {"c": c})


def except_block(c: Checker) -> None:
    try:
        try:
            raise ValueError("on purpose")
        except ValueError:
            c.check()
            raise KeyError("chained") from None
        finally:
            c.check()
    except KeyError:
        c.check()
    with_cleanup = ["a", "b"]
    while with_cleanup:
        with_cleanup.pop()
        if c.check() < 0:
            break
    else:
        c.check()


def worker_thread(c: Checker) -> None:
    thread = threading.Thread(target=lambda: [c.check() for _ in range(3)])
    thread.start()
    thread.join()


def match_and_walrus(c: Checker) -> None:
    text = """
match point:
    case (0, y) if (n := c.check()) and y:
        c.check()
    case _:
        pass
f'{c.check()} {c.check():>{c.check()}}'
"""
    exec(compile(text, "<match>", "exec"), {"c": c, "point": (0, 1)})


def long_function(c: Checker) -> None:
    """More than 256 bytes of code and lines far apart: the table needs its long entries."""
    body = "\n".join(f"x{i} = {i} + len(str({i}))" for i in range(300))
    text = (
        "def long():\n c.check()\n"
        + "\n" * 400
        + " c.check()\n if c.check():\n"
        + "".join(f"  {line}\n" for line in body.splitlines())
        + "  return (c.check(),\n"
        + "\n" * 130
        + "    c.check())\nlong()\n"
    )
    exec(compile(text, "<long>", "exec"), {"c": c})


def names_beyond_ascii(c: Checker) -> None:
    for name in ("gr\u00f6\u00dfe", "\u5927\u304d\u3055", "\U00010400"):
        text = f"def {name}():\n  return c.check()\n{name}()\n"
        exec(compile(text, f"<{name} \U0001f600>", "exec"), {"c": c})


def recursion(c: Checker, depth: int = 300) -> None:
    if depth == 0:
        c.check()
    else:
        recursion(c, depth - 1)


def truncated_recursion(c: Checker) -> None:
    before = c.stacks.losses()["truncated"]
    recursion(c, 600)
    assert c.stacks.losses()["truncated"] == before + 1, "a cut stack must be counted"


SHAPES: tuple[Callable[[Checker], None], ...] = (
    plain_call,
    call_over_lines,
    generator,
    coroutine,
    sort_key,
    class_body,
    comprehension,
    partial_and_wrapper,
    exec_of_text,
    except_block,
    worker_thread,
    match_and_walrus,
    long_function,
    names_beyond_ascii,
    recursion,
    truncated_recursion,
)


def line_tables(c: Checker) -> list[str]:
    """Our decoder against Python's own, for every instruction of some large modules."""
    wrong: list[str] = []

    def compare(code: types.CodeType) -> None:
        for begin, end, line in code.co_lines():
            for offset in range(begin, end, 2):
                if c.stacks.line_at(code, offset) != (line or 0):
                    wrong.append(f"{code.co_filename}:{code.co_name} offset {offset}: {line}")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                compare(constant)

    for name in ("argparse", "asyncio.base_events", "typing", "inspect", "tarfile"):
        module = importlib.import_module(name)
        with open(module.__file__ or "", encoding="utf-8") as source:
            compare(compile(source.read(), name, "exec"))
    return wrong


def reused_addresses(c: Checker, rounds: int = 3000) -> int:
    """Makes and drops code objects, so that one address holds many; returns how many addresses came again."""
    addresses: set[int] = set()
    again = 0
    for i in range(rounds):
        scope: dict[str, Any] = {"c": c}
        # Equal name, file and length; only the line of the call differs.
        blank = i % 50
        text = "def made():\n" + "\n" * blank + "  x = 1\n  return c.check()\n" + "\n" * (50 - blank)
        exec(compile(text, f"<made {i % 7}>", "exec"), scope)
        again += id(scope["made"].__code__) in addresses
        addresses.add(id(scope["made"].__code__))
        scope["made"]()
        scope.clear()
    return again


def in_waiting_worker(job: Callable[[], int]) -> int:
    """Runs the job on a thread while the main thread waits, so that it cannot pin code objects meanwhile."""
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(job()))
    thread.start()
    thread.join()
    return results[0]


def disturbed(c: Checker, enough: int = 1000, at_most_seconds: float = 60.0) -> int:
    """Other threads look at this thread's frames, collect garbage and toggle monitoring meanwhile.

    Counts captures instead of seconds: how many fit into a second depends on the machine and on how much
    garbage collection has to look at.
    """
    stop = threading.Event()

    def snapshots() -> None:
        while not stop.is_set():
            for frame in sys._current_frames().values():
                while frame is not None:
                    _ = (frame.f_lineno, frame.f_locals)
                    frame = frame.f_back  # type: ignore[assignment]

    def collections() -> None:
        while not stop.is_set():
            gc.collect()

    def monitoring() -> None:
        monitor = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        monitor.use_tool_id(3, "disturber")
        while not stop.is_set():
            monitor.set_events(3, monitor.events.LINE | monitor.events.PY_START)
            time.sleep(0.001)
            monitor.set_events(3, 0)
            time.sleep(0.001)
        monitor.free_tool_id(3)

    jobs = [snapshots, collections] + ([monitoring] if sys.version_info >= (3, 12) else [])
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + at_most_seconds
        while c.checked < enough and time.monotonic() < deadline:
            for shape in (generator, sort_key, comprehension, except_block, class_body):
                shape(c)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return c.checked


def sub_interpreter(c: Checker, module_file: str) -> str:
    """What happens to a capture on a thread that runs another interpreter."""
    try:
        if sys.version_info >= (3, 13):
            interpreters = importlib.import_module("_interpreters")
            other = interpreters.create("legacy")
            run = interpreters.run_string
        else:
            interpreters = importlib.import_module("_xxsubinterpreters")
            other = interpreters.create(isolated=False)
            run = interpreters.run_string
    except (ImportError, TypeError):
        return "not available"
    before = c.stacks.losses()["other_interpreter"]
    with tempfile.NamedTemporaryFile() as answer:
        program = f"""
import ctypes
stack = ctypes.CDLL({module_file!r}).plab_test_capture()
open({answer.name!r}, "w").write(str(stack))
"""
        run(other, program)
        line = sys._getframe().f_lineno - 1
        text = answer.read().decode()
    interpreters.destroy(other)
    if not text:
        return "not available"
    if text == "0" and c.stacks.losses()["other_interpreter"] == before + 1:
        return "counted and left out"
    frames = c.stacks.stack(int(text))
    if sys.version_info < (3, 12) and frames[0][1:3] == ("sub_interpreter", line):
        return "the line that entered it"
    return f"wrong: {frames[:2]}"


def cost_ns(c: Checker, depth: int) -> float:
    """Nanoseconds per capture of one and the same stack, best of five."""

    def nested(level: int, repeats: int) -> float:
        return c.stacks.nanoseconds_per_capture(repeats) if level == 0 else nested(level - 1, repeats)

    nested(depth, 1)
    c.check()  # returns to Python: 3.10 and 3.11 pin what was seen
    return min(nested(depth, 20_000) for _ in range(5))


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    module = importlib.import_module(sys.argv[2])
    stacks = module.python_stacks
    stacks.start()
    report: dict[str, Any] = {"python": sys.version.split()[0], "shapes": {}}
    for shape in SHAPES:
        checker = Checker(stacks)
        for _ in range(3):  # the second and third time come from the memory of the first
            shape(checker)
            stacks.resolve()
        outcome = {"checked": checker.checked, "differences": checker.differences[:5]}
        report["shapes"][shape.__name__] = outcome
    checker = Checker(stacks)
    report["line_tables"] = line_tables(checker)[:5]
    report["addresses_reused"] = in_waiting_worker(lambda: reused_addresses(checker))
    reused_addresses(checker)
    report["reuse_differences"] = checker.differences[:5]
    disturbance = Checker(stacks)
    report["disturbed"] = disturbed(disturbance)
    report["disturbed_differences"] = disturbance.differences[:5]
    report["cost_ns"] = {depth: cost_ns(Checker(stacks), depth) for depth in (10, 30)}
    report["sub_interpreter"] = sub_interpreter(Checker(stacks), module.__file__)
    stacks.stop()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
