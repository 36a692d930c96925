# SPDX-License-Identifier: Apache-2.0
"""Snapshots of torch's caching allocator: the pickles of torch.cuda.memory._dump_snapshot."""
