// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/attention/cpu/operands.h"

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// The operands and products of a task for bfloat16 on CPUs with AMX. An AMX tile multiplies 16 x 32 by 32 x 16
// 16-bit numbers in 16 clocks, sixteen times the rate of fused multiply-adds. As on the GPU, P and dS are
// rounded to 16 bits before they are multiplied. Everything else stays in float.
//
// The left operand is stored row by row. The right operand packs two consecutive elements of the depth into
// each 32-bit word. In a transposed matrix these pairs are adjacent already; in a plain matrix two rows are
// interleaved. All blocks are full: 64 rows, head_dim padded, zeros for what does not exist.
namespace plab::ops::attention::cpu {

#ifndef PLAB_AMX  // a test has its own tile instructions, for any CPU
#define PLAB_AMX [[gnu::target("arch=x86-64-v4,amx-tile,amx-bf16")]]
#endif

// Whether this CPU has AMX and the system lets this process use its registers.
inline bool has_amx() {
  unsigned a, b, c, d;
  constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile) || !(d & kBf16)) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("x86-64-v4") != 0 &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// The tile registers of a thread, each 16 rows of 64 bytes, for the lifetime of this object.
class AmxTiles {
 public:
  PLAB_AMX AmxTiles() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    };
    // Static: the intrinsic claims to read 8 bytes, so stores to a local object would be removed as dead.
    static constexpr Config kConfig;
    _tile_loadconfig(&kConfig);
  }
  PLAB_AMX ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

// C (rows x columns) = or += A (rows x depth) B (depth x columns); B in words of two rows, all sizes
// multiples of 32.
template <bool kAdd>
PLAB_AMX inline void amx_product(float* c, int64_t c_row, const uint16_t* a, int64_t a_row, const uint32_t* b,
                                 int64_t b_row, int rows, int columns, int depth) {
  const size_t c_step = c_row * sizeof(float), a_step = a_row * sizeof(uint16_t),
               b_step = b_row * sizeof(uint32_t);
  for (int i = 0; i < rows; i += 32)
    for (int j = 0; j < columns; j += 32) {
      float* const top = c + i * c_row + j;
      float* const bottom = top + 16 * c_row;
      if constexpr (kAdd) {
        _tile_loadd(0, top, c_step);
        _tile_loadd(1, top + 16, c_step);
        _tile_loadd(2, bottom, c_step);
        _tile_loadd(3, bottom + 16, c_step);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int k = 0; k < depth; k += 32) {
        const uint16_t* const left = a + i * a_row + k;
        const uint32_t* const right = b + k / 2 * b_row + j;
        _tile_loadd(4, left, a_step);
        _tile_loadd(6, right, b_step);
        _tile_loadd(7, right + 16, b_step);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, left + 16 * a_row, a_step);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, top, c_step);
      _tile_stored(1, top + 16, c_step);
      _tile_stored(2, bottom, c_step);
      _tile_stored(3, bottom + 16, c_step);
    }
}

struct Amx {
  using S = Simd<float, 64>;
  using Vector = S::Vector;
  typedef uint32_t Words __attribute__((vector_size(64)));
  typedef uint16_t Halves __attribute__((vector_size(32)));

  // Rows of a view, dense, with zeros up to `whole` rows and the padded width.
  PLAB_INLINE static void pack(uint16_t* to, const View& view, const Place& at, int64_t rows, int64_t whole,
                               int64_t dim, int64_t wide) {
    const BFloat16* from = row_at<const BFloat16>(view, at.batch, at.row, at.head);
    for (int64_t i = 0; i < rows; ++i, from += view.row, to += wide) {
      std::memcpy(to, from, dim * sizeof(uint16_t));
      std::fill(to + dim, to + wide, uint16_t(0));
    }
    std::fill_n(to, (whole - rows) * wide, uint16_t(0));
  }

  // The right operand that is the transpose of a block of dense rows: word [d / 2][row].
  PLAB_INLINE static void transposed(uint32_t* to, const uint16_t* from, int64_t wide) {
    for (int first = 0; first < kBlock; first += S::kLanes)
      for (int64_t d = 0; d < wide / 2; d += S::kLanes) {
        Vector square[S::kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < S::kLanes; ++i)
          std::memcpy(&square[i], from + (first + i) * wide + 2 * d, sizeof(Vector));
        S::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < S::kLanes; ++i)
          std::memcpy(to + (d + i) * kBlock + first, &square[i], sizeof(Vector));
      }
  }

  // The right operand that is `rows` dense rows themselves: word [row / 2][d].
  PLAB_INLINE static void interleaved(uint32_t* to, const uint16_t* from, int64_t rows, int64_t wide) {
    for (int64_t r = 0; r < rows; r += 2, from += 2 * wide, to += wide)
      for (int64_t d = 0; d < wide; d += S::kLanes) {
        Halves even, odd;
        std::memcpy(&even, from + d, sizeof even);
        std::memcpy(&odd, from + wide + d, sizeof odd);
        const Words word = __builtin_convertvector(even, Words) | (__builtin_convertvector(odd, Words) << 16);
        std::memcpy(to + d, &word, sizeof word);
      }
  }

  // Stores 16 floats as bfloat16, to nearest, ties to even.
  PLAB_INLINE static void store_rounded(uint16_t* to, const Vector& v) {
    Words bits;
    std::memcpy(&bits, &v, sizeof bits);
    const Halves half = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, Halves);
    std::memcpy(to, &half, sizeof half);
  }

  // A block of scores, [key][query], as a left operand.
  PLAB_INLINE static void narrow(uint16_t* to, const float* score) {
    for (int i = 0; i < kBlock * kBlock; i += S::kLanes) {
      Vector v;
      S::load(v, score + i);
      store_rounded(to + i, v);
    }
  }

  // The same as [query][key].
  PLAB_INLINE static void narrow_transposed(uint16_t* to, const float* score) {
    for (int key = 0; key < kBlock; key += S::kLanes)
      for (int query = 0; query < kBlock; query += S::kLanes) {
        Vector square[S::kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < S::kLanes; ++i) S::load(square[i], score + (key + i) * kBlock + query);
        S::transpose(square);
#pragma GCC unroll 16
        for (int i = 0; i < S::kLanes; ++i) store_rounded(to + (query + i) * kBlock + key, square[i]);
      }
  }

  PLAB_INLINE static void scale(float* score, float factor) {
    for (int i = 0; i < kBlock * kBlock; i += S::kLanes) {
      Vector v;
      S::load(v, score + i);
      S::store(score + i, v * factor);
    }
  }

  static uint16_t* take_halves(Scratch<float>& scratch, int64_t count) {
    return reinterpret_cast<uint16_t*>(scratch.take(count / 2));
  }
  static uint32_t* take_words(Scratch<float>& scratch, int64_t count) {
    return reinterpret_cast<uint32_t*>(scratch.take(count));
  }

  class Forward {
   public:
    static int64_t scratch(int64_t dim) { return kBlock * (2 * padded(dim) + kBlock); }
    PLAB_INLINE Forward(Scratch<float>& scratch, const Problem& p)
        : dim_(p.head_dim),
          dim_v_(p.head_dim_v),
          wide_(padded(p.widest())),
          query_(take_words(scratch, kBlock * wide_ / 2)),
          values_(take_words(scratch, kBlock * wide_ / 2)),
          rows_(take_halves(scratch, kBlock * wide_)),
          p_(take_halves(scratch, kBlock * kBlock)) {}

    PLAB_INLINE void load_queries(const View& view, const Place& at, int64_t rows, float factor) {
      factor_ = factor;
      pack(rows_, view, at, rows, kBlock, dim_, wide_);
      transposed(query_, rows_, wide_);
    }
    PLAB_INLINE void scores(float* score, const View& view, const Place& at, int64_t keys) {
      pack(rows_, view, at, keys, kBlock, dim_, wide_);
      amx_product<false>(score, kBlock, rows_, wide_, query_, kBlock, kBlock, kBlock, int(wide_));
      scale(score, factor_);
    }
    PLAB_INLINE void add_values(float* out, const float* score, const View& view, const Place& at, int64_t,
                                int64_t keys) {
      pack(rows_, view, at, keys, kBlock, dim_v_, wide_);
      interleaved(values_, rows_, kBlock, wide_);
      narrow_transposed(p_, score);
      amx_product<true>(out, wide_, p_, kBlock, values_, wide_, kBlock, int(wide_), kBlock);
    }

   private:
    const int64_t dim_, dim_v_, wide_;
    float factor_ = 1;
    uint32_t* const query_;
    uint32_t* const values_;
    uint16_t* const rows_;
    uint16_t* const p_;
  };

  class Backward {
   public:
    static int64_t scratch(int64_t dim, int64_t keys) {
      const int64_t whole = blocks_of(keys) * kBlock;
      return (4 * kBlock + whole + whole / 2) * padded(dim) + 3 * kBlock * kBlock / 2;
    }
    PLAB_INLINE Backward(Scratch<float>& scratch, const Problem& p, int64_t keys)
        : dim_(p.head_dim),
          dim_v_(p.head_dim_v),
          wide_(padded(p.widest())),
          whole_(blocks_of(keys) * kBlock),
          query_(take_words(scratch, kBlock * wide_ / 2)),
          slope_out_(take_words(scratch, kBlock * wide_ / 2)),
          q_(take_words(scratch, kBlock * wide_ / 2)),
          dout_(take_words(scratch, kBlock * wide_ / 2)),
          rows_(take_halves(scratch, kBlock * wide_)),
          more_(scratch.take(kBlock * wide_)),
          k_(take_halves(scratch, whole_ * wide_)),
          v_(take_halves(scratch, whole_ * wide_)),
          k_words_(take_words(scratch, whole_ * wide_ / 2)),
          p_(take_halves(scratch, kBlock * kBlock)),
          ds_(take_halves(scratch, kBlock * kBlock)),
          ds_transposed_(take_halves(scratch, kBlock * kBlock)) {}

    PLAB_INLINE void load_keys(const View& k, const View& v, const Place& at, int64_t keys) {
      pack(k_, k, at, keys, whole_, dim_, wide_);
      pack(v_, v, at, keys, whole_, dim_v_, wide_);
      interleaved(k_words_, k_, whole_, wide_);
    }
    PLAB_INLINE void load_queries(const View& q, const View& dout, const Place& at, int64_t rows,
                                  float factor) {
      factor_ = factor;
      pack(rows_, q, at, rows, kBlock, dim_, wide_);
      transposed(query_, rows_, wide_);
      interleaved(q_, rows_, kBlock, wide_);
      pack(rows_, dout, at, rows, kBlock, dim_v_, wide_);
      transposed(slope_out_, rows_, wide_);
      interleaved(dout_, rows_, kBlock, wide_);
    }
    PLAB_INLINE void scores(float* score, float* slope, int64_t first, int64_t) {
      amx_product<false>(score, kBlock, k_ + first * wide_, wide_, query_, kBlock, kBlock, kBlock,
                         int(wide_));
      amx_product<false>(slope, kBlock, v_ + first * wide_, wide_, slope_out_, kBlock, kBlock, kBlock,
                         int(wide_));
      scale(score, factor_);
    }
    PLAB_INLINE void add_gradients(float* dq, float* dk, float* dv, const float* score, const float* slope,
                                   int64_t first, int64_t, int64_t rows) {
      narrow(p_, score);
      narrow(ds_, slope);
      narrow_transposed(ds_transposed_, slope);
      amx_product<true>(dv, wide_, p_, kBlock, dout_, wide_, kBlock, int(wide_), kBlock);
      amx_product<true>(dk, wide_, ds_, kBlock, q_, wide_, kBlock, int(wide_), kBlock);
      const uint32_t* const keys = k_words_ + first / 2 * wide_;
      if (rows == kBlock) {
        amx_product<true>(dq, wide_, ds_transposed_, kBlock, keys, wide_, kBlock, int(wide_), kBlock);
      } else {  // dQ ends where the queries do
        amx_product<false>(more_, wide_, ds_transposed_, kBlock, keys, wide_, kBlock, int(wide_), kBlock);
        for (int64_t i = 0; i < rows * wide_; ++i) dq[i] += more_[i];
      }
    }

   private:
    const int64_t dim_, dim_v_, wide_, whole_;
    float factor_ = 1;
    uint32_t* const query_;
    uint32_t* const slope_out_;
    uint32_t* const q_;
    uint32_t* const dout_;
    uint16_t* const rows_;
    float* const more_;
    uint16_t* const k_;
    uint16_t* const v_;
    uint32_t* const k_words_;
    uint16_t* const p_;
    uint16_t* const ds_;
    uint16_t* const ds_transposed_;
  };
};

}  // namespace plab::ops::attention::cpu
#endif
