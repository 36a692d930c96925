# SPDX-License-Identifier: Apache-2.0
"""Files in the schema of Nsight Systems, SQLite or Parquet, written by nsys or by our recorder."""
