// CUDA's keywords, variables and functions of threads, warps and atomic updates.
#pragma once

#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __CUDA_ARCH__ 900
#define threadIdx (emu::thread_index)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_shape)
#define gridDim (emu::grid_shape)
#define warpSize 32
#define __syncthreads emu::sync_threads
#define __syncthreads_and(c) emu::sync_threads_reduce(c, 0)
#define __syncthreads_or(c) emu::sync_threads_reduce(c, 1)
#define __syncthreads_count(c) emu::sync_threads_reduce(c, 2)
#define __cvta_generic_to_shared(p) emu::shared_offset(p)
#define __trap() emu::fail("__trap() was called")
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __threadfence_system() ((void)0)
#define __nanosleep(n) emu::spin()
#define clock64() ((long long)emu::now())
#define clock() ((int)emu::now())
#define __activemask() (1u << emu::lane())

inline void __syncwarp(unsigned mask = 0xffffffffu) { emu::sync_warp(mask); }
template <class T>
inline T emu_shuffle(const char* kind, emu::u64 mask, T value, int source) {
  emu::shuffle(kind, mask, &value, sizeof value, source);
  return value;
}
template <class T>
inline T __shfl_sync(emu::u64 mask, T value, int lane, int width = 32) {
  int first = emu::lane() & ~(width - 1);
  return emu_shuffle("shfl.idx", mask, value, first | (lane & (width - 1)));
}
template <class T>
inline T __shfl_xor_sync(emu::u64 mask, T value, int bits, int width = 32) {
  int own = emu::lane(), other = own ^ (bits & 31);  // groups before the own one can be read
  return emu_shuffle("shfl.bfly", mask, value, other / width <= own / width ? other : own);
}
template <class T>
inline T __shfl_down_sync(emu::u64 mask, T value, int delta, int width = 32) {
  int own = emu::lane();
  delta &= 31;  // as many bits of it count (PTX ISA, shfl.sync)
  return emu_shuffle("shfl.down", mask, value, own % width + delta < width ? own + delta : own);
}
template <class T>
inline T __shfl_up_sync(emu::u64 mask, T value, int delta, int width = 32) {
  int own = emu::lane();
  delta &= 31;
  return emu_shuffle("shfl.up", mask, value, own % width >= delta ? own - delta : own);
}
// HIP's: of all lanes of the wavefront.
template <class T>
inline T __shfl(T value, int lane, int width = 64) {
  int first = emu::lane() & ~(width - 1);
  return emu_shuffle("shfl.idx", ~0ull, value, first | (lane & (width - 1)));
}
template <class T>
inline T __shfl_xor(T value, int bits, int width = 64) {
  int own = emu::lane(), other = own ^ bits;
  return emu_shuffle("shfl.bfly", ~0ull, value, other / width <= own / width ? other : own);
}
template <class T>
inline T __shfl_down(T value, int delta, int width = 64) {
  int own = emu::lane();
  return emu_shuffle("shfl.down", ~0ull, value, own % width + delta < width ? own + delta : own);
}
template <class T>
inline T __shfl_up(T value, int delta, int width = 64) {
  int own = emu::lane();
  return emu_shuffle("shfl.up", ~0ull, value, own % width >= delta ? own - delta : own);
}
inline int __any(int c) { return emu::ballot("vote.any", ~0ull, c) != 0; }
inline int __all(int c) { return emu::ballot("vote.all", ~0ull, !c) == 0; }
inline int __any_sync(unsigned mask, int c) { return emu::ballot("vote.any", mask, c) != 0; }
inline int __all_sync(unsigned mask, int c) { return emu::ballot("vote.all", mask, !c) == 0; }
inline unsigned __ballot_sync(unsigned mask, int c) {
  return (unsigned)emu::ballot("vote.ballot", mask, c);
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
  emu::u64 bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return emu::match(mask, bits);
}
inline int __reduce_add_sync(unsigned m, int v) { return emu::reduce("redux.add", m, v, true); }
inline int __reduce_min_sync(unsigned m, int v) { return emu::reduce("redux.min", m, v, true); }
inline int __reduce_max_sync(unsigned m, int v) { return emu::reduce("redux.max", m, v, true); }
#define EMU_REDUCE(op)                                                  \
  inline unsigned __reduce_##op##_sync(unsigned m, unsigned v) {        \
    return (unsigned)emu::reduce("redux." #op, m, (int)v, false);       \
  }
EMU_REDUCE(add)
EMU_REDUCE(min)
EMU_REDUCE(max)
EMU_REDUCE(and)
EMU_REDUCE(or)
EMU_REDUCE(xor)
#undef EMU_REDUCE

// --- atomic updates ------------------------------------------------------------------------------
#define EMU_ATOMIC(name, expression)                                          \
  template <class T, class V>                                                 \
  inline T name(T* address, V operand) {                                      \
    T value = (T)operand;                                                     \
    return emu::update(address, [&](T old) -> T { return expression; });      \
  }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicMax, old < value ? value : old)
EMU_ATOMIC(atomicAnd, old & value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicExch, value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef EMU_ATOMIC
inline half2 atomicAdd(half2* address, half2 value) {
  return emu::update(address, [&](half2 old) { return __hadd2(old, value); });
}
inline nv_bfloat162 atomicAdd(nv_bfloat162* address, nv_bfloat162 value) {
  return emu::update(address, [&](nv_bfloat162 old) { return __hadd2(old, value); });
}
inline float2 atomicAdd(float2* address, float2 value) {
  return emu::update(address, [&](float2 o) { return float2{o.x + value.x, o.y + value.y}; });
}
inline float4 atomicAdd(float4* address, float4 value) {
  return emu::update(address, [&](float4 o) {
    return float4{o.x + value.x, o.y + value.y, o.z + value.z, o.w + value.w};
  });
}
template <class T>
inline T atomicCAS(T* address, T expected, T value) {
  T old = emu::update(address, [&](T o) { return o == expected ? value : o; });
  if (old != expected) emu::spin();
  return old;
}
