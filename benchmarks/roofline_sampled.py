# SPDX-License-Identifier: Apache-2.0
"""Bytes as `roofline` counts them from shapes, against hardware counters that are sampled without replay.

    python benchmarks/roofline_sampled.py --results benchmarks/results/roofline_accuracy.jsonl
    python benchmarks/roofline_sampled.py --only attention            # prints alone
    python benchmarks/roofline_sampled.py --models                  # whole steps instead of operators

An operator is called again and again. After each call 200 MB of other memory are read, so that the L2 cache
writes back what the operator left in it, and the next call finds nothing there. What that reading alone moves
is measured the same way and subtracted. The counters are those of the whole memory, and all samples are added
up, so nothing has to be aligned. It takes the permission that ncu takes.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable
from typing import Any

from roofline_accuracy import Errors, chosen_pairs, prepared, write

CHOICES = [["dram__bytes_read.sum"], ["dram__bytes_write.sum"]]
PERIOD_NS = 100_000
MOST_SAMPLES = 4096
WINDOW_S = 0.08
MOST_CALLS = 400
SETTLE_S = 0.02


class Traffic:
    """What a repeated call moves between memory and L2 cache."""

    def __init__(self) -> None:
        import torch

        from profiling_lab import _recorder

        torch.cuda.init()
        l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
        self._others = [torch.zeros(4 * l2_bytes // 4, device="cuda") for _ in range(2)]
        self._sum = torch.zeros((), device="cuda")
        self._sampler = _recorder.CounterSampler("", 0, CHOICES, PERIOD_NS, MOST_SAMPLES)
        if not all(self._sampler.metrics):
            raise SystemExit(f"this GPU does not sample {CHOICES}, only {self._sampler.metrics}")
        self._settled()

    def of(self, run: Callable[[], object]) -> dict[str, float]:
        """Bytes of one call."""
        calls = self._calls(run)
        both, alone = self._moved(run, calls), self._moved(None, calls)
        return {
            name: max(both[i] - alone[i], 0.0) / calls
            for i, name in enumerate(("read_bytes", "written_bytes"))
        }

    def _calls(self, run: Callable[[], object]) -> int:
        import torch

        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return max(2, min(MOST_CALLS, round(WINDOW_S / (time.perf_counter() - began))))

    def _moved(self, run: Callable[[], object] | None, calls: int) -> list[float]:
        """Bytes read and written by these calls, each followed by the reading of other memory."""
        self._pass(0)
        self._settled()
        for i in range(calls):
            if run is not None:
                run()
            self._pass(i + 1)
        return self._settled()

    def _pass(self, turn: int) -> None:
        import torch

        torch.sum(self._others[turn % 2], dim=0, out=self._sum)

    def _settled(self) -> list[float]:
        """Wait for the GPU and for its last sample. Returns the sums of all samples since the last time."""
        import torch

        torch.cuda.synchronize()
        time.sleep(SETTLE_S)
        values = array("d")
        values.frombytes(self._sampler.take()[2])
        if self._sampler.overflows:
            raise SystemExit("samples were lost: the reader came too late")
        return [sum(values[i::2]) for i in (0, 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--results", help="append to this JSON lines file")
    parser.add_argument("--only", help="only this kind of operator")
    parser.add_argument("--compiled", action="store_true", help="also kernels that torch.compile generates")
    parser.add_argument("--models", action="store_true", help="steps of whole models instead")
    parser.add_argument("--with-models", action="store_true", help="these too, after the first 150 operators")
    parser.add_argument("--begin", type=int, default=0, help="leave out this many operators")
    parser.add_argument(
        "--seconds", type=float, default=200.0, help="begin no further operator after this time"
    )
    args = parser.parse_args(namespace=argparse.Namespace(flops=False))
    import torch

    from profiling_lab.measure import ResultsFile, machine

    file = ResultsFile(args.results, machine("cuda"))
    errors = Errors()
    traffic = Traffic()
    ends, chosen = time.monotonic() + args.seconds, chosen_pairs(args)
    run: Any
    for done, pair in enumerate(chosen):
        if time.monotonic() > ends:
            print(f"time is up: {done} of {len(chosen)} operators; --begin {args.begin + done} goes on")
            break
        case = {"kind": pair.kind, "op": pair.op, "shape": pair.shape, "dtype": pair.dtype}
        try:
            run, counted = prepared(pair.make)
            measured = traffic.of(run)
        except Exception as error:
            print(f"  {pair.op} {pair.shape}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        else:
            write(file, case, counted, "sampled", measured)
            errors.add(case, counted, measured)
        run = None
        torch.cuda.empty_cache()
    errors.show()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
