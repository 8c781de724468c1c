// Functions of CUDA C++ that generated code calls: bits, rounding, mathematics.
#pragma once
#include <cmath>

#include "types.h"

using std::isinf;
using std::isnan;
using std::isfinite;

template <class A, class B>
inline auto emu_max(A a, B b) -> decltype(a + b) { return a > b ? a : b; }
template <class A, class B>
inline auto emu_min(A a, B b) -> decltype(a + b) { return a < b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
#define EMU_ORDER(type)                                             \
  inline type max(type a, type b) { return a > b ? a : b; }         \
  inline type min(type a, type b) { return a < b ? a : b; }
EMU_ORDER(int)
EMU_ORDER(unsigned)
EMU_ORDER(long)
EMU_ORDER(unsigned long)
EMU_ORDER(long long)
EMU_ORDER(unsigned long long)
EMU_ORDER(half)
EMU_ORDER(nv_bfloat16)
#undef EMU_ORDER

// --- bits ------------------------------------------------------------------------------------
template <class To, class From>
inline To emu_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To made;
  __builtin_memcpy(&made, &value, sizeof made);
  return made;
}
inline int __float_as_int(float x) { return emu_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emu_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emu_bits<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned made = 0;
  for (int i = 0; i < 32; ++i) made |= (x >> i & 1) << (31 - i);
  return made;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned choice) {
  unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned made = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned pick = choice >> 4 * i & 15, byte = both >> 8 * (pick & 7) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;
    made |= byte << 8 * i;
  }
  return made;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
  return n & 31 ? high << (n & 31) | low >> (32 - (n & 31)) : high;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
  return n & 31 ? low >> (n & 31) | high << (32 - (n & 31)) : low;
}
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += (signed char)(a >> 8 * i) * (signed char)(b >> 8 * i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}

// --- approximations and mathematics ------------------------------------------------------------
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline double exp10(double x) { return pow(10.0, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline int __float2int_rd(float x) { return (int)floorf(x); }
inline int __float2int_ru(float x) { return (int)ceilf(x); }
inline float __int2float_rn(int x) { return (float)x; }
template <class T>
inline T __ldg(const T* address) { return *address; }

// --- 16-bit numbers ------------------------------------------------------------------------------
inline float __half2float(half x) { return x; }
inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline float __bfloat162float(nv_bfloat16 x) { return x; }
inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline half2 __floats2half2_rn(float a, float b) { return {half(a), half(b)}; }
inline half2 __float22half2_rn(float2 a) { return {half(a.x), half(a.y)}; }
inline float2 __half22float2(half2 a) { return {(float)a.x, (float)a.y}; }
inline half2 __float2half2_rn(float a) { return {half(a), half(a)}; }
inline half2 __half2half2(half a) { return {a, a}; }
inline half2 __halves2half2(half a, half b) { return {a, b}; }
inline half2 make_half2(half a, half b) { return {a, b}; }
inline nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
  return {nv_bfloat16(a), nv_bfloat16(b)};
}
inline nv_bfloat162 __float22bfloat162_rn(float2 a) {
  return {nv_bfloat16(a.x), nv_bfloat16(a.y)};
}
inline float2 __bfloat1622float2(nv_bfloat162 a) { return {(float)a.x, (float)a.y}; }
inline nv_bfloat162 __float2bfloat162_rn(float a) { return {nv_bfloat16(a), nv_bfloat16(a)}; }
inline nv_bfloat162 __bfloat162bfloat162(nv_bfloat16 a) { return {a, a}; }
inline nv_bfloat162 __halves2bfloat162(nv_bfloat16 a, nv_bfloat16 b) { return {a, b}; }
inline unsigned short __half_as_ushort(half a) { return a.bits; }
inline half __ushort_as_half(unsigned short a) { return emu_bits<half>(a); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 a) { return a.bits; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short a) { return emu_bits<nv_bfloat16>(a); }

#define EMU_SMALL(type, pair)                                                              \
  inline type __hadd(type a, type b) { return a + b; }                                     \
  inline type __hsub(type a, type b) { return a - b; }                                     \
  inline type __hmul(type a, type b) { return a * b; }                                     \
  inline type __hdiv(type a, type b) { return a / b; }                                     \
  inline type __hneg(type a) { return -a; }                                                \
  inline type __habs(type a) { return type(fabsf((float)a)); }                             \
  inline type __hmax(type a, type b) { return type(fmaxf((float)a, (float)b)); }           \
  inline type __hmin(type a, type b) { return type(fminf((float)a, (float)b)); }           \
  inline bool __hgt(type a, type b) { return a > b; }                                      \
  inline bool __hlt(type a, type b) { return a < b; }                                      \
  inline bool __hge(type a, type b) { return a >= b; }                                     \
  inline bool __hle(type a, type b) { return a <= b; }                                     \
  inline bool __heq(type a, type b) { return a == b; }                                     \
  inline bool __hne(type a, type b) { return a != b; }                                     \
  inline bool __hisnan(type a) { return isnan((float)a); }                                 \
  inline type __hfma(type a, type b, type c) {                                             \
    return type((float)((double)(float)a * (double)(float)b + (double)(float)c));          \
  }                                                                                        \
  inline type hexp(type a) { return type(expf((float)a)); }                                \
  inline type hexp2(type a) { return type(exp2f((float)a)); }                              \
  inline type hlog(type a) { return type(logf((float)a)); }                                \
  inline type hlog2(type a) { return type(log2f((float)a)); }                              \
  inline type hsqrt(type a) { return type(sqrtf((float)a)); }                              \
  inline type hrsqrt(type a) { return type(1.0f / sqrtf((float)a)); }                      \
  inline type hrcp(type a) { return type(1.0f / (float)a); }                               \
  inline type hsin(type a) { return type(sinf((float)a)); }                                \
  inline type hcos(type a) { return type(cosf((float)a)); }                                \
  inline type htanh(type a) { return type(tanhf((float)a)); }                              \
  inline type hfloor(type a) { return type(floorf((float)a)); }                            \
  inline type hceil(type a) { return type(ceilf((float)a)); }                              \
  inline type hrint(type a) { return type(nearbyintf((float)a)); }                         \
  inline type htrunc(type a) { return type(truncf((float)a)); }                            \
  inline pair __hadd2(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }                   \
  inline pair __hsub2(pair a, pair b) { return {a.x - b.x, a.y - b.y}; }                   \
  inline pair __hmul2(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }                   \
  inline pair __hmax2(pair a, pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }     \
  inline pair __hmin2(pair a, pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }     \
  inline pair __hfma2(pair a, pair b, pair c) {                                            \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                 \
  }                                                                                        \
  inline type __low2##type(pair a) { return a.x; }                                         \
  inline type __high2##type(pair a) { return a.y; }
EMU_SMALL(half, half2)
EMU_SMALL(nv_bfloat16, nv_bfloat162)
#undef EMU_SMALL
