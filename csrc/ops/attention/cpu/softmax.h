// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "ops/attention/cpu/mask.h"

// The online softmax on a block of scores, score[key][query], so that a vector holds as many queries of one
// key as it has lanes: it needs no sum across lanes. S is Simd<Acc, bytes>.
namespace plab::ops::attention::cpu {

// What the raw product becomes: a score, in units of e. The query block is scaled by `inner` when it is
// transposed.
template <class Acc>
struct ScoreMap {
  bool softcap;
  Acc inner, outer;
  explicit ScoreMap(const Problem& p)
      : softcap(p.softcap > 0), inner(Acc(softcap ? p.scale / p.softcap : p.scale)), outer(Acc(p.softcap)) {}
};

// The forward's scores, in place. The backward applies the soft cap itself, because it also needs the slope.
template <class S, class Acc>
PLAB_INLINE void cap_scores(Acc* score, int64_t keys, const ScoreMap<Acc>& map) {
  if (!map.softcap) return;
  for (int64_t i = 0; i < keys * kBlock; i += S::kLanes) {
    typename S::Vector x;
    S::load(x, score + i);
    S::tanh(x);
    S::store(score + i, x * map.outer);
  }
}

// One vector of queries over all keys of the block; the algebra is that of ../softmax.cuh.
template <class S, class Acc>
PLAB_INLINE void online_softmax(Acc* score, int keys, Acc* top, Acc* sum, Acc* rescale) {
  using Vector = typename S::Vector;
  constexpr Acc kInf = std::numeric_limits<Acc>::infinity();
  Vector old, high, total;
  S::load(old, top);
  S::load(total, sum);
  high = old;
  for (int j = 0; j < keys; ++j) {
    Vector x;
    S::load(x, score + j * kBlock);
    high = x < high ? high : x;
  }
  const Vector zero = high == -kInf ? Vector{} : high;
  Vector factor = old - zero;
  S::exp(factor);
  total *= factor;
  for (int j = 0; j < keys; ++j) {
    Vector x;
    S::load(x, score + j * kBlock);
    x -= zero;
    S::exp(x);
    S::store(score + j * kBlock, x);
    total += x;
  }
  S::store(top, high);
  S::store(sum, total);
  S::store(rescale, factor);
}

// In place: score becomes P, slope (which holds dP) becomes dS.
template <class S, class Acc>
PLAB_INLINE void probabilities(Acc* score, Acc* slope, int64_t keys, const Acc* lse, const Acc* delta,
                               const ScoreMap<Acc>& map) {
  using Vector = typename S::Vector;
  for (int i = 0; i < kBlock; i += S::kLanes) {
    Vector shift, less;
    S::load(shift, lse + i);
    S::load(less, delta + i);
    for (int64_t j = 0; j < keys; ++j) {
      Vector x, dp, derivative = Vector{} + Acc(1);
      S::load(x, score + j * kBlock + i);
      S::load(dp, slope + j * kBlock + i);
      if (map.softcap) {
        S::tanh(x);
        derivative -= x * x;
        x *= map.outer;
      }
      x -= shift;
      S::exp(x);
      S::store(score + j * kBlock + i, x);
      S::store(slope + j * kBlock + i, x * (dp - less) * derivative);
    }
  }
}

}  // namespace plab::ops::attention::cpu
