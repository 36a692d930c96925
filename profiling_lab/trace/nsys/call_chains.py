# SPDX-License-Identifier: Apache-2.0
"""Native call chains, which show whether a call is in backward, and contain Python frames of some
recorders.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiling_lab.trace.call_stacks import CallRows, rows_by_id
from profiling_lab.trace.columns import I32, full
from profiling_lab.trace.nsys.sqlite_file import SqliteFile
from profiling_lab.trace.nsys.strings import Strings, unescaped
from profiling_lab.trace.stacks import Frame, StackBuilder


def python_chains(file: SqliteFile, strings: Strings, builder: StackBuilder) -> dict[int, int]:
    """Stacks by chain id, for Python frames that were written as call chains: module = file:line."""
    if not file.columns("CUDA_CALLCHAINS"):
        return {}
    modules = strings.ids_matching(r"^(?P<file>.+\.py)(:(?P<line>\d+))?$")
    if not modules:
        return {}
    listed = ", ".join(str(i) for i in modules)
    chain_id, symbol, module, address = file.integers(
        "SELECT CAST(id AS INTEGER), CAST(symbol AS INTEGER), CAST(module AS INTEGER), IFNULL(originalIP, 0)"
        f" FROM CUDA_CALLCHAINS WHERE module IN ({listed}) ORDER BY id, stackDepth",
        4,
    )
    frames: dict[int, list[Frame]] = {}
    for chain, function, path, line in zip(
        chain_id.tolist(), symbol.tolist(), module.tolist(), address.tolist(), strict=True
    ):
        match = modules[path]
        frames.setdefault(chain, []).append(
            Frame(unescaped(strings[function]), unescaped(match["file"]), int(match["line"] or line))
        )
    return {chain: builder.add(found) for chain, found in frames.items()}


def engine_chains(
    file: SqliteFile, strings: Strings, rows: CallRows
) -> tuple[npt.NDArray[np.bool_], I32, tuple[str, ...]]:
    """Rows whose native chain passes through the autograd engine, and its node's class (-1 unknown)."""
    in_engine = np.zeros(len(rows.start_ns), dtype=bool)
    node = full(len(rows.start_ns), -1, np.int32)
    if not file.columns("CUDA_CALLCHAINS"):
        return in_engine, node, ()
    engine = strings.ids_matching(
        r"^torch::autograd::(python::Python)?Engine::(thread_main|evaluate_function)"
    )
    applied = strings.ids_matching(r"^torch::autograd::generated::(\w+)::apply\(")
    if not engine:
        return in_engine, node, ()
    names = tuple(sorted({match[1] for match in applied.values()}))
    listed = ", ".join(str(i) for i in (*engine, *applied))
    chain_id, symbol = file.integers(
        "SELECT CAST(id AS INTEGER), CAST(symbol AS INTEGER) FROM CUDA_CALLCHAINS"
        f" WHERE symbol IN ({listed})",
        2,
    )
    node_of_symbol = {i: names.index(match[1]) for i, match in applied.items()}
    is_engine = np.isin(symbol, list(engine))
    in_engine = np.isin(rows.chain, chain_id[is_engine])
    numbers = np.array([node_of_symbol.get(i, -1) for i in symbol.tolist()], dtype=np.int32)
    has_node = numbers >= 0
    row_of_chain = rows_by_id(chain_id[has_node])
    found = row_of_chain(rows.chain, missing=-1)
    node = np.where(found >= 0, np.append(numbers[has_node], -1)[found], -1).astype(np.int32)
    return in_engine, node, names
