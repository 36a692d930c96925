# SPDX-License-Identifier: Apache-2.0
"""Files in the schema of Nsight Systems, SQLite or Parquet, written by nsys or by our recorder."""

MAGIC = b"SQLite format 3\x00"
"""how an SQLite file begins"""
GZIP = b"\x1f\x8b"
"""how a gzip file begins, which may hold one"""
SUFFIXES = (".parquet", ".arrow")
"""of the files in a folder of tables"""
