# SPDX-License-Identifier: Apache-2.0
"""A trace in the formats of other tools.

| module | writes | for |
|---|---|---|
| perfetto | Chrome trace JSON: nested slices, named tracks, arrows from launch to kernel | ui.perfetto.dev |
| speedscope | GPU time by Python stack, a profile per phase | speedscope.app |
| collapsed | the same as lines of text | flamegraph.pl and compatible tools |
| parquet | the tables with all names resolved | pandas, DuckDB, Polars |

The captured environment is never written, and no machine data except process and thread ids and thread names.
"""
