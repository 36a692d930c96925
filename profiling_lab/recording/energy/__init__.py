# SPDX-License-Identifier: Apache-2.0
"""What the driver says of a GPU while it is recorded: energy, power, clocks, temperature."""
