// SPDX-License-Identifier: Apache-2.0
// layer_norm_gelu backward: dX, and the sums dW, dB over all rows.
// With H = (X - mean) rstd and dZ = dY gelu'(H W + B):  dW = sum dZ H,  dB = sum dZ,  dH = dZ W,
//      dX = rstd (dH - avg(dH) - H avg(dH H)), averages over a row; with a residual + the sum's own gradient.
//
// Mapping   one group of threads per row as in the forward; the next rows of X and dY are prefetched into
//           shared memory. A thread keeps dW and dB of its columns in registers over all its rows. Each
//           block writes its sums once, and a second kernel adds them in a fixed order: no atomics, the same
//           bits in every run. All blocks are resident at once, because another wave would move 16 d more
//           bytes per block.
// Bytes     rows * (3 d e + 8), e = bytes per element, and 16 d per block for the sums (L2).
// Flops     about 40 per element.
// Roof      memory: an H200 feeds 0.71e12 bf16 elements/s, 42 instruction slots for each; README.md counts
//           ours.
// Contract  as in forward.cuh.
#pragma once

#include "cuda/math.cuh"
#include "cuda/pair_sum.cuh"
#include "cuda/ptx/dependent_launch.cuh"
#include "cuda/ptx/dynamic_shared.cuh"
#include "ops/layer_norm_gelu/layer_norm_gelu.h"
#include "ops/layer_norm_gelu/portable/epilogue.cuh"
#include "ops/layer_norm_gelu/portable/load.cuh"

namespace plab::ops::layer_norm_gelu {

/// kResidentThreads: as in ForwardConfig. kWarps: the warps of a block in which each warp has its own row.
/// kOverlap: the first part of the next row is computed before the sums of this row are collected.
template <class Tile_, class Group_, int kResidentThreads_, int kWarps_, Weights kWeights_, int kStages_,
          bool kOverlap_, GeluForm kForm_, Residual kResidual_ = Residual::kNo>
struct BackwardConfig {
  using Tile = Tile_;
  using Group = Group_;
  using Element = typename Tile::Element;
  /// 16-bit rows: weight and bias are multiplied by kGaussScale and gelu' is taken twice, which saves two
  /// instructions an element. dZ is then 2 dZ and dH is dH / kOutScale.
  static constexpr bool kScaled = sizeof(Element) == 2 && kForm_ == GeluForm::kErf;
  static constexpr float kOutScale = kScaled ? 0.5f / cuda::kGaussScale : 1.0f;
  using WeightsOfRow = WeightStore<Tile, kWeights_, kScaled>;
  using Ring = RowRing<Tile, kStages_>;
  static constexpr int kResidentThreads = kResidentThreads_;
  static constexpr int kRowsAtATime = Group::kIsWarp ? kWarps_ : 1;  // of a block, or cluster
  static constexpr int kWarps = kWarps_;
  static constexpr int kStages = kStages_;
  static constexpr bool kOverlap = kOverlap_;
  static constexpr Weights kWeights = kWeights_;
  static constexpr GeluForm kForm = kForm_;
  static constexpr Residual kResidual = kResidual_;
  static constexpr int kSumBytes = Group::kIsWarp ? kWarps * Tile::kElements * 32 * 4 : 0;

  static constexpr int weight_bytes(int threads_per_row) {
    return WeightsOfRow::shared_bytes(threads_per_row);
  }
  static constexpr int shared_bytes(int threads_per_row, int threads, bool has_residual) {
    const int rings = weight_bytes(threads_per_row) + (has_residual ? 3 : 2) * Ring::shared_bytes(threads);
    return rings > kSumBytes ? rings : kSumBytes;
  }
};

/// The blocks of a group write one row of params.partial.
template <class Config>
__global__ void __launch_bounds__(Config::kResidentThreads)
    backward_kernel(const __grid_constant__ BackwardParams params, RowOrder order) {
  using Tile = typename Config::Tile;
  using Element = typename Config::Element;
  // Saves two instructions compared with the exactly cancelling form, for the 16-bit rows that profit from it.
  constexpr bool kMultipliedOut =
      sizeof(Element) == 2 && (Tile::kAccess == Access::kExact || Tile::kAccess == Access::kShifted);
  static __shared__ typename Config::Group::Storage storage;
  typename Config::Group group(storage);
  float4* shared = cuda::ptx::dynamic_shared() + group.dynamic_bytes() / 16;
  const float inverse_cols = order.inverse_cols;

  const int64_t first = order.interleaved ? group.index() : group.index() * order.rows_per_group;
  const Tile tile =
      tile_of<Tile>(group, params.cols, static_cast<const Element*>(params.x) + first * params.x_row_stride);
  const int64_t step = order.interleaved ? group.count() : 1;
  const int64_t left = order.interleaved ? (params.rows - first + step - 1) / step : params.rows - first;
  const bool whole = order.interleaved || left < order.rows_per_group;
  const int count = static_cast<int>(whole ? left : order.rows_per_group);

  char* memory = reinterpret_cast<char*>(shared) + Config::weight_bytes(group.local_size());
  typename Config::Ring x_ring(tile, memory, threadIdx.x, blockDim.x);
  memory += Config::Ring::shared_bytes(blockDim.x);
  typename Config::Ring dy_ring(tile, memory, threadIdx.x, blockDim.x);
  memory += Config::Ring::shared_bytes(blockDim.x);
  typename Config::Ring dsum_ring(tile, memory, threadIdx.x, blockDim.x);
  const Element* dsum_ahead = nullptr;
  int64_t dsum_step = 0;
  with_residual<Config::kResidual>(params.dsum, [&] {
    dsum_ahead = static_cast<const Element*>(params.dsum) + first * params.dsum_row_stride;
    dsum_step = step * params.dsum_row_stride;
  });
  const int64_t x_step = step * params.x_row_stride, dy_step = step * params.dy_row_stride;
  const Element* x_ahead = static_cast<const Element*>(params.x) + first * params.x_row_stride;
  const Element* dy_ahead = static_cast<const Element*>(params.dy) + first * params.dy_row_stride;
  Element* dx = static_cast<Element*>(params.dx) + first * params.cols;
  const int64_t dx_step = step * params.cols;
  const float* mean_next = static_cast<const float*>(params.mean) + first;
  const float* rstd_next = static_cast<const float*>(params.rstd) + first;

  RingSlot ahead{0}, now{0}, read{0};
  const bool has_last = first + (count - 1) * step == params.rows - 1;
  int requested = 0;
  auto request = [&] {
    if (requested < count) {
      const bool is_last = has_last && requested == count - 1;
      x_ring.request(x_ahead, ahead, is_last);
      dy_ring.request(dy_ahead, ahead, is_last);
      with_residual<Config::kResidual>(params.dsum, [&] {
        dsum_ring.request(dsum_ahead, ahead, is_last);
        dsum_ahead += dsum_step;
      });
      ahead = x_ring.next(ahead);
      x_ahead += x_step, dy_ahead += dy_step;
    }
    ++requested;
    cuda::ptx::cp_async_commit_group();
  };
#pragma unroll
  for (int s = 0; s < Config::kStages - 1; ++s) request();
  struct Row {
    float mean, rstd;
  };
  Row ahead_row{};  // of the next row to be read
  auto load_row = [&] {
    ahead_row = {__ldg(mean_next), __ldg(rstd_next)};
    mean_next += step, rstd_next += step;
  };
  if (count > 0) load_row();
  typename Config::WeightsOfRow weights(tile, static_cast<const Element*>(params.weight),
                                        static_cast<const Element*>(params.bias), group, shared);
  typename Tile::Floats dweight = {}, dbias = {};
  if constexpr (Config::kWeights == Weights::kShared) __syncthreads();

  using Floats = typename Tile::Floats;
  using Ticket = typename Config::Group::Ticket;
  int loaded = 0;
  // If registers are left, they keep H until the row's sums are known; else H is recomputed.
  constexpr bool kKeepsH = !Config::kOverlap && Config::kResidual != Residual::kYes &&
                           !Config::Group::kIsWarp && Tile::kElements == 16;
  struct Nothing {};
  using Kept = std::conditional_t<kKeepsH, Floats, Nothing>;
  // dH of the next row, the sums for dW and dB, and this thread's part of the row's two sums.
  auto first_part = [&](Floats& dh, [[maybe_unused]] Kept& kept, Row& row) -> Ticket {
    cuda::ptx::cp_async_wait_group<Config::kStages - 2>();
    x_ring.arrived(read);
    dy_ring.arrived(read);
    row = ahead_row;
    if (++loaded < count) load_row();
    weights.next_row();
    float sum = 0.0f, sum_h = 0.0f;
    const float offset = -row.mean * row.rstd;
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if (tile.skips(i)) continue;
      float w[Tile::kVecSize], b[Tile::kVecSize], x[Tile::kVecSize], dy[Tile::kVecSize];
      cuda::unpack(x_ring.vec(read, i), x);
      cuda::unpack(dy_ring.vec(read, i), dy);
      weights.get(i, w, b);
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        // Where dY is not the row's it is zero, and so is all that follows from it.
        const float h = kMultipliedOut ? fmaf(x[j], row.rstd, offset) : (x[j] - row.mean) * row.rstd;
        const float z = fmaf(h, w[j], b[j]);
        float dz;
        if constexpr (Config::kScaled) {
          dz = fmaf(dy[j], cuda::centred_slope_of_scaled<Element>(z), dy[j]);
        } else {
          dz = dy[j] * cuda::gelu_derivative<Element, Config::kForm>(z);
        }
        if constexpr (kKeepsH) kept[i][j] = h;
        dweight[i][j] = fmaf(dz, h, dweight[i][j]);
        dbias[i][j] += dz;
        dh[i][j] = dz * w[j];
        sum += dh[i][j];
        sum_h = fmaf(dh[i][j], h, sum_h);
      }
    }
    read = x_ring.next(read);
    return group.post(cuda::warp_pair_sum(sum, sum_h));
  };
  auto second_part = [&](const Floats& dh, [[maybe_unused]] const Kept& kept, const Row& row,
                         const Ticket& ticket) {
    float sum, sum_h;
    group.collect(ticket, sum, sum_h);
    // dX = rstd (dH - avg(dH) - H avg(dH H)). If this is not multiplied out, the same H as above makes the
    // terms cancel.
    const float shift = -sum * inverse_cols, slope = -sum_h * inverse_cols;
    const float scale = row.rstd * Config::kOutScale;
    const float slope_of_x = slope * scale * row.rstd;
    const float shift_of_x = fmaf(-row.mean, slope_of_x, shift * scale);
#pragma unroll
    for (int i = 0; i < Tile::kVecs; ++i) {
      if (tile.skips(i)) continue;
      float f[Tile::kVecSize];
      if constexpr (!kKeepsH) cuda::unpack(x_ring.vec(now, i), f);
      [[maybe_unused]] float dsum[Tile::kVecSize];
      with_residual<Config::kResidual>(params.dsum, [&] { cuda::unpack(dsum_ring.vec(now, i), dsum); });
#pragma unroll
      for (int j = 0; j < Tile::kVecSize; ++j) {
        if constexpr (kKeepsH && kMultipliedOut) {
          f[j] = fmaf(dh[i][j], scale, fmaf(kept[i][j], slope * scale, shift * scale));
        } else if constexpr (kMultipliedOut) {
          f[j] = fmaf(dh[i][j], scale, fmaf(f[j], slope_of_x, shift_of_x));
        } else {
          float h;
          if constexpr (kKeepsH) {
            h = kept[i][j];
          } else {
            h = (f[j] - row.mean) * row.rstd;
          }
          f[j] = scale * (fmaf(h, slope, dh[i][j]) + shift);
        }
        with_residual<Config::kResidual>(params.dsum, [&] { f[j] += dsum[j]; });
      }
      tile.store_vec(dx, i, f);
    }
    now = x_ring.next(now);
    dx += dx_step;
  };

  if (count > 0) {
    if constexpr (Config::kOverlap) {
      Floats dh[2];
      Kept kept;
      Row rows[2];
      Ticket tickets[2];
      tickets[0] = first_part(dh[0], kept, rows[0]);
      auto turn = [&](int k, int mine, int other) {
        request();
        if (k + 1 < count) tickets[other] = first_part(dh[other], kept, rows[other]);
        second_part(dh[mine], kept, rows[mine], tickets[mine]);
      };
      for (int k = 0; k < count; k += 2) {
        turn(k, 0, 1);
        if (k + 1 < count) turn(k + 1, 1, 0);
      }
    } else {
      for (int k = 0; k < count; ++k) {
        Floats dh;
        Kept kept;
        Row row;
        const Ticket ticket = first_part(dh, kept, row);
        request();
        second_part(dh, kept, row, ticket);
      }
    }
  }

  cuda::ptx::launch_dependents();  // add_partials_kernel may start now; it waits for this kernel's end
  const auto store = [&](Floats& sums, void* whole, int64_t of_partial) {
    if (!add_warps<Config>(sums, reinterpret_cast<float*>(shared))) return;
    if constexpr (Config::kScaled) {
#pragma unroll
      for (int e = 0; e < Tile::kElements; ++e) sums[e / Tile::kVecSize][e % Tile::kVecSize] *= 0.5f;
    }
    if (params.partial == nullptr) return store_sums(tile, sums, static_cast<Element*>(whole));
    const int64_t unit = blockIdx.x / static_cast<unsigned>(group.blocks());
    store_sums(tile, sums, static_cast<float*>(params.partial) + 2 * unit * params.cols + of_partial);
  };
  store(dweight, params.dweight, 0);
  store(dbias, params.dbias, params.cols);
  group.finish();
}

}  // namespace plab::ops::layer_norm_gelu
