// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// wgmma (sm_90a): a warpgroup multiplies 64 rows of A (registers or shared memory) by B (shared memory),
// asynchronously. PTX ISA, "Asynchronous warpgroup level matrix instructions". Accumulator register 4j + 2h +
// c of a thread is row 16 warp + lane / 4 + 8h, column 8j + 2 (lane % 4) + c.
namespace plab::cuda::ptx {

// Before the first wgmma that uses registers other instructions wrote.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The same, but not before `value`, which is never negative, has been computed. ptxas moves a plain wait up
// over arithmetic that does not depend on it, and so over the very work that should run under the products;
// it does not move a barrier, even one that never happens.
template <int kPending>
__device__ __forceinline__ void wgmma_wait_after(float value) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.lt.f32 never, %1, 0f00000000;\n"
      "@never bar.sync 15;\n"
      "wgmma.wait_group.sync.aligned %0;\n"
      "}" ::"n"(kPending),
      "f"(value)
      : "memory");
}

// No instruction: the compiler may neither move a use of these registers above this line nor reuse them
// before it. Stands after the wait for every wgmma that writes (accumulators) or reads (A operands) them.
template <int kRegs>
__device__ __forceinline__ void keep(float (&r)[kRegs]) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i) asm volatile("" : "+f"(r[i])::"memory");
}
template <int kSteps>
__device__ __forceinline__ void keep(uint32_t (&r)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    asm volatile("" : "+r"(r[i][0]), "+r"(r[i][1]), "+r"(r[i][2]), "+r"(r[i][3])::"memory");
}

// Shared-memory operands in the 128-byte swizzle: rows of 64 elements, tiles 1024-byte aligned.
// K-major: the 64 elements run along the product's depth; 8-row groups are 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor_k_major(uint32_t smem) {
  return uint64_t((smem & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
// MN-major: the 64 elements run along the rows of A or the columns of B, the next 64 of them lie
// `chunk_bytes` further, and groups of 8 along the depth are 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor_mn_major(uint32_t smem, uint32_t chunk_bytes) {
  return uint64_t((smem & 0x3ffff) >> 4) | uint64_t(chunk_bytes >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}

// K-major without a swizzle, in pieces of 8 rows of 16 bytes: `depth_bytes` to the piece of the next 8
// columns, `rows_bytes` to that of the next 8 rows. Either may be 0: the same piece again.
__device__ __forceinline__ uint64_t descriptor_pieces(uint32_t smem, uint32_t depth_bytes,
                                                      uint32_t rows_bytes) {
  return uint64_t((smem & 0x3ffff) >> 4) | uint64_t(depth_bytes >> 4) << 16 | uint64_t(rows_bytes >> 4) << 32;
}

// The descriptor of what lies `bytes` further: one addition, because only the low word holds the address. A
// product of many steps that makes each descriptor anew spends more time on that than the tensor cores do.
__device__ __forceinline__ uint64_t descriptor_step(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000) | (uint32_t(descriptor) + (bytes >> 4));
}

// Stores four 8 x 8 matrices of 16-bit elements; register i is this thread's share of matrix i, and lane l
// gives the address of row l % 8 of matrix l / 8. PTX ISA "stmatrix", sm_90.
__device__ __forceinline__ void stmatrix_x4(uint32_t smem, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same with every matrix transposed: lane l gives the address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4_transposed(uint32_t smem, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// ss: D (+)= A B with both in shared memory; rs: A in registers (K-major). `add` 0 overwrites D. The
// transpose flags say that an operand is MN-major.
template <class Element, int kN, bool kTransposeA, bool kTransposeB>
struct Wgmma;

// The text and the operands of accumulator registers 8b .. 8b + 7.
#define PLAB_TEXT_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define PLAB_TEXT_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define PLAB_TEXT_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define PLAB_TEXT_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define PLAB_TEXT_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define PLAB_TEXT_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define PLAB_TEXT_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define PLAB_TEXT_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define PLAB_TEXT_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define PLAB_TEXT_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define PLAB_TEXT_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define PLAB_TEXT_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define PLAB_TEXT_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define PLAB_TEXT_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define PLAB_TEXT_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define PLAB_TEXT_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define PLAB_OUT(b)                                                                               \
  "+f"(d[8 * b]), "+f"(d[8 * b + 1]), "+f"(d[8 * b + 2]), "+f"(d[8 * b + 3]), "+f"(d[8 * b + 4]), \
      "+f"(d[8 * b + 5]), "+f"(d[8 * b + 6]), "+f"(d[8 * b + 7])
#define PLAB_TEXT_N32 PLAB_TEXT_0 ", " PLAB_TEXT_1
#define PLAB_OUT_N32 PLAB_OUT(0), PLAB_OUT(1)
#define PLAB_TEXT_N64 PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3
#define PLAB_OUT_N64 PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3)
#define PLAB_TEXT_N80 PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3 ", " PLAB_TEXT_4
#define PLAB_OUT_N80 PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3), PLAB_OUT(4)
#define PLAB_TEXT_N96 \
  PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3 ", " PLAB_TEXT_4 ", " PLAB_TEXT_5
#define PLAB_OUT_N96 PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3), PLAB_OUT(4), PLAB_OUT(5)
#define PLAB_TEXT_N112 PLAB_TEXT_N96 ", " PLAB_TEXT_6
#define PLAB_OUT_N112 PLAB_OUT_N96, PLAB_OUT(6)
#define PLAB_TEXT_N128                                                                             \
  PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3 ", " PLAB_TEXT_4 ", " PLAB_TEXT_5 \
              ", " PLAB_TEXT_6 ", " PLAB_TEXT_7
#define PLAB_OUT_N128 \
  PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3), PLAB_OUT(4), PLAB_OUT(5), PLAB_OUT(6), PLAB_OUT(7)
#define PLAB_TEXT_N176                                                                             \
  PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3 ", " PLAB_TEXT_4 ", " PLAB_TEXT_5 \
              ", " PLAB_TEXT_6 ", " PLAB_TEXT_7 ", " PLAB_TEXT_8 ", " PLAB_TEXT_9 ", " PLAB_TEXT_10
#define PLAB_OUT_N176                                                                                     \
  PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3), PLAB_OUT(4), PLAB_OUT(5), PLAB_OUT(6), PLAB_OUT(7), \
      PLAB_OUT(8), PLAB_OUT(9), PLAB_OUT(10)
#define PLAB_TEXT_N192                                                                              \
  PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3 ", " PLAB_TEXT_4 ", " PLAB_TEXT_5  \
              ", " PLAB_TEXT_6 ", " PLAB_TEXT_7 ", " PLAB_TEXT_8 ", " PLAB_TEXT_9 ", " PLAB_TEXT_10 \
              ", " PLAB_TEXT_11
#define PLAB_OUT_N192                                                                                     \
  PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3), PLAB_OUT(4), PLAB_OUT(5), PLAB_OUT(6), PLAB_OUT(7), \
      PLAB_OUT(8), PLAB_OUT(9), PLAB_OUT(10), PLAB_OUT(11)
#define PLAB_TEXT_N256                                                                              \
  PLAB_TEXT_0 ", " PLAB_TEXT_1 ", " PLAB_TEXT_2 ", " PLAB_TEXT_3 ", " PLAB_TEXT_4 ", " PLAB_TEXT_5  \
              ", " PLAB_TEXT_6 ", " PLAB_TEXT_7 ", " PLAB_TEXT_8 ", " PLAB_TEXT_9 ", " PLAB_TEXT_10 \
              ", " PLAB_TEXT_11 ", " PLAB_TEXT_12 ", " PLAB_TEXT_13 ", " PLAB_TEXT_14 ", " PLAB_TEXT_15
#define PLAB_OUT_N256                                                                                     \
  PLAB_OUT(0), PLAB_OUT(1), PLAB_OUT(2), PLAB_OUT(3), PLAB_OUT(4), PLAB_OUT(5), PLAB_OUT(6), PLAB_OUT(7), \
      PLAB_OUT(8), PLAB_OUT(9), PLAB_OUT(10), PLAB_OUT(11), PLAB_OUT(12), PLAB_OUT(13), PLAB_OUT(14),     \
      PLAB_OUT(15)

// %I0 .. are the operands that follow the accumulators.
#define PLAB_WGMMA(N, TYPE, NAME, I0, I1, I2, I3, I4, I5, I6)                                              \
  template <bool kTransposeA, bool kTransposeB>                                                            \
  struct Wgmma<TYPE, N, kTransposeA, kTransposeB> {                                                        \
    static __device__ __forceinline__ void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {        \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I2                                                  \
                   ", 0;\n"                                                                                \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" PLAB_TEXT_N##N     \
                   "}, " I0 ", " I1 ", p, 1, 1, " I3 ", " I4 ";\n}"                                        \
                   : PLAB_OUT_N##N                                                                         \
                   : "l"(a), "l"(b), "r"(add), "n"(int(kTransposeA)), "n"(int(kTransposeB)));              \
    }                                                                                                      \
    static __device__ __forceinline__ void rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b,       \
                                              int add) {                                                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " I5                                                  \
                   ", 0;\n"                                                                                \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" PLAB_TEXT_N##N     \
                   "}, {" I0 ", " I1 ", " I2 ", " I3 "}, " I4 ", p, 1, 1, " I6 ";\n}"                      \
                   : PLAB_OUT_N##N                                                                         \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(int(kTransposeB))); \
    }                                                                                                      \
  };
PLAB_WGMMA(32, __nv_bfloat16, "bf16", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
PLAB_WGMMA(32, __half, "f16", "%16", "%17", "%18", "%19", "%20", "%21", "%22")
PLAB_WGMMA(64, __nv_bfloat16, "bf16", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
PLAB_WGMMA(64, __half, "f16", "%32", "%33", "%34", "%35", "%36", "%37", "%38")
PLAB_WGMMA(80, __nv_bfloat16, "bf16", "%40", "%41", "%42", "%43", "%44", "%45", "%46")
PLAB_WGMMA(80, __half, "f16", "%40", "%41", "%42", "%43", "%44", "%45", "%46")
PLAB_WGMMA(96, __nv_bfloat16, "bf16", "%48", "%49", "%50", "%51", "%52", "%53", "%54")
PLAB_WGMMA(96, __half, "f16", "%48", "%49", "%50", "%51", "%52", "%53", "%54")
PLAB_WGMMA(112, __nv_bfloat16, "bf16", "%56", "%57", "%58", "%59", "%60", "%61", "%62")
PLAB_WGMMA(112, __half, "f16", "%56", "%57", "%58", "%59", "%60", "%61", "%62")
PLAB_WGMMA(128, __nv_bfloat16, "bf16", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
PLAB_WGMMA(128, __half, "f16", "%64", "%65", "%66", "%67", "%68", "%69", "%70")
PLAB_WGMMA(176, __nv_bfloat16, "bf16", "%88", "%89", "%90", "%91", "%92", "%93", "%94")
PLAB_WGMMA(176, __half, "f16", "%88", "%89", "%90", "%91", "%92", "%93", "%94")
PLAB_WGMMA(192, __nv_bfloat16, "bf16", "%96", "%97", "%98", "%99", "%100", "%101", "%102")
PLAB_WGMMA(192, __half, "f16", "%96", "%97", "%98", "%99", "%100", "%101", "%102")
PLAB_WGMMA(256, __nv_bfloat16, "bf16", "%128", "%129", "%130", "%131", "%132", "%133", "%134")
PLAB_WGMMA(256, __half, "f16", "%128", "%129", "%130", "%131", "%132", "%133", "%134")

#undef PLAB_WGMMA

}  // namespace plab::cuda::ptx
