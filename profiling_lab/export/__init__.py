# SPDX-License-Identifier: Apache-2.0
"""A trace in the formats of other tools.

| module | writes | for |
|---|---|---|
| perfetto | Chrome's JSON: slices that nest, named tracks, arrows from launch to kernel | ui.perfetto.dev |
| speedscope | GPU time by Python stack, a profile per phase | speedscope.app |
| collapsed | the same as lines of text | flamegraph.pl and what reads its input |
| parquet | the tables with all names resolved | pandas, DuckDB, Polars |

Nothing of the environment that a recorder captured is written, and nothing of the machine but process and
thread ids and the names of threads.
"""
