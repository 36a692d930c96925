// SPDX-License-Identifier: Apache-2.0
#include "ops/ladder_attention/ladder_attention.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "ops/op.h"

namespace plab::ops {
namespace {

constexpr const char* kOp = "ladder_attention";

// What a rung is: its code for the CPU, its launcher, and whether it stores the whole score matrix.
struct Rung {
  const char* name;
  void (*cpu)(const ladder::Params&);
  void (*launch)(const ladder::Params&, cudaStream_t);
  bool stores_scores;
};

#ifdef PLAB_HAS_CUDA
#define PLAB_LAUNCHER(name) &ladder::name
#else
#define PLAB_LAUNCHER(name) nullptr
#endif

constexpr Rung kRungs[] = {
    {"naive", &ladder::naive_cpu, PLAB_LAUNCHER(launch_naive), true},
    {"tiled", &ladder::tiled_cpu, PLAB_LAUNCHER(launch_tiled), true},
    {"flash", &ladder::flash_cpu, PLAB_LAUNCHER(launch_flash), false},
};

const Rung& rung_named(const std::string& name) {
  const auto* found = std::ranges::find_if(kRungs, [&](const Rung& rung) { return rung.name == name; });
  PLAB_CHECK(found != std::end(kRungs), kOp, ": rung is '", name, "', expected 'naive', 'tiled' or 'flash'");
  return *found;
}

Tensor ladder_attention(const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal,
                        const std::string& rung_name) {
  const Rung& rung = rung_named(rung_name);
  torch_abi::check_alike(kOp, {{"q", q}, {"k", k}, {"v", v}});
  for (const torch_abi::Named& one : {torch_abi::Named{"q", q}, {"k", k}, {"v", v}})
    PLAB_CHECK(one.tensor.dim() == 4, kOp, ": ", one.name, " has shape ", torch_abi::text(one.tensor.sizes()),
               ", expected (batch, rows, heads, head_dim)");
  PLAB_CHECK(std::ranges::equal(k.sizes(), v.sizes()), kOp, ": v has shape ", torch_abi::text(v.sizes()),
             " but k has shape ", torch_abi::text(k.sizes()));
  PLAB_CHECK(q.size(0) == k.size(0) && q.size(2) == k.size(2) && q.size(3) == k.size(3), kOp,
             ": k has shape ", torch_abi::text(k.sizes()), " but q has shape ", torch_abi::text(q.sizes()),
             "; only the rows may differ");
  const ElementType type = element_type(kOp, q);
  const bool cuda = q.device().is_cuda();
  PLAB_CHECK(!cuda || rung.stores_scores || q.size(3) <= ladder::kFlashMaxHeadDim, kOp, ": head_dim is ",
             q.size(3), ", expected at most ", ladder::kFlashMaxHeadDim, " for the flash rung on CUDA");

  Tensor out = torch_abi::empty_like(q);
  if (out.numel() == 0) return out;
  const Tensor q_dense = torch_abi::contiguous(q), k_dense = torch_abi::contiguous(k),
               v_dense = torch_abi::contiguous(v);
  ladder::Params params{q_dense.data(),
                        k_dense.data(),
                        v_dense.data(),
                        out.mutable_data(),
                        nullptr,
                        q.size(0),
                        q.size(2),
                        q.size(1),
                        k.size(1),
                        q.size(3),
                        scale,
                        causal,
                        type};
  if (!cuda) {
    rung.cpu(params);
  } else {
#ifdef PLAB_HAS_CUDA
    const CudaScope scope(q);
    std::optional<Tensor> scores;
    if (rung.stores_scores) {
      scores = torch_abi::empty(std::array{params.batch * params.heads * params.rows * params.keys},
                                Dtype::kFloat32, q.device());
      params.scores = scores->mutable_data<float>();
    }
    rung.launch(params, scope.stream());
#endif
  }
  return out;
}

}  // namespace

std::span<const OpDef> ladder_attention_ops() {
  static constexpr OpDef kOps[] = {
      {"ladder_attention(Tensor q, Tensor k, Tensor v, float scale, bool causal, str rung) -> Tensor",
       &Box<&ladder_attention>::call},
  };
  return kOps;
}

}  // namespace plab::ops
