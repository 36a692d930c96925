# SPDX-License-Identifier: Apache-2.0
"""How much of a counter belongs to each part of a program, from samples that are longer than many kernels.

A sample holds parts in different shares, so its count is the sum over the parts of time times rate: least
squares over all samples, with no rate below zero. A part is a kernel of a line, because kernels have rates;
rows are sums of parts. Error bars leave out one block of samples after the other (jackknife), so they know
how rates change while the program runs.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from profiling_lab.analysis.energy.fit import BLOCKS, student
from profiling_lab.records import dataclass

F64: TypeAlias = npt.NDArray[np.float64]

_RIDGE = 1e-9
"""of the largest sum of squares: parts that never differ share what they have"""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Per row, of one counter."""

    amount: F64
    error: F64
    """half of the interval of energy.fit.CONFIDENCE_FRAC"""


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """Some samples: sums of products of times with times and with the counters."""

    square: F64
    """[parts, parts]"""
    cross: F64
    """[parts, counters]"""
    seconds: F64
    """[parts]"""

    @classmethod
    def of(cls, seconds: F64, counts: F64) -> SampleBlock:
        """seconds: [samples, parts]; counts: [samples, counters]"""
        return cls(seconds.T @ seconds, seconds.T @ counts, seconds.sum(axis=0))


def amounts(blocks: list[SampleBlock], row: npt.NDArray[np.intp], rows: int) -> list[Amounts]:
    """Per counter. row: per part the row it belongs to, below `rows`."""
    square = np.sum([b.square for b in blocks], axis=0)
    cross = np.sum([b.cross for b in blocks], axis=0)
    seconds = np.sum([block.seconds for block in blocks], axis=0)
    found = []
    for counter in range(blocks[0].cross.shape[1]):
        whole = _by_row(_rates(square, cross[:, counter]) * seconds, row, rows)
        others = np.array(
            [
                _by_row(
                    _rates(square - b.square, cross[:, counter] - b.cross[:, counter]) * seconds, row, rows
                )
                for b in blocks
            ]
        )
        spread = (len(blocks) - 1) / len(blocks) * ((others - others.mean(axis=0)) ** 2).sum(axis=0)
        found.append(Amounts(whole, student(len(blocks) - 1) * np.sqrt(spread)))
    return found


def blocks_of(samples: int) -> list[npt.NDArray[np.intp]]:
    """The samples of each block, in time order."""
    return [part for part in np.array_split(np.arange(samples), BLOCKS) if len(part)]


def _by_row(values: F64, row: npt.NDArray[np.intp], rows: int) -> F64:
    return np.asarray(np.bincount(row, weights=values, minlength=rows), dtype=np.float64)


def _rates(square: F64, cross: F64) -> F64:
    """Least squares without a negative rate: the most negative one is taken out until there is none."""
    free = np.flatnonzero(np.diag(square) > 0)
    rates = np.zeros(len(cross))
    while len(free):
        system = square[np.ix_(free, free)]
        system = system + np.eye(len(free)) * _RIDGE * np.diag(system).max()
        found = np.linalg.solve(system, cross[free])
        if found.min() >= 0:
            rates[free] = found
            break
        free = np.delete(free, found.argmin())
    return rates
