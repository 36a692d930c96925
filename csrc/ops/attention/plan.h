// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>

typedef struct CUstream_st* cudaStream_t;  // as in the CUDA headers, which a build without CUDA lacks

// How the kernels for a problem are launched on the current device. The plan follows from shapes and options,
// before any memory is allocated. The caller reads the workspace size from it, allocates the workspace, points
// the params to it, and calls run().
namespace plab::ops::attention {

// A one-dimensional grid of tiles; tile_scheduler.cuh makes it and finds a block's tile in it.
struct TileGrid {
  int tile_rows;    // rows of the axis a block owns
  int tiles;        // tiles per group; with cu_seqlens an upper bound over all sequences
  int groups;       // heads x batch; with cu_seqlens heads
  int section;      // groups that run concurrently, so that what they share stays in L2
  bool last_first;  // hand out the last tiles first: under a causal mask the longest work must not start last
  // With cu_seqlens: only sequences with more than `above` and at most `upto` rows have tiles.
  int above = 0, upto = INT_MAX;
};

// How a persistent backward kernel takes its key tiles.
struct TileSplit {
  int whole;  // the number of tiles taken whole; the other tiles are cut into `parts` parts along their query tiles
  int parts;
  bool in_turns;  // all key tiles add to dQ in order; else the first stores and the others add in any order
};

// Memory besides the tensors.
struct Workspace {
  bool tile_counter = false;    // FwdParams::tile_counter
  bool row_statistics = false;  // BwdParams::lse_log2 and delta
  int64_t dq_accum_floats = 0;  // BwdParams::dq_accum
};

// One kernel, its grid and its shared memory. `launch` is instantiated for the kernel. It creates what depends
// on pointers (tensor maps) and launches the kernel.
template <class Params>
struct KernelLaunch {
  void (*launch)(const KernelLaunch& how, const Params& params, cudaStream_t stream);
  int64_t blocks;
  int threads, shared_bytes;
  TileGrid tiles{};
  int stages = 0;  // of the kernel's ring of tiles, where it is chosen at run time
  TileSplit split{};
};

template <class Params>
class Plan {
 public:
  Workspace workspace;

  // Kernels run in the order in which they are added. A kernel with an empty grid is not added.
  void add(const KernelLaunch<Params>& one) {
    if (one.blocks > 0) launches_.at(count_++) = one;
  }
  void append(const Plan& other) {
    for (size_t i = 0; i < other.count_; ++i) add(other.launches_[i]);
    workspace.tile_counter |= other.workspace.tile_counter;
    workspace.row_statistics |= other.workspace.row_statistics;
    workspace.dq_accum_floats += other.workspace.dq_accum_floats;
  }
  void run(const Params& params, cudaStream_t stream) const {
    for (size_t i = 0; i < count_; ++i) launches_[i].launch(launches_[i], params, stream);
  }

 private:
  // The most is a backward with cu_seqlens and a sink: three tails, two statistics kernels, three main kernels.
  static constexpr size_t kMost = 8;
  std::array<KernelLaunch<Params>, kMost> launches_;
  size_t count_ = 0;
};

}  // namespace plab::ops::attention
