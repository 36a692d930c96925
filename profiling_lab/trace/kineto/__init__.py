# SPDX-License-Identifier: Apache-2.0
"""Files of torch.profiler (Kineto): Chrome trace JSON."""
