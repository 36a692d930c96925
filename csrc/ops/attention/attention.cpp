// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "ops/attention/cpu/launch.h"
#include "ops/op.h"

namespace plab::ops {
namespace {

using attention::BwdParams;
using attention::FwdParams;
using attention::Problem;
using attention::RowLayout;
using attention::View;
using torch_abi::empty;
using torch_abi::Named;

constexpr const char* kOp = "flash_attention";
constexpr const char* kCacheOp = "flash_attention_with_cache";
using OptionalTensor = std::optional<Tensor>;

struct Checked {
  Problem problem;
  bool cuda, varlen;
  Dtype statistics;  // of LSE and of the sink
};

bool alike_but_last(const Tensor& a, const Tensor& b) {
  return std::ranges::equal(a.sizes().first(a.sizes().size() - 1), b.sizes().first(b.sizes().size() - 1));
}

// The checks of both directions. q, k, v are (batch, rows, heads, head_dim), or (rows, heads, head_dim) with
// cu_seqlens.
Checked check(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& sink,
              const OptionalTensor& cu_q, const OptionalTensor& cu_k, double scale, int64_t left,
              int64_t right, double softcap) {
  torch_abi::check_alike(kOp, {{"q", q}, {"k", k}, {"v", v}});
  Checked c{};
  c.varlen = cu_q.has_value();
  PLAB_CHECK(c.varlen == cu_k.has_value(), kOp,
             ": cu_seqlens_q and cu_seqlens_k are given together or not at all");
  const int64_t dims = c.varlen ? 3 : 4;
  for (const Named& one : {Named{"q", q}, {"k", k}, {"v", v}})
    PLAB_CHECK(one.tensor.dim() == dims, kOp, ": ", one.name, " has shape ",
               torch_abi::text(one.tensor.sizes()), ", expected ",
               c.varlen ? "(rows, heads, head_dim) with cu_seqlens" : "(batch, rows, heads, head_dim)");
  PLAB_CHECK(alike_but_last(k, v), kOp, ": v has shape ", torch_abi::text(v.sizes()), " but k has shape ",
             torch_abi::text(k.sizes()));
  Problem& p = c.problem;
  const int64_t heads = q.size(-2), kv_heads = k.size(-2), dim = q.size(-1), dim_v = v.size(-1);
  PLAB_CHECK(k.size(-1) == dim, kOp, ": k has head_dim ", k.size(-1), " but q has ", dim);
  PLAB_CHECK(c.varlen || k.size(0) == q.size(0), kOp, ": k has batch ", k.size(0), " but q has ", q.size(0));
  PLAB_CHECK(kv_heads > 0 ? heads % kv_heads == 0 : heads == 0, kOp, ": q has ", heads,
             " heads, not a multiple of the ", kv_heads, " heads of k");
  p.element = element_type(kOp, q);
  c.cuda = q.device().is_cuda();
  if (c.cuda) {
    PLAB_CHECK(p.element != ElementType::kFloat32, kOp,
               ": dtype float32 is not supported on CUDA; expected bfloat16 or float16");
    for (const int64_t one : {dim, dim_v})
      PLAB_CHECK(one % 8 == 0 && one >= 8 && one <= 256, kOp, ": head_dim is ", one,
                 ", expected a multiple of 8 from 8 to 256 on CUDA");
  } else {
    PLAB_CHECK(dim >= 1 && dim_v >= 1, kOp, ": head_dim is 0");
  }
  c.statistics = p.element == ElementType::kFloat64 ? Dtype::kFloat64 : Dtype::kFloat32;
  if (sink) {
    PLAB_CHECK(sink->device() == q.device(), kOp, ": sink is on ", torch_abi::name(sink->device()),
               " but q is on ", torch_abi::name(q.device()));
    PLAB_CHECK(sink->dtype() == c.statistics, kOp, ": sink has dtype ", torch_abi::name(sink->dtype()),
               ", expected ", torch_abi::name(c.statistics));
    PLAB_CHECK(sink->dim() == 1 && sink->size(0) == heads, kOp, ": sink has shape ",
               torch_abi::text(sink->sizes()), " but q has ", heads, " heads");
    PLAB_CHECK(sink->is_contiguous(), kOp, ": sink is not contiguous");
    p.sink = sink->data();
  }
  const int64_t batch = c.varlen ? cu_q->numel() - 1 : q.size(0);
  for (const auto& [what, size] :
       {std::pair{"batches", batch}, {"heads", heads}, {"elements in head_dim", std::max(dim, dim_v)}})
    PLAB_CHECK(size < int64_t{1} << 31, kOp, ": ", size, " ", what, ", expected fewer than 2^31");
  p.batch = static_cast<int>(batch);
  if (c.varlen) {
    for (const Named& one : {Named{"cu_seqlens_q", *cu_q}, {"cu_seqlens_k", *cu_k}}) {
      PLAB_CHECK(one.tensor.dtype() == Dtype::kInt32, kOp, ": ", one.name, " has dtype ",
                 torch_abi::name(one.tensor.dtype()), ", expected int32");
      PLAB_CHECK(one.tensor.device() == q.device(), kOp, ": ", one.name, " is on ",
                 torch_abi::name(one.tensor.device()), " but q is on ", torch_abi::name(q.device()));
      PLAB_CHECK(one.tensor.dim() == 1 && one.tensor.numel() >= 1 && one.tensor.is_contiguous(), kOp, ": ",
                 one.name, " is not a contiguous vector of batch + 1 offsets");
    }
    PLAB_CHECK(cu_q->numel() == cu_k->numel(), kOp, ": cu_seqlens_q has ", cu_q->numel(),
               " offsets but cu_seqlens_k has ", cu_k->numel());
    p.cu_seqlens_q = cu_q->data<int32_t>();
    p.cu_seqlens_k = cu_k->data<int32_t>();
  }
  // Offsets are data. On the GPU reading them would synchronize the stream; on the CPU it costs nothing.
  if (c.varlen && !c.cuda) {
    const struct {
      const char* name;
      const int32_t* offsets;
      int64_t rows;
    } sides[] = {{"cu_seqlens_q", p.cu_seqlens_q, q.size(0)}, {"cu_seqlens_k", p.cu_seqlens_k, k.size(0)}};
    for (const auto& side : sides) {
      PLAB_CHECK(side.offsets[0] == 0, kOp, ": ", side.name, " starts with ", side.offsets[0],
                 ", expected 0");
      PLAB_CHECK(std::is_sorted(side.offsets, side.offsets + p.batch + 1), kOp, ": ", side.name,
                 " decreases");
      PLAB_CHECK(side.offsets[p.batch] <= side.rows, kOp, ": ", side.name, " ends with ",
                 side.offsets[p.batch], " but there are ", side.rows, " rows");
    }
  }
  p.heads = static_cast<int>(heads);
  p.kv_heads = static_cast<int>(kv_heads);
  p.head_dim = static_cast<int>(dim);
  p.head_dim_v = static_cast<int>(dim_v);
  p.q_len = q.size(c.varlen ? 0 : 1);
  p.k_len = k.size(c.varlen ? 0 : 1);
  constexpr int64_t kMostRows = int64_t{1} << 30;
  PLAB_CHECK(std::max(p.q_len, p.k_len) < kMostRows, kOp, ": ", std::max(p.q_len, p.k_len),
             " rows, expected fewer than 2^30");
  PLAB_CHECK(softcap >= 0, kOp, ": softcap is ", softcap, ", expected 0 (off) or a positive number");
  p.window_left = std::min(left, kMostRows);  // no limit for so few rows, and far from any overflow
  p.window_right = std::min(right, kMostRows);
  p.scale = scale;
  p.softcap = softcap;
  p.stale_keys = c.varlen;
  return c;
}

// The tensor as the kernels can read it: last dimension dense, and on the GPU 16-byte steps from a 16-byte
// address.
Tensor readable(const Tensor& tensor, bool cuda) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const size_t last = sizes.size() - 1;
  if (strides[last] != 1) return torch_abi::contiguous(tensor);
  if (!cuda) return tensor.share();
  bool aligned = reinterpret_cast<uintptr_t>(tensor.data()) % 16 == 0;
  for (size_t i = 0; i < last; ++i)
    aligned = aligned && (sizes[i] <= 1 || (strides[i] % 8 == 0 && strides[i] >= 0));
  return aligned ? tensor.share() : torch_abi::clone(tensor);
}

View view_of(const Tensor& tensor, bool varlen) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const auto stride = [&](size_t i) {
    return sizes[i] <= 1 ? 0 : strides[i];
  };  // a single element needs no stride
  void* const data = const_cast<void*>(tensor.data());
  return varlen ? View{data, 0, stride(0), stride(1)} : View{data, stride(0), stride(1), stride(2)};
}

RowLayout row_layout(const Checked& c) {
  return c.varlen ? RowLayout{0, c.problem.q_len}
                  : RowLayout{c.problem.heads * c.problem.q_len, c.problem.q_len};
}

#ifdef PLAB_HAS_CUDA
void run_fwd(const attention::FwdPlan& plan, FwdParams& params, torch_abi::Device device,
             cudaStream_t stream) {
  OptionalTensor counter;
  if (plan.workspace.tile_counter) {
    counter = empty(std::array{int64_t{1}}, Dtype::kInt32, device);
    params.tile_counter = counter->mutable_data<int32_t>();
  }
  plan.run(params, stream);
}
#endif

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const OptionalTensor& sink, const OptionalTensor& cu_q,
                                   const OptionalTensor& cu_k, double scale, int64_t left, int64_t right,
                                   double softcap, bool) {
  const Checked c = check(q, k, v, sink, cu_q, cu_k, scale, left, right, softcap);
  Tensor out = c.varlen
                   ? empty(std::array{q.size(0), q.size(1), v.size(2)}, q.dtype(), q.device())
                   : empty(std::array{q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype(), q.device());
  Tensor lse = c.varlen ? empty(std::array{q.size(1), q.size(0)}, c.statistics, q.device())
                        : empty(std::array{q.size(0), q.size(2), q.size(1)}, c.statistics, q.device());
  if (out.numel() == 0) return {std::move(out), std::move(lse)};
  const Tensor q_ready = readable(q, c.cuda), k_ready = readable(k, c.cuda), v_ready = readable(v, c.cuda);
  FwdParams params{c.problem,
                   view_of(q_ready, c.varlen),
                   view_of(k_ready, c.varlen),
                   view_of(v_ready, c.varlen),
                   view_of(out, c.varlen),
                   lse.mutable_data(),
                   row_layout(c)};
  if (!c.cuda) {
    attention::cpu::fwd(params);
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(q);
    run_fwd(attention::plan_fwd(params), params, q.device(), scope.stream());
#endif
  }
  return {std::move(out), std::move(lse)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& dout, const OptionalTensor& dlse,
                                                    const Tensor& q, const Tensor& k, const Tensor& v,
                                                    const Tensor& out, const Tensor& lse,
                                                    const OptionalTensor& sink, const OptionalTensor& cu_q,
                                                    const OptionalTensor& cu_k, double scale, int64_t left,
                                                    int64_t right, double softcap, bool deterministic) {
  const Checked c = check(q, k, v, sink, cu_q, cu_k, scale, left, right, softcap);
  torch_abi::check_alike(kOp, {{"q", q}, {"dout", dout}, {"out", out}});
  for (const Named& one : {Named{"dout", dout}, {"out", out}})
    PLAB_CHECK(one.tensor.dim() == q.dim() && alike_but_last(one.tensor, q) &&
                   one.tensor.size(-1) == c.problem.head_dim_v,
               kOp, ": ", one.name, " has shape ", torch_abi::text(one.tensor.sizes()), " but q has shape ",
               torch_abi::text(q.sizes()), " and v ", torch_abi::text(v.sizes()));
  const auto check_statistics = [&](const char* name, const Tensor& tensor) {
    PLAB_CHECK(tensor.dtype() == c.statistics && tensor.device() == q.device() &&
                   tensor.numel() == (c.varlen ? 1 : c.problem.batch) * c.problem.heads * c.problem.q_len,
               kOp, ": ", name, " does not have the form of the forward's lse");
  };
  check_statistics("lse", lse);
  if (dlse) check_statistics("dlse", *dlse);

  Tensor dq = torch_abi::empty_like(q), dk = torch_abi::empty_like(k), dv = torch_abi::empty_like(v);
  Tensor dsink = empty(std::array{sink ? sink->size(0) : int64_t{0}}, c.statistics, q.device());
  if (dq.numel() == 0 && dk.numel() == 0)
    return {std::move(dq), std::move(dk), std::move(dv), std::move(dsink)};
  const Tensor q_ready = readable(q, c.cuda), k_ready = readable(k, c.cuda), v_ready = readable(v, c.cuda),
               out_ready = readable(out, c.cuda), dout_ready = readable(dout, c.cuda),
               lse_ready = torch_abi::contiguous(lse);
  const OptionalTensor dlse_ready = dlse ? OptionalTensor(torch_abi::contiguous(*dlse)) : std::nullopt;
  BwdParams params{c.problem,
                   view_of(q_ready, c.varlen),
                   view_of(k_ready, c.varlen),
                   view_of(v_ready, c.varlen),
                   view_of(out_ready, c.varlen),
                   view_of(dout_ready, c.varlen),
                   view_of(dq, c.varlen),
                   view_of(dk, c.varlen),
                   view_of(dv, c.varlen),
                   lse_ready.data(),
                   dlse_ready ? dlse_ready->data() : nullptr,
                   nullptr,
                   nullptr,
                   row_layout(c),
                   sink ? dsink.mutable_data() : nullptr,
                   deterministic,
                   nullptr};
  if (!c.cuda) {
    Tensor delta = torch_abi::empty_like(lse);
    params.delta = delta.mutable_data();
    attention::cpu::bwd(params);
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(q);
    const attention::BwdPlan plan = attention::plan_bwd(params);
    // One allocation for the whole workspace: in a small call each allocation shows.
    const auto whole_lines = [](int64_t floats) { return (floats + 127) / 128 * 128; };
    const int64_t accum = whole_lines(plan.workspace.dq_accum_floats),
                  rows = plan.workspace.row_statistics ? whole_lines(lse.numel()) : 0;
    Tensor workspace = empty(std::array{accum + 2 * rows}, Dtype::kFloat32, q.device());
    auto* const memory = workspace.mutable_data<float>();
    if (accum > 0) params.dq_accum = memory;
    if (rows > 0) params.lse_log2 = memory + accum, params.delta = memory + accum + rows;
    plan.run(params, scope.stream());
#endif
  }
  return {std::move(dq), std::move(dk), std::move(dv), std::move(dsink)};
}

// A tensor that the kernels must read, or write, where it is.
void check_in_place(const char* name, const Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  bool readable = reinterpret_cast<uintptr_t>(tensor.data()) % 16 == 0 && strides.back() == 1;
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    readable = readable && (sizes[i] <= 1 || (strides[i] % 8 == 0 && strides[i] > 0));
  PLAB_CHECK(
      readable, kCacheOp, ": ", name,
      " cannot be used in place; expected a dense last dimension, strides that are multiples of 8 elements "
      "and a 16-byte address");
}

void check_int32(const Tensor& q, const char* name, const Tensor& tensor, int64_t dims, int64_t batch) {
  PLAB_CHECK(tensor.dtype() == Dtype::kInt32, kCacheOp, ": ", name, " has dtype ",
             torch_abi::name(tensor.dtype()), ", expected int32");
  PLAB_CHECK(tensor.device() == q.device(), kCacheOp, ": ", name, " is on ", torch_abi::name(tensor.device()),
             " but q is on ", torch_abi::name(q.device()));
  PLAB_CHECK(tensor.dim() == dims && tensor.size(0) == batch && tensor.is_contiguous(), kCacheOp, ": ", name,
             " has shape ", torch_abi::text(tensor.sizes()), ", expected a contiguous ",
             dims == 1 ? "(batch)" : "(batch, pages)", " with batch ", batch);
}

// Checks what kernels rely on; shapes in words of the public function are checked there. With cu_seqlens_q, q is (rows
// of all sequences, heads, head_dim), and k and v have its rows.
std::tuple<Tensor, Tensor> forward_with_cache(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                              const Tensor& lengths, const OptionalTensor& pages,
                                              const OptionalTensor& k, const OptionalTensor& v,
                                              const OptionalTensor& cu_q, const OptionalTensor& sink,
                                              double scale, int64_t left, int64_t right, double softcap) {
  torch_abi::check_alike(kCacheOp, {{"q", q}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  PLAB_CHECK(q.device().is_cuda(), kCacheOp, ": this op needs CUDA tensors");
  Checked c = check(q, q, q, sink, cu_q, cu_q, scale, left, right, softcap);
  Problem& p = c.problem;
  PLAB_CHECK(k_cache.dim() == 4 && k_cache.size(3) == p.head_dim &&
                 std::ranges::equal(k_cache.sizes(), v_cache.sizes()),
             kCacheOp, ": k_cache has shape ", torch_abi::text(k_cache.sizes()), " and v_cache ",
             torch_abi::text(v_cache.sizes()), ", expected (batch or pages, keys, kv_heads, ", p.head_dim,
             ")");
  const int64_t kv_heads = k_cache.size(2), rows = k_cache.size(1), many = pages ? pages->size(-1) : 1;
  PLAB_CHECK(kv_heads > 0 && p.heads % kv_heads == 0, kCacheOp, ": q has ", p.heads,
             " heads, not a multiple of the ", kv_heads, " heads of k_cache");
  check_int32(q, "cache_seqlens", lengths, 1, p.batch);
  if (pages) check_int32(q, "block_table", *pages, 2, p.batch);
  PLAB_CHECK(pages || k_cache.size(0) == p.batch, kCacheOp, ": k_cache has batch ", k_cache.size(0),
             " but q has ", p.batch);
  constexpr int64_t kMostKeys = int64_t{1} << 30;
  PLAB_CHECK(rows * many < kMostKeys, kCacheOp, ": room for ", rows * many,
             " keys, expected fewer than 2^30");
  PLAB_CHECK(k_cache.size(0) < int64_t{1} << 31, kCacheOp, ": ", k_cache.size(0),
             " pages, expected fewer than 2^31");
  PLAB_CHECK(k.has_value() == v.has_value(), kCacheOp, ": k and v are given together or not at all");
  check_in_place("k_cache", k_cache);
  check_in_place("v_cache", v_cache);
  p.kv_heads = static_cast<int>(kv_heads);
  p.k_len = rows * many * (c.varlen ? p.batch : 1);
  p.stale_keys = true;
  Tensor out = torch_abi::empty_like(q);
  Tensor lse = c.varlen ? empty(std::array{q.size(1), q.size(0)}, c.statistics, q.device())
                        : empty(std::array{q.size(0), q.size(2), q.size(1)}, c.statistics, q.device());
  attention::KeyCache cache{};
  cache.lengths = lengths.data<int32_t>();
  cache.page_count = static_cast<int>(k_cache.size(0));
  cache.page_size = static_cast<int>(rows), cache.capacity = static_cast<int>(rows * many);
  if (pages) cache.pages = pages->data<int32_t>(), cache.pages_stride = many;
  OptionalTensor new_k, new_v;
  if (k) {
    torch_abi::check_alike(kCacheOp, {{"q", q}, {"k", *k}, {"v", *v}});
    const size_t at = k->sizes().size() - 2;  // of the heads
    PLAB_CHECK(k->dim() == q.dim() && k->size(0) == q.size(0) && k->size(at) == kv_heads &&
                   k->size(at + 1) == p.head_dim && std::ranges::equal(k->sizes(), v->sizes()),
               kCacheOp, ": k has shape ", torch_abi::text(k->sizes()), " and v ",
               torch_abi::text(v->sizes()), ", expected (", q.size(0), c.varlen ? ", " : ", rows, ", kv_heads,
               ", ", p.head_dim, ")");
    PLAB_CHECK(c.varlen || k->size(1) <= cache.capacity, kCacheOp, ": k has ", k->size(1),
               " rows, room is for ", cache.capacity);
    new_k = readable(*k, true), new_v = readable(*v, true);
    cache.new_rows = c.varlen ? attention::KeyCache::kAsQueries : static_cast<int>(k->size(1));
    cache.new_k = view_of(*new_k, c.varlen), cache.new_v = view_of(*new_v, c.varlen);
  }
  if (p.batch == 0 || p.heads == 0 || (c.varlen && p.q_len == 0)) return {std::move(out), std::move(lse)};
  PLAB_CHECK(p.q_len > 0, kCacheOp, ": q has no rows");
#ifdef PLAB_HAS_CUDA
  const Tensor q_ready = readable(q, true);
  FwdParams params{p,
                   view_of(q_ready, c.varlen),
                   view_of(k_cache, false),
                   view_of(v_cache, false),
                   view_of(out, c.varlen),
                   lse.mutable_data(),
                   row_layout(c)};
  params.cache = cache;
  const CudaScope scope(q);
  run_fwd(attention::plan_fwd_with_cache(params), params, q.device(), scope.stream());
#endif
  return {std::move(out), std::move(lse)};
}

// The forward under a block mask: tensors as profiling_lab.ops._attention_blocks makes them.
std::tuple<Tensor, Tensor> forward_with_mask(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const OptionalTensor& sink, const Tensor& counts,
                                             const Tensor& blocks, const Tensor& bits, double scale,
                                             double softcap) {
  Checked c = check(q, k, v, sink, std::nullopt, std::nullopt, scale, -1, -1, softcap);
  Problem& p = c.problem;
  PLAB_CHECK(c.cuda, kOp, ": the kernel for block masks needs CUDA tensors");
  for (const Named& one : {Named{"counts", counts}, {"blocks", blocks}, {"bits", bits}})
    PLAB_CHECK(one.tensor.device() == q.device() && one.tensor.dtype() == Dtype::kInt32 &&
                   one.tensor.is_contiguous(),
               kOp, ": the block mask's ", one.name, " are not contiguous int32 on q's device");
  constexpr int kWords = attention::BlockMask::kKeys / 32;
  PLAB_CHECK(bits.dim() == 3 && bits.size(1) == attention::BlockMask::kRows && bits.size(2) == kWords, kOp,
             ": the block mask's bits have shape ", torch_abi::text(bits.sizes()));
  PLAB_CHECK(counts.dim() == 3 && blocks.dim() == 5 && blocks.size(3) >= 1 && blocks.size(4) == 4 &&
                 std::ranges::equal(blocks.sizes().first(3), counts.sizes()),
             kOp, ": the block mask's blocks have shape ", torch_abi::text(blocks.sizes()), " and counts ",
             torch_abi::text(counts.sizes()));
  const int64_t tile_rows = attention::mask_tile_rows(p.widest());
  const int64_t tiles = (p.q_len + tile_rows - 1) / tile_rows;
  const auto fits = [](int64_t given, int64_t here) { return given == 1 || given == here; };
  PLAB_CHECK(fits(counts.size(0), p.batch) && fits(counts.size(1), p.heads) && counts.size(2) == tiles, kOp,
             ": the block mask is of (", counts.size(0), ", ", counts.size(1), ", ", counts.size(2),
             ") batches, heads and tiles, expected 1 or ", p.batch, ", 1 or ", p.heads, ", and ", tiles);
  PLAB_CHECK(blocks.numel() / 4 < int64_t{1} << 31, kOp, ": the block mask names ", blocks.numel() / 4,
             " blocks, expected fewer than 2^31");
  Tensor out = empty(std::array{q.size(0), q.size(1), q.size(2), v.size(3)}, q.dtype(), q.device());
  Tensor lse = empty(std::array{q.size(0), q.size(2), q.size(1)}, c.statistics, q.device());
  if (out.numel() == 0) return {std::move(out), std::move(lse)};
  PLAB_CHECK(p.k_len > 0, kOp, ": a block mask over no keys");
#ifdef PLAB_HAS_CUDA
  const Tensor q_ready = readable(q, true), k_ready = readable(k, true), v_ready = readable(v, true);
  FwdParams params{p,
                   view_of(q_ready, false),
                   view_of(k_ready, false),
                   view_of(v_ready, false),
                   view_of(out, false),
                   lse.mutable_data(),
                   row_layout(c)};
  params.cache.page_count = p.batch;
  params.cache.page_size = params.cache.capacity = static_cast<int>(p.k_len);
  const auto stride = [](int64_t given, int64_t step) { return given == 1 ? 0 : static_cast<int>(step); };
  params.mask = {counts.data<int32_t>(),        blocks.data<attention::BlockMask::Block>(),
                 bits.data<uint32_t>(),         stride(counts.size(0), counts.size(1) * tiles),
                 stride(counts.size(1), tiles), static_cast<int>(blocks.size(3))};
  const CudaScope scope(q);
  run_fwd(attention::plan_fwd_with_mask(params), params, q.device(), scope.stream());
#endif
  return {std::move(out), std::move(lse)};
}

}  // namespace

std::span<const OpDef> attention_ops() {
  static constexpr OpDef kOps[] = {
      {"attention_fwd(Tensor q, Tensor k, Tensor v, Tensor? sink, Tensor? cu_seqlens_q, Tensor? "
       "cu_seqlens_k, float scale, "
       "int window_left, int window_right, float softcap, bool deterministic) -> (Tensor out, Tensor lse)",
       &Box<&forward>::call},
      {"attention_bwd(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
       "Tensor? sink, "
       "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, float scale, int window_left, int window_right, float "
       "softcap, "
       "bool deterministic) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)",
       &Box<&backward>::call},
      {"cached_attention(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor cache_seqlens, "
       "Tensor? block_table, Tensor? k, Tensor? v, Tensor? cu_seqlens_q, Tensor? sink, float scale, "
       "int window_left, int window_right, float softcap) -> (Tensor out, Tensor lse)",
       &Box<&forward_with_cache>::call},
      {"attention_fwd_blocks(Tensor q, Tensor k, Tensor v, Tensor? sink, Tensor counts, "
       "Tensor blocks, Tensor bits, float scale, float softcap) -> (Tensor out, Tensor lse)",
       &Box<&forward_with_mask>::call},
  };
  return kOps;
}

}  // namespace plab::ops
