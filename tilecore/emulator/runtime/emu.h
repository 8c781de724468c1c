// What a kernel sees when it is compiled for the emulator: CUDA's words, and the functions that
// stand for PTX (tilecore/lowering/cuda/instructions). The runtime (machine.h) is linked in.
#pragma once
#include <cstdio>
#include <utility>

#include "functions.h"
#include "tensor_form.h"
#include "types.h"

struct alignas(128) CUtensorMap {
  unsigned long long opaque[16];
};

namespace emu {
typedef unsigned long long u64;
extern uint3 thread_index, block_index;
extern dim3 block_shape, grid_shape;
extern int line;    // of the generated text, where the running thread is
void at(int line);  // the thread goes on there
[[noreturn]] void fail(const char* message);

// Memory. Shared addresses are offsets into the block's shared memory.
void* dynamic_shared();
void* static_shared(int number, unsigned bytes, unsigned alignment);
unsigned shared_offset(const void* pointer);
inline u64 descriptor_address(const void* tile) { return (shared_offset(tile) & 0x3ffff) >> 4; }
void* cluster_pointer(const void* pointer, int rank);

// Barriers.
void sync_threads();
int sync_threads_reduce(int condition, int kind);
void sync_warp(unsigned mask);
void converge_warp();
void bar_sync(int id, int threads);
void bar_arrive(int id, int threads);
void barrier_init(void* barrier, int count);
void barrier_invalidate(void* barrier);
void barrier_arrive(void* barrier, int count);
void barrier_arrive_remote(void* barrier, int rank);
void barrier_expect(void* barrier, int bytes, bool arrives);
void barrier_expect_remote(void* barrier, int rank, int bytes);
void barrier_wait(void* barrier, int parity);
int barrier_test(void* barrier, int parity);
void fence_barrier_init();
void fence_async();
void cluster_arrive();
void cluster_wait();
int cluster_rank();

// Asynchronous copies.
void cp_async(void* dst, const void* src, int bytes, int src_bytes);
void cp_async_commit();
void cp_async_wait(int pending);
void cp_async_arrive(void* barrier, bool counts);
void bulk_load(void* dst, const void* src, int bytes, void* barrier);
void bulk_store(void* dst, const void* src, int bytes);
void bulk_commit();
void bulk_wait(int pending, bool only_reads);
void tma_load(void* dst, u64 map, void* barrier, int rank, const int* at, int mask);
void tma_load_pair(void* dst, u64 map, void* barrier, int rank, const int* at);
void tma_store(u64 map, const void* src, int rank, const int* at);
void tma_reduce(u64 map, const void* src, int rank, const int* at, const char* op);

// Matrices.
void ldmatrix(void* d, const void* row, int count, bool transposed);
void stmatrix(void* row, const void* s, int count, bool transposed);
void mma(int m, int n, int k, int a_type, int b_type, int c_type, void* d, const void* a,
         const void* b);
template <int M, int N, int K, class A, class B, class C>
inline void mma(void* d, const void* a, const void* b) {
  mma(M, N, K, A::id, B::id, C::id, d, a, b);
}
void mma_scaled(int m, int n, int k, int a_type, int b_type, int factor_type, int count, int first,
                int a_selector, int b_selector, void* d, const void* a, const void* b,
                unsigned a_factors, unsigned b_factors);
template <int M, int N, int K, class A, class B, class Factor, int Count, int First, int ASelector,
          int BSelector>
inline void mma_scaled(void* d, const void* a, const void* b, unsigned a_factors,
                       unsigned b_factors) {
  mma_scaled(M, N, K, A::id, B::id, Factor::id, Count, First, ASelector, BSelector, d, a, b,
             a_factors, b_factors);
}
void mfma(int k, int a_type, int b_type, int c_type, bool flushes, void* d, const void* a,
          const void* b);
template <int K, class A, class B, class C, bool Flushes = false>
inline void mfma(void* d, const void* a, const void* b) {
  mfma(K, A::id, B::id, C::id, Flushes, d, a, b);
}
void mma_quad(int c_type, void* d, const void* a, const void* b, bool a_row, bool b_col);
template <class C>
inline void mma_quad(void* d, const void* a, const void* b, bool a_row, bool b_col) {
  mma_quad(C::id, d, a, b, a_row, b_col);
}
void wgmma(int n, int a_type, int b_type, int c_type, void* d, const void* a_registers, u64 a,
           u64 b, bool accumulates, bool a_transposed, bool b_transposed);
template <int N, class A, class B, class C>
inline void wgmma_ss(void* d, u64 a, u64 b, int accumulates, bool a_t, bool b_t) {
  wgmma(N, A::id, B::id, C::id, d, nullptr, a, b, accumulates, a_t, b_t);
}
template <int N, class A, class B, class C>
inline void wgmma_rs(void* d, const void* a, u64 b, int accumulates, bool a_t, bool b_t) {
  wgmma(N, A::id, B::id, C::id, d, a, 0, b, accumulates, a_t, b_t);
}
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);
void set_registers(int count, bool grows);

// Tensor memory. `pair`: of two blocks (cta_group::2).
void tensor_allocate(void* address, int columns, bool pair);
void tensor_free(unsigned address, int columns, bool pair);
void tensor_mma(const TensorForm& form, unsigned d, u64 a, u64 b, bool accumulates);
template <int M, int N, class A, class B, class C>
inline void tensor_mma(unsigned d, u64 a, u64 b, int accumulates, bool a_t, bool b_t, bool pair) {
  tensor_mma({M, N, A::id, B::id, C::id, a_t, b_t, false, pair}, d, a, b, accumulates);
}
// A lies in tensor memory: rows in lanes, elements along K packed into columns.
template <int M, int N, class A, class B, class C>
inline void tensor_mma_ts(unsigned d, unsigned a, u64 b, int accumulates, bool b_t, bool pair) {
  tensor_mma({M, N, A::id, B::id, C::id, false, b_t, true, pair}, d, a, b, accumulates);
}
// Elements of K-major or other operands times factors in tensor memory, of which `Count` along K.
void tensor_mma_scaled(const TensorForm& form, unsigned d, u64 a, u64 b, TensorFactors a_factors,
                       TensorFactors b_factors, bool accumulates);
template <int M, int N, class A, class B, class Factor, int Count>
inline void tensor_mma_scaled(unsigned d, u64 a, u64 b, TensorFactors fa, TensorFactors fb,
                              int accumulates, bool a_t, bool b_t, bool pair) {
  tensor_mma_scaled({M, N, A::id, B::id, f32::id, a_t, b_t, false, pair, Factor::id, Count}, d, a, b,
                    fa, fb, accumulates);
}
void tensor_copy(unsigned d, u64 source, bool pair);
// `mask`: blocks of the cluster, 0: the own one.
void tensor_commit(void* barrier, int mask, bool pair);
// `halves`: count units of 8 columns of 16 lanes, else count columns of the thread's own lane.
void tensor_load(void* d, unsigned address, int count, bool halves);
void tensor_store(unsigned address, const void* s, int count, bool halves);
void tensor_wait(bool loads);
float round_tf32(float value);

// Warps.
int lane();
int elect();
void shuffle(const char* kind, u64 mask, void* value, int bytes, int source);
u64 ballot(const char* kind, u64 mask, int condition);
unsigned match(unsigned mask, u64 value);
int reduce(const char* kind, unsigned mask, int value, bool is_signed);
void spin();  // the thread waits for another one's store
u64 now();

// The accesses up to atomic_end are one.
void atomic_begin(void* address, int bytes, bool writes = true);
void atomic_end();
template <class T>
inline T load_ordered(const void* address) {
  spin();
  atomic_begin((void*)address, sizeof(T), false);
  T value = *(const T*)address;
  atomic_end();
  return value;
}
template <class T, class F>
inline T update(T* address, F combine) {
  atomic_begin(address, sizeof(T));
  T old = *address;
  *address = combine(old);
  atomic_end();
  return old;
}
// --- arithmetic with a stated rounding (rounding.cpp) ------------------------------------------
enum rounding { rn, rz, ru, rd };
#define EMU_ROUNDED(T)                             \
  T rounded_add(rounding mode, T a, T b);          \
  T rounded_mul(rounding mode, T a, T b);          \
  T rounded_div(rounding mode, T a, T b);          \
  T rounded_fma(rounding mode, T a, T b, T c);     \
  T rounded_sqrt(rounding mode, T a);
EMU_ROUNDED(float)
EMU_ROUNDED(double)
#undef EMU_ROUNDED

}  // namespace emu

#include "words.h"
