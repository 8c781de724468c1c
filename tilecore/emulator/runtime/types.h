// Vector types and 16- and 8-bit floating point types as CUDA's headers declare them.
#pragma once

#include <cstdint>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned uint;
typedef unsigned long ulong;

#define EMU_VECTOR(name, element)                                                     \
  struct alignas(sizeof(element)) name##1 { element x; };                            \
  struct alignas(2 * sizeof(element)) name##2 { element x, y; };                     \
  struct name##3 { element x, y, z; };                                               \
  struct alignas(4 * sizeof(element) > 16 ? 16 : 4 * sizeof(element)) name##4 {      \
    element x, y, z, w;                                                              \
  };                                                                                 \
  inline name##2 make_##name##2(element x, element y) { return {x, y}; }             \
  inline name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; } \
  inline name##4 make_##name##4(element x, element y, element z, element w) {        \
    return {x, y, z, w};                                                             \
  }
EMU_VECTOR(char, signed char)
EMU_VECTOR(uchar, unsigned char)
EMU_VECTOR(short, short)
EMU_VECTOR(ushort, unsigned short)
EMU_VECTOR(int, int)
EMU_VECTOR(uint, unsigned)
EMU_VECTOR(long, long)
EMU_VECTOR(ulong, unsigned long)
EMU_VECTOR(longlong, long long)
EMU_VECTOR(ulonglong, unsigned long long)
EMU_VECTOR(float, float)
EMU_VECTOR(double, double)
#undef EMU_VECTOR

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

namespace emu {
// Element types; the numbers are those of the runtime's tables (elements.h).
struct f16 { static constexpr int id = 0; };
struct bf16 { static constexpr int id = 1; };
struct tf32 { static constexpr int id = 2; };
struct f32 { static constexpr int id = 3; };
struct f64 { static constexpr int id = 4; };
struct e4m3 { static constexpr int id = 5; };
struct e5m2 { static constexpr int id = 6; };
struct e4m3z { static constexpr int id = 7; };  // e4m3fnuz: multiplied by AMD, never made
struct e5m2z { static constexpr int id = 8; };
struct s8 { static constexpr int id = 9; };
struct u8 { static constexpr int id = 10; };
struct s4 { static constexpr int id = 11; };
struct u4 { static constexpr int id = 12; };
struct s32 { static constexpr int id = 13; };
struct u32 { static constexpr int id = 14; };
struct e2m1 { static constexpr int id = 15; };
struct ue8m0 { static constexpr int id = 17; };
struct ue4m3 { static constexpr int id = 16; };  // a factor: e4m3 whose top bit is 0

unsigned encode(int type, float value);       // bits of the nearest number, ties to even, saturated
float decode(int type, unsigned bits);

// What to round on from, so that a number of more than 24 bits is rounded once (as cvt does): of the
// two floats beside it the one whose last bit is set.
inline float narrowed(double value) {
  float near = (float)value;
  if ((double)near == value || near - near != 0) return near;  // exact, infinite or no number
  unsigned bits;
  __builtin_memcpy(&bits, &near, 4);
  float beyond = value > near ? __builtin_inff() : -__builtin_inff();
  return bits & 1 ? near : __builtin_nextafterf(near, beyond);
}
inline float narrowed(float value) { return value; }
template <class V>
inline float narrowed(V value) {
  if constexpr (sizeof(V) >= 4) return narrowed((double)value);  // an integer
  else return (float)value;
}

template <class T, class Bits>
struct Small {  // a number that is computed in float and rounded after every operation
  Bits bits;
  Small() = default;
  template <class V, class = decltype((float)V())>
  Small(V value) : bits((Bits)encode(T::id, narrowed(value))) {}
  operator float() const { return decode(T::id, bits); }
  Small& operator+=(Small o) { return *this = Small((float)*this + (float)o); }
  Small& operator-=(Small o) { return *this = Small((float)*this - (float)o); }
  Small& operator*=(Small o) { return *this = Small((float)*this * (float)o); }
  Small& operator/=(Small o) { return *this = Small((float)*this / (float)o); }
  Small operator-() const { return Small(-(float)*this); }
};
#define EMU_OPERATOR(op)                                                       \
  template <class T, class B>                                                  \
  inline Small<T, B> operator op(Small<T, B> a, Small<T, B> b) {               \
    return Small<T, B>((float)a op(float) b);                                  \
  }
EMU_OPERATOR(+)
EMU_OPERATOR(-)
EMU_OPERATOR(*)
EMU_OPERATOR(/)
#undef EMU_OPERATOR
#define EMU_COMPARISON(op)                                                     \
  template <class T, class B>                                                  \
  inline bool operator op(Small<T, B> a, Small<T, B> b) {                      \
    return (float)a op(float) b;                                               \
  }
EMU_COMPARISON(<)
EMU_COMPARISON(>)
EMU_COMPARISON(<=)
EMU_COMPARISON(>=)
EMU_COMPARISON(==)
EMU_COMPARISON(!=)
#undef EMU_COMPARISON
}  // namespace emu

typedef emu::Small<emu::f16, unsigned short> half, __half;
typedef emu::Small<emu::bf16, unsigned short> nv_bfloat16, __nv_bfloat16;
typedef emu::Small<emu::e4m3, unsigned char> __nv_fp8_e4m3;
typedef emu::Small<emu::e5m2, unsigned char> __nv_fp8_e5m2;
struct __nv_fp8_e8m0 {
  unsigned char bits;
};
struct alignas(4) half2 { half x, y; };
struct alignas(4) nv_bfloat162 { nv_bfloat16 x, y; };
typedef half2 __half2;
typedef nv_bfloat162 __nv_bfloat162;
struct alignas(2) __nv_fp8x2_e4m3 { __nv_fp8_e4m3 x, y; };
struct alignas(4) __nv_fp8x4_e4m3 { __nv_fp8_e4m3 x, y, z, w; };
struct alignas(2) __nv_fp8x2_e5m2 { __nv_fp8_e5m2 x, y; };
struct alignas(4) __nv_fp8x4_e5m2 { __nv_fp8_e5m2 x, y, z, w; };
struct alignas(2) __nv_fp8x2_e8m0 { __nv_fp8_e8m0 x, y; };
struct alignas(4) __nv_fp8x4_e8m0 { __nv_fp8_e8m0 x, y, z, w; };
