// SPDX-License-Identifier: Apache-2.0
// The kernels of layer_norm_gelu in more configurations than the op uses, as a library for
// layer_norm_gelu_sweep.py. Compile with -DPLAB_SWEEP_ELEMENT=__nv_bfloat16 (or __half, float); times nothing
// itself.
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "ops/layer_norm_gelu/backward.cuh"
#include "ops/layer_norm_gelu/forward.cuh"
#include "ops/layer_norm_gelu/launch_plan.cuh"

namespace plab::ops::layer_norm_gelu {
namespace {

using Element = PLAB_SWEEP_ELEMENT;
constexpr int kWarpsPerBlock = 4;

/// One configuration. Both return false where it cannot do such rows.
struct Entry {
  std::string name;
  bool (*forward)(const ForwardParams&, int waves, cudaStream_t);
  bool (*backward)(const BackwardParams&, int waves, cudaStream_t);
  int64_t (*backward_blocks)(const BackwardParams&, int waves);
};

struct Launch {
  int blocks, threads, shared_bytes;
  int64_t rows_per_group;
};

/// blocks = 0: not possible.
template <auto kKernel>
Launch plan(int64_t rows, int64_t cols, int vecs, int resident_threads, int groups, int shared_per_group,
            int waves) {
  const int per_vec = vecs * cuda::kVecSize<Element>;
  const int64_t threads_per_row = cols / per_vec;
  const bool is_warp = groups > 1;
  if (cols % (per_vec * 32) != 0 || (is_warp ? threads_per_row != 32 : threads_per_row <= 32)) return {};
  const int threads = static_cast<int>(threads_per_row) * groups;
  if (threads > resident_threads || shared_per_group + 1024 > cuda::max_shared_bytes()) return {};
  const int64_t resident = static_cast<int64_t>(cuda::multiprocessors()) *
                           cuda::blocks_per_multiprocessor<kKernel>(threads, shared_per_group);
  const cuda::RowRuns runs = cuda::cut_rows(rows, resident * groups, waves);
  return {static_cast<int>(cuda::ceil_div<int64_t>(runs.groups, groups)), threads, shared_per_group,
          runs.rows_per_group};
}

template <class Config>
bool run_forward(const ForwardParams& params, int waves, cudaStream_t stream) {
  using Tile = typename Config::Tile;
  const int threads_per_row = static_cast<int>(params.cols / Tile::kElements);
  const Launch launch = plan<forward_kernel<Config>>(
      params.rows, params.cols, Tile::kVecs, Config::kMaxBlock, Config::Group::kIsWarp ? kWarpsPerBlock : 1,
      WeightStore<Tile, Config::kWeights>::shared_bytes(threads_per_row), waves);
  if (launch.blocks == 0) return false;
  forward_kernel<Config>
      <<<launch.blocks, launch.threads, launch.shared_bytes, stream>>>(params, launch.rows_per_group);
  PLAB_CHECK_LAUNCH();
  return true;
}

template <class Config>
Launch plan_backward(const BackwardParams& params, int waves) {
  using Tile = typename Config::Tile;
  const int threads_per_row = static_cast<int>(params.cols / Tile::kElements);
  return plan<backward_kernel<Config>>(params.rows, params.cols, Tile::kVecs, Config::kResidentThreads,
                                       Config::Group::kIsWarp ? Config::kWarps : 1,
                                       Config::shared_bytes(threads_per_row), waves);
}

template <class Config>
bool run_backward(const BackwardParams& params, int waves, cudaStream_t stream) {
  const Launch launch = plan_backward<Config>(params, waves);
  if (launch.blocks == 0) return false;
  backward_kernel<Config>
      <<<launch.blocks, launch.threads, launch.shared_bytes, stream>>>(params, launch.rows_per_group);
  PLAB_CHECK_LAUNCH();
  add_partials_kernel<Element>
      <<<static_cast<int>(cuda::ceil_div<int64_t>(2 * params.cols, 32)), 1024, 0, stream>>>(
          static_cast<const float*>(params.partial), launch.blocks, params.cols,
          static_cast<Element*>(params.dweight), static_cast<Element*>(params.dbias));
  PLAB_CHECK_LAUNCH();
  return true;
}

const char* name(Weights weights) {
  return weights == Weights::kShared ? "shared" : weights == Weights::kRegisters ? "registers" : "cached";
}

template <int kVecs, class Group, int kResident, Weights kWeights, bool kPrefetch>
void add_forward(std::vector<Entry>& entries) {
  using Tile = RowTile<Element, kVecs, Access::kExact>;
  using Config = ForwardConfig<Tile, Group, kResident, kWeights, kPrefetch, GeluForm::kErf>;
  entries.push_back({"vecs " + std::to_string(kVecs) + ", resident " + std::to_string(kResident) +
                         ", weights " + name(kWeights) + (kPrefetch ? ", prefetch" : ""),
                     &run_forward<Config>, nullptr, nullptr});
}

template <int kVecs, class Group, int kResident, Weights kWeights, Sums kSums>
void add_backward(std::vector<Entry>& entries) {
  using Tile = RowTile<Element, kVecs, Access::kExact>;
  using Config = BackwardConfig<Tile, Group, kResident, kWarpsPerBlock, kWeights, kSums, GeluForm::kErf>;
  entries.push_back(
      {"vecs " + std::to_string(kVecs) + ", resident " + std::to_string(kResident) + ", weights " +
           name(kWeights) + ", sums " + (kSums == Sums::kShared ? "shared" : "registers"),
       nullptr, &run_backward<Config>,
       [](const BackwardParams& p, int waves) -> int64_t { return plan_backward<Config>(p, waves).blocks; }});
}

template <int kVecs, class Group>
void add_forward_family(std::vector<Entry>& entries) {
  const auto with = [&]<int kResident>(std::integral_constant<int, kResident>) {
    add_forward<kVecs, Group, kResident, Weights::kShared, true>(entries);
    add_forward<kVecs, Group, kResident, Weights::kCached, true>(entries);
    add_forward<kVecs, Group, kResident, Weights::kCached, false>(entries);
  };
  with(std::integral_constant<int, 768>{});
  with(std::integral_constant<int, 1024>{});
  with(std::integral_constant<int, 1536>{});
  with(std::integral_constant<int, 2048>{});
}

template <int kVecs>
void add_backward_family(std::vector<Entry>& entries) {
  const auto with = [&]<int kResident>(std::integral_constant<int, kResident>) {
    add_backward<kVecs, cuda::WarpGroup, kResident, Weights::kShared, Sums::kRegisters>(entries);
    add_backward<kVecs, cuda::BlockGroup, kResident, Weights::kShared, Sums::kRegisters>(entries);
    add_backward<kVecs, cuda::BlockGroup, kResident, Weights::kShared, Sums::kShared>(entries);
    add_backward<kVecs, cuda::BlockGroup, kResident, Weights::kCached, Sums::kShared>(entries);
  };
  with(std::integral_constant<int, 512>{});
  with(std::integral_constant<int, 640>{});
  with(std::integral_constant<int, 768>{});
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    constexpr int kUnit = 8 / cuda::kVecSize<Element>;  // as many vectors as hold 8 elements
    std::vector<Entry> list;
    add_forward_family<kUnit, cuda::WarpGroup>(list);
    add_forward_family<kUnit, cuda::BlockGroup>(list);
    add_forward_family<2 * kUnit, cuda::WarpGroup>(list);
    add_forward_family<2 * kUnit, cuda::BlockGroup>(list);
    add_forward_family<4 * kUnit, cuda::WarpGroup>(list);
    add_forward_family<4 * kUnit, cuda::BlockGroup>(list);
    add_backward_family<kUnit>(list);
    add_backward_family<2 * kUnit>(list);
    add_backward_family<4 * kUnit>(list);
    return list;
  }();
  return all;
}

thread_local std::string last_error;

/// Runs body; -1 and a text in last_error where it throws.
template <class Body>
int64_t guarded(Body&& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    last_error = error.what();
    return -1;
  }
}

}  // namespace
}  // namespace plab::ops::layer_norm_gelu

namespace op = plab::ops::layer_norm_gelu;

extern "C" {

int sweep_count() { return static_cast<int>(op::entries().size()); }
const char* sweep_name(int i) { return op::entries()[i].name.c_str(); }
int sweep_is_forward(int i) { return op::entries()[i].forward != nullptr; }
const char* sweep_error() { return op::last_error.c_str(); }

/// 1 launched, 0 not possible for these rows, -1 error. Rows are contiguous.
int64_t sweep_forward(int i, int waves, const void* x, const void* weight, const void* bias, void* y,
                      void* mean, void* rstd, int64_t rows, int64_t cols, void* stream) {
  op::ForwardParams params{};
  params.x = x, params.weight = weight, params.bias = bias, params.y = y, params.mean = mean,
  params.rstd = rstd;
  params.rows = rows, params.cols = cols, params.x_row_stride = cols, params.eps = 1e-5;
  return op::guarded([&]() -> int64_t {
    return op::entries()[i].forward(params, waves, static_cast<cudaStream_t>(stream));
  });
}

/// With partial = null: the rows of scratch it needs, 0 where not possible. Else as sweep_forward.
int64_t sweep_backward(int i, int waves, const void* dy, const void* x, const void* weight, const void* bias,
                       const void* mean, const void* rstd, void* dx, void* dweight, void* dbias,
                       void* partial, int64_t rows, int64_t cols, void* stream) {
  op::BackwardParams params{};
  params.dy = dy, params.x = x, params.weight = weight, params.bias = bias, params.mean = mean,
  params.rstd = rstd;
  params.dx = dx, params.dweight = dweight, params.dbias = dbias, params.partial = partial;
  params.rows = rows, params.cols = cols, params.x_row_stride = cols, params.dy_row_stride = cols;
  return op::guarded([&]() -> int64_t {
    const op::Entry& entry = op::entries()[i];
    if (partial == nullptr) return entry.backward_blocks(params, waves);
    return entry.backward(params, waves, static_cast<cudaStream_t>(stream));
  });
}
}
