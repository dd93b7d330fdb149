#pragma once
// Instructions that only compute capability 9.0 has (PTX ISA 8.x, target sm_90a), one function
// each. Tests that run kernels on a host have a file of this name with the same functions.
#include "kernels/cuda/intrinsics.cuh"

namespace weft::cuda {

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// An mbarrier: 8 bytes in shared memory. A phase ends, and the next begins, once `arrivals` threads
// have arrived and all expected bytes have been copied. One thread initialises it, then the block
// must synchronise.
__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// Makes the barriers that this thread initialised visible to asynchronous copies.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
// Arrives, and makes the phase wait for `bytes` of copies.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
// Waits until the phase of this parity has ended: 0 for the first, 1 for the second, then 0 again.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
  unsigned over = 0;
  while (!over)
    asm volatile(
        "{\n.reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n}"
        : "=r"(over)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
}

// Named barriers, 1 to 15, of `threads` threads of a block: those that sync wait, those that arrive
// do not.
__device__ __forceinline__ void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A warpgroup gives up registers of its threads, or takes those that others gave up: they have
// kRegisters afterwards.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Starts a copy of `bytes` from global to shared memory by the copy engine; the barrier counts the
// bytes. Addresses and bytes are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, int bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// wgmma multiplies with a warpgroup: four warps, the first with a number divisible by four. It runs
// asynchronously: wgmma_fence() comes before the first wgmma that reads registers written by other
// instructions, wgmma_commit() ends a group, and wgmma_wait<N>() waits until at most the N newest
// groups are in flight. Until then the registers may not be touched.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// A thread's 64 accumulator registers, and their names in the instruction. With `add` = "eq" the
// instruction adds to them, else it overwrites them.
#define WEFT_WGMMA_NUMBERS                                                                \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WEFT_WGMMA_REGISTERS(how, c)                                                      \
  how(c[0]), how(c[1]), how(c[2]), how(c[3]), how(c[4]), how(c[5]), how(c[6]), how(c[7]), \
      how(c[8]), how(c[9]), how(c[10]), how(c[11]), how(c[12]), how(c[13]), how(c[14]),   \
      how(c[15]), how(c[16]), how(c[17]), how(c[18]), how(c[19]), how(c[20]), how(c[21]), \
      how(c[22]), how(c[23]), how(c[24]), how(c[25]), how(c[26]), how(c[27]), how(c[28]), \
      how(c[29]), how(c[30]), how(c[31]), how(c[32]), how(c[33]), how(c[34]), how(c[35]), \
      how(c[36]), how(c[37]), how(c[38]), how(c[39]), how(c[40]), how(c[41]), how(c[42]), \
      how(c[43]), how(c[44]), how(c[45]), how(c[46]), how(c[47]), how(c[48]), how(c[49]), \
      how(c[50]), how(c[51]), how(c[52]), how(c[53]), how(c[54]), how(c[55]), how(c[56]), \
      how(c[57]), how(c[58]), how(c[59]), how(c[60]), how(c[61]), how(c[62]), how(c[63])
#define WEFT_WGMMA(types, add, operands) \
  "{\n.reg .pred add;\nsetp." add        \
  ".b32 add, 0, 0;\n"                    \
  "wgmma.mma_async.sync.aligned.m64n128" types " {" WEFT_WGMMA_NUMBERS "}, " operands ";\n}"
#define WEFT_FROM_ROWS "%64, %65, add, 1, 1"
#define WEFT_FROM_REGISTERS "{%64, %65, %66, %67}, %68, add, 1, 1"

// Keeps the compiler from moving accesses to these registers across this point.
__device__ __forceinline__ void wgmma_hold(float (&c)[64]) {
  asm volatile("" : WEFT_WGMMA_REGISTERS("+f", c)::"memory");
}
__device__ __forceinline__ void wgmma_hold(uint32_t (&a)[4]) {
  asm volatile("" : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3])::"memory");
}

// Returns the wgmma descriptor of rows of 128 bytes in shared memory. The rows follow each other,
// in groups of eight that begin at a multiple of 1024 bytes; the 16 bytes at 16 c of row r are
// stored at 16 (c xor r % 8) (the 128-byte swizzle). `column_byte` is a multiple of 32.
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* shared, int column_byte) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32,
                     kUnused = uint64_t{1} << 16;
  const unsigned at = shared_address(shared) + static_cast<unsigned>(column_byte);
  return kSwizzle128 | kEightRows | kUnused | (at >> 4 & 0x3fffu);
}

// c = a b^T (wgmma_multiply), or c += a b^T (wgmma_add). Operands are rows of 32 bytes of e4m3
// (Element uint8_t) or bf16: 64 rows of a, 128 of b; c is [64, 128] f32. For warp w of the
// warpgroup, g = lane / 4 and i = lane % 4, a thread's registers hold:
//   c: row 16 w + g at columns 8 n + 2 i and + 1 in c[4 n] and c[4 n + 1]; row + 8 in c[4 n + 2]
//   and c[4 n + 3].
//   a, if in registers: row 16 w + g at bytes 4 i to 4 i + 3 in a[0], the same of row + 8 in a[1],
//   then both at bytes + 16 in a[2] and a[3].
template <class Element>
__device__ __forceinline__ void wgmma_multiply(float (&c)[64], uint64_t a, uint64_t b) {
  if constexpr (sizeof(Element) == 1)
    asm volatile(WEFT_WGMMA("k32.f32.e4m3.e4m3", "ne", WEFT_FROM_ROWS)
                 : WEFT_WGMMA_REGISTERS("=f", c)
                 : "l"(a), "l"(b));
  else
    asm volatile(WEFT_WGMMA("k16.f32.bf16.bf16", "ne", WEFT_FROM_ROWS ", 0, 0")
                 : WEFT_WGMMA_REGISTERS("=f", c)
                 : "l"(a), "l"(b));
}
template <class Element>
__device__ __forceinline__ void wgmma_multiply(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (sizeof(Element) == 1)
    asm volatile(WEFT_WGMMA("k32.f32.e4m3.e4m3", "ne", WEFT_FROM_REGISTERS)
                 : WEFT_WGMMA_REGISTERS("=f", c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile(WEFT_WGMMA("k16.f32.bf16.bf16", "ne", WEFT_FROM_REGISTERS ", 0")
                 : WEFT_WGMMA_REGISTERS("=f", c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
template <class Element>
__device__ __forceinline__ void wgmma_add(float (&c)[64], uint64_t a, uint64_t b) {
  if constexpr (sizeof(Element) == 1)
    asm volatile(WEFT_WGMMA("k32.f32.e4m3.e4m3", "eq", WEFT_FROM_ROWS)
                 : WEFT_WGMMA_REGISTERS("+f", c)
                 : "l"(a), "l"(b));
  else
    asm volatile(WEFT_WGMMA("k16.f32.bf16.bf16", "eq", WEFT_FROM_ROWS ", 0, 0")
                 : WEFT_WGMMA_REGISTERS("+f", c)
                 : "l"(a), "l"(b));
}
template <class Element>
__device__ __forceinline__ void wgmma_add(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  if constexpr (sizeof(Element) == 1)
    asm volatile(WEFT_WGMMA("k32.f32.e4m3.e4m3", "eq", WEFT_FROM_REGISTERS)
                 : WEFT_WGMMA_REGISTERS("+f", c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  else
    asm volatile(WEFT_WGMMA("k16.f32.bf16.bf16", "eq", WEFT_FROM_REGISTERS ", 0")
                 : WEFT_WGMMA_REGISTERS("+f", c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef WEFT_WGMMA_NUMBERS
#undef WEFT_WGMMA_REGISTERS
#undef WEFT_WGMMA
#undef WEFT_FROM_ROWS
#undef WEFT_FROM_REGISTERS

// Rounds four values to nearest e4m3, the first in the lowest byte; values beyond the largest
// become the largest.
__device__ __forceinline__ uint32_t e4m3_quad(float a, float b, float c, float d) {
  uint32_t out;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(out)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return out;
}

}  // namespace weft::cuda
