// Instructions of AVX-512 and AVX-VNNI on vectors: arguments as LLVM's intrinsics have them, vectors by address.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, "Operation" and
// the tables of special cases of each instruction, with DAZ and FTZ of MXCSR off.
#include <immintrin.h>

#include <cmath>

#include "instructions.h"

namespace {
using x86::bits_of;
using x86::of_bits;

constexpr uint32_t SIGN = 0x80000000, INDEFINITE = 0xFFC00000, QUIET = 0x00400000;
constexpr int64_t CURRENT_ROUNDING = 4;
constexpr int WIDEST = 64;  // elements of a register, at most

bool is_nan(float x) { return (bits_of(x) & ~SIGN) > 0x7F800000; }
float quiet(float x) { return of_bits(bits_of(x) | QUIET); }
float with_sign(float magnitude, uint32_t sign) { return of_bits(bits_of(magnitude) | sign); }

template <class F>
void masked(int64_t lanes, float* out, const float* other, int64_t mask, F of_lane) {
  float made[WIDEST];
  for (int i = 0; i < lanes; i++) made[i] = mask >> i & 1 ? of_lane(i) : other[i];
  memcpy(out, made, 4 * lanes);
}

void expect_rounding(const char* instruction, int64_t rounding) {
  if (rounding != CURRENT_ROUNDING)
    x86::fault("%s with rounding %d: only the current mode (4) is emulated", instruction,
               int(rounding));
}

double power_of_two(int n) {
  uint64_t bits = uint64_t(n + 1023) << 52;
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

// Returns n of 2^n <= |x| < 2^(n+1).
int logarithm(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return int(bits >> 52 & 0x7FF) - 1023;
}

float scaled(float x, float power) {
  if (is_nan(power)) return is_nan(x) ? quiet(x) : quiet(power);
  if (is_nan(x)) {
    bool was_quiet = bits_of(x) & QUIET;
    return was_quiet && std::isinf(power) ? (power > 0 ? INFINITY : 0.0f) : quiet(x);
  }
  if (std::isinf(power)) {
    if (power > 0) return x == 0 ? of_bits(INDEFINITE) : with_sign(INFINITY, bits_of(x) & SIGN);
    return std::isinf(x) ? of_bits(INDEFINITE) : with_sign(0, bits_of(x) & SIGN);
  }
  double n = std::floor(double(power));
  n = n > 600 ? 600 : n < -600 ? -600 : n;  // beyond what any float needs
  return float(double(x) * power_of_two(int(n)));
}

float exponent(float x) {
  if (is_nan(x)) return quiet(x);
  if (std::isinf(x)) return INFINITY;
  return x == 0 ? -INFINITY : float(logarithm(x));
}

float mantissa(float x, int64_t control) {
  if (is_nan(x)) return quiet(x);
  int interval = control & 3, signs = control >> 2 & 3;
  bool is_negative = bits_of(x) & SIGN;
  uint32_t sign = is_negative && !(signs & 1) ? SIGN : 0;
  if (x == 0) return with_sign(1, sign);
  if (is_negative && signs & 2) return of_bits(INDEFINITE);
  if (std::isinf(x)) return with_sign(1, sign);
  int n = logarithm(x);
  double m = std::fabs(double(x)) * power_of_two(-n);  // 1 <= m < 2
  bool halves = interval == 2 || (interval == 1 && n & 1) || (interval == 3 && m >= 1.5);
  return with_sign(float(halves ? m / 2 : m), sign);
}

// Returns a - b, rounded once: 0 to nearest, 1 down, 2 up, 3 to zero.
float difference(double a, double b, int mode) {
  double rest = a - b, used = a - rest;
  double lost = (a - (rest + used)) + (used - b);  // a - b is exactly rest + lost
  float found = float(rest);
  double above = double(found) - rest - lost;  // of the exact difference
  if (mode == 3) mode = found > 0 ? 1 : 2;
  if (mode == 1 && above > 0) return std::nextafter(found, -INFINITY);
  if (mode == 2 && above < 0) return std::nextafter(found, INFINITY);
  return found;
}

// The manual: the subtraction is done under the same rounding control.
float reduced(float x, int64_t control) {
  if (is_nan(x)) return quiet(x);
  if (std::isinf(x)) return 0;
  double scale = power_of_two(control >> 4 & 15), y = double(x) * scale;
  int mode = control & 4 ? 0 : control & 3;
  double whole = mode == 0   ? std::nearbyint(y)
                 : mode == 1 ? std::floor(y)
                 : mode == 2 ? std::ceil(y)
                             : std::trunc(y);
  if (double(x) == whole / scale) return mode == 1 ? -0.0f : 0.0f;
  return difference(x, whole / scale, mode);
}

// An estimate that is as far off as the manual allows: by less than 2^-14, to either side as the
// bits of the argument have it. Powers of two are exact.
float estimated(double exact, float x) {
  uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFF) == 0) return float(exact);
  uint32_t hash = bits * 2654435761u >> 16;
  double off = 0x1p-14 * (1 - 1.0 / 512);
  return float(exact * (1 + (hash & 1 ? off : -off)));
}

float reciprocal(float x) {
  if (is_nan(x)) return quiet(x);
  uint32_t sign = bits_of(x) & SIGN;
  if (std::fabs(x) <= 0x1p-128f) return with_sign(INFINITY, sign);
  return std::isinf(x) ? with_sign(0, sign) : estimated(1 / double(x), x);
}

float reciprocal_root(float x) {
  if (is_nan(x)) return quiet(x);
  if (x == 0) return with_sign(INFINITY, bits_of(x) & SIGN);
  if (x < 0) return of_bits(INDEFINITE);
  if (std::isinf(x)) return 0;
  double exact = 1 / std::sqrt(double(x));
  int n = logarithm(x);
  bool is_exact = double(x) == power_of_two(n) && n % 2 == 0;
  return is_exact ? float(exact) : estimated(exact, of_bits(bits_of(x) | 1));
}

uint16_t to_bfloat16(float x) {
  uint32_t bits = bits_of(x);
  if (is_nan(x)) return bits >> 16 | 0x40;
  if ((bits & 0x7F800000) == 0) return bits >> 16 & 0x8000;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

template <class T>
void permute(int64_t lanes, T* out, const T* x, const T* index) {
  T made[WIDEST];
  for (int i = 0; i < lanes; i++) made[i] = x[index[i] & (lanes - 1)];
  memcpy(out, made, sizeof(T) * lanes);
}

__attribute__((noinline)) void add_pairs(int64_t lanes, float* sums, const uint32_t* a,
                                         const uint32_t* b) {
  for (int i = 0; i < lanes; i++) {
    float sum = __builtin_fmaf(of_bits(a[i] & 0xFFFF0000), of_bits(b[i] & 0xFFFF0000), sums[i]);
    sums[i] = __builtin_fmaf(of_bits(a[i] << 16), of_bits(b[i] << 16), sum);
  }
}
}  // namespace

STAND_IN void x86_scalef(int64_t lanes, float* out, const float* x, const float* power,
                         const float* other, int64_t mask, int64_t rounding) {
  expect_rounding("vscalefps", rounding);
  masked(lanes, out, other, mask, [&](int i) { return scaled(x[i], power[i]); });
}

STAND_IN void x86_getexp(int64_t lanes, float* out, const float* x, const float* other,
                         int64_t mask, int64_t rounding) {
  expect_rounding("vgetexpps", rounding);
  masked(lanes, out, other, mask, [&](int i) { return exponent(x[i]); });
}

STAND_IN void x86_getmant(int64_t lanes, float* out, const float* x, int64_t control,
                          const float* other, int64_t mask, int64_t rounding) {
  expect_rounding("vgetmantps", rounding);
  masked(lanes, out, other, mask, [&](int i) { return mantissa(x[i], control); });
}

STAND_IN void x86_reduce(int64_t lanes, float* out, const float* x, int64_t control,
                         const float* other, int64_t mask, int64_t rounding) {
  expect_rounding("vreduceps", rounding);
  masked(lanes, out, other, mask, [&](int i) { return reduced(x[i], control); });
}

STAND_IN void x86_rcp14(int64_t lanes, float* out, const float* x, const float* other,
                        int64_t mask) {
  masked(lanes, out, other, mask, [&](int i) { return reciprocal(x[i]); });
}

STAND_IN void x86_rsqrt14(int64_t lanes, float* out, const float* x, const float* other,
                          int64_t mask) {
  masked(lanes, out, other, mask, [&](int i) { return reciprocal_root(x[i]); });
}

STAND_IN void x86_widen_halves(int64_t lanes, float* out, const uint16_t* x, const float* other,
                               int64_t mask, int64_t rounding) {
  expect_rounding("vcvtph2ps", rounding);
  masked(lanes, out, other, mask, [&](int i) { return _cvtsh_ss(x[i]); });
}

STAND_IN void x86_permute_words(int64_t lanes, uint32_t* out, const uint32_t* x,
                                const uint32_t* index) {
  permute(lanes, out, x, index);
}

STAND_IN void x86_permute_halves(int64_t lanes, uint16_t* out, const uint16_t* x,
                                 const uint16_t* index) {
  permute(lanes, out, x, index);
}

STAND_IN void x86_permute_two(int64_t lanes, uint32_t* out, const uint32_t* x,
                              const uint32_t* index, const uint32_t* y) {
  uint32_t made[WIDEST];
  for (int i = 0; i < lanes; i++) {
    const uint32_t* table = index[i] & lanes ? y : x;
    made[i] = table[index[i] & (lanes - 1)];
  }
  memcpy(out, made, 4 * lanes);
}

STAND_IN void x86_round_bfloat16(int64_t lanes, uint16_t* out, const float* x) {
  for (int i = 0; i < lanes; i++) out[i] = to_bfloat16(x[i]);
}

STAND_IN void x86_round_two_bfloat16(int64_t lanes, uint16_t* out, const float* high,
                                     const float* low) {
  int64_t half = lanes / 2;
  for (int i = 0; i < half; i++) {
    out[i] = to_bfloat16(low[i]);
    out[half + i] = to_bfloat16(high[i]);
  }
}

// Of each pair the second product is added first.
STAND_IN void x86_dpbf16ps(int64_t lanes, float* out, const float* sums, const uint32_t* a,
                           const uint32_t* b) {
  x86::Flushing flushing;
  memcpy(out, sums, 4 * lanes);
  add_pairs(lanes, out, a, b);
}

// Bytes of a are unsigned, those of b signed; sums wrap around.
STAND_IN void x86_vpdpbusd(int64_t lanes, uint32_t* out, const uint32_t* sums, const uint8_t* a,
                           const int8_t* b) {
  for (int i = 0; i < lanes; i++) {
    uint32_t sum = sums[i];
    for (int j = 4 * i; j < 4 * i + 4; j++) sum += uint32_t(int32_t(a[j]) * b[j]);
    out[i] = sum;
  }
}

STAND_IN void x86_pmaddwd(int64_t lanes, uint32_t* out, const int16_t* a, const int16_t* b) {
  for (int i = 0; i < lanes; i++) {
    uint32_t first = uint32_t(int32_t(a[2 * i]) * b[2 * i]);
    out[i] = first + uint32_t(int32_t(a[2 * i + 1]) * b[2 * i + 1]);
  }
}
