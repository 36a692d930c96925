# SPDX-License-Identifier: Apache-2.0
"""Lines against the speed of light: the table, the plot, and the rates of a GPU."""
