// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

// The arithmetic of the CPU path: one GEMM and one exponential, written on the compiler's vector
// types. kBytes is the vector's width. Everything here is forced inline into functions that are compiled once
// per instruction set (isa.h), so the same lines become SSE2, AVX2 or AVX-512.
#define PLAB_INLINE [[gnu::always_inline]] inline

namespace plab::ops::attention::cpu {

template <class Acc, int kBytes>
struct Simd {
  static constexpr int kLanes = kBytes / int(sizeof(Acc));
  using Int = std::conditional_t<sizeof(Acc) == 8, int64_t, int32_t>;
  typedef Acc Vector __attribute__((vector_size(kBytes)));
  typedef Int IntVector __attribute__((vector_size(kBytes)));

  PLAB_INLINE static void load(Vector& v, const Acc* from) { std::memcpy(&v, from, kBytes); }
  PLAB_INLINE static void store(Acc* to, const Vector& v) { std::memcpy(to, &v, kBytes); }

  // Transposes a square of kLanes vectors: in every round, the off-diagonal blocks of step x step elements are
  // swapped.
  PLAB_INLINE static void transpose(Vector (&v)[kLanes]) {
#pragma GCC unroll 8
    for (int step = 1; step < kLanes; step *= 2) {
      IntVector low{}, high{};
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) {
        low[j] = j & step ? kLanes + j - step : j;
        high[j] = j & step ? kLanes + j : j + step;
      }
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i & step) continue;
        const Vector first = v[i], second = v[i + step];
        v[i] = __builtin_shuffle(first, second, low);
        v[i + step] = __builtin_shuffle(first, second, high);
      }
    }
  }

  // v = n ln 2 + t with |t| <= ln(2)/2: e^v is power (1 + t series), and power is 2^n, by its bits. n times the
  // upper part of ln 2 has no rounding, so t is exact to an ulp of itself; a product v · log2(e) would have lost |v|
  // ulps. The series' first term left out is below half an ulp. For v whose exponential is a normal number.
  struct Exponential {
    Vector power, t, series;
  };
  PLAB_INLINE static void split(Exponential& e, const Vector& v) {
    constexpr bool kDouble = sizeof(Acc) == 8;
    constexpr Acc kRound = kDouble ? Acc(6755399441055744.0) : Acc(12582912.0);  // 1.5 · 2^52, 1.5 · 2^23
    constexpr Acc kUpper = kDouble ? Acc(0.693147180369123816490) : Acc(0.693359375);
    constexpr Acc kLower = kDouble ? Acc(1.90821492927058770002e-10) : Acc(-2.12194440054690583e-4);
    const Vector whole = (v * Acc(1.44269504088896340736) + kRound) - kRound;
    e.t = (v - whole * kUpper) - whole * kLower;
    constexpr int kTerms = kDouble ? 13 : 7;
    e.series = Vector{} + Acc(1);
#pragma GCC unroll 16
    for (int i = kTerms; i > 1; --i) e.series = Acc(1) + e.series * (e.t * (Acc(1) / Acc(i)));
    const IntVector exponent = __builtin_convertvector(whole, IntVector);
    const IntVector bits = (exponent + (kDouble ? 1023 : 127)) << (kDouble ? 52 : 23);
    std::memcpy(&e.power, &bits, kBytes);
  }

  // v = e^v for v <= 88 (double: 709), to about an ulp; e^-inf and anything below the normal range is 0, NaN
  // stays NaN.
  PLAB_INLINE static void exp(Vector& v) {
    constexpr Acc kLowest =
        sizeof(Acc) == 8 ? Acc(-708.3964185322641) : Acc(-87.33654475);  // ln(least normal)
    const Vector lowest = Vector{} + kLowest;
    Exponential e;
    split(e, v < lowest ? lowest : v);
    v = v < lowest ? Vector{} : (Acc(1) + e.series * e.t) * e.power;
  }

  // v = tanh(v), to a few ulps of itself: of m = e^2v - 1, m / (m + 2). A large soft cap multiplies small values.
  PLAB_INLINE static void tanh(Vector& v) {
    const Vector limit = Vector{} + Acc(40);
    const Vector low = v < -limit ? -limit : v;
    Exponential e;
    split(e, (low > limit ? limit : low) * Acc(2));
    const Vector m = e.power * (e.series * e.t) + (e.power - Acc(1));
    v = m / (m + Acc(2));
  }
};

// to[d][i] = factor · row i's element d; zeros for the rows, up to kColumns, that do not exist.
template <class Acc, int kBytes, int kColumns>
PLAB_INLINE void transpose(Acc* to, const Acc* from, int64_t stride, int rows, int wide, Acc factor) {
  using S = Simd<Acc, kBytes>;
  for (int first = 0; first < kColumns; first += S::kLanes)
    for (int d = 0; d < wide; d += S::kLanes) {
      typename S::Vector square[S::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < S::kLanes; ++i) {
        square[i] = typename S::Vector{};
        if (first + i < rows) S::load(square[i], from + (first + i) * stride + d);
        square[i] *= factor;
      }
      S::transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < S::kLanes; ++i) S::store(to + (d + i) * kColumns + first, square[i]);
    }
}

// Two operands of a product: A's element (i, k) lies at data[i * row + k * column]; B and C are row-major.
template <class Acc>
struct Strided {
  const Acc* data;
  int64_t row, column;
};

template <class Acc, int kBytes, int kRows, int kVectors, bool kAdd>
PLAB_INLINE void product_tile(Acc* c, int64_t c_row, const Strided<Acc>& a, const Acc* b, int64_t b_row,
                              int depth) {
  using S = Simd<Acc, kBytes>;
  typename S::Vector sum[kRows][kVectors] = {};
  for (int k = 0; k < depth; ++k) {
    typename S::Vector right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) S::load(right[j], b + k * b_row + j * S::kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Acc left = a.data[i * a.row + k * a.column];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) sum[i][j] += left * right[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      Acc* const to = c + i * c_row + j * S::kLanes;
      if constexpr (kAdd) {  // at the end: adding per-block sums rounds less than one long sum
        typename S::Vector before;
        S::load(before, to);
        sum[i][j] += before;
      }
      S::store(to, sum[i][j]);
    }
}

// C (rows x columns) = or += A (rows x depth) B (depth x columns). columns must be a multiple of two vectors.
template <class Acc, int kBytes, bool kAdd>
PLAB_INLINE void product(Acc* c, int64_t c_row, Strided<Acc> a, const Acc* b, int64_t b_row, int rows,
                         int columns, int depth) {
  constexpr int kRows = kBytes == 64 ? 8 : 4, kVectors = 2, kStep = kVectors * Simd<Acc, kBytes>::kLanes;
  for (int j = 0; j < columns; j += kStep) {
    Strided<Acc> left = a;
    int i = 0;
    for (; i + kRows <= rows; i += kRows, left.data += kRows * a.row)
      product_tile<Acc, kBytes, kRows, kVectors, kAdd>(c + i * c_row + j, c_row, left, b + j, b_row, depth);
    for (; i < rows; ++i, left.data += a.row)
      product_tile<Acc, kBytes, 1, kVectors, kAdd>(c + i * c_row + j, c_row, left, b + j, b_row, depth);
  }
}

}  // namespace plab::ops::attention::cpu
