// Conversions between float and the narrower types: nearest, ties to even.
#include "elements.h"

#include <cmath>
#include <vector>

#include "emu.h"

namespace emu {
namespace {
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // else the largest exponent holds numbers, and all ones are NaN; saturating
  bool is_fnuz = false;  // no infinity, NaN is the negative zero, the bias is one larger
};
Format format(int type) {
  switch (type) {
    case F16: return {5, 10, true};
    case BF16: return {8, 7, true};
    case E5M2: return {5, 2, true};
    case E4M3Z: return {4, 3, false, true};
    case E5M2Z: return {5, 2, false, true};
    default: return {4, 3, false};  // E4M3
  }
}
std::vector<float> all_halves() {
  std::vector<float> made(1 << 16);
  for (unsigned bits = 0; bits < 1 << 16; ++bits) {
    uint16_t half = (uint16_t)bits;
    _Float16 number;
    memcpy(&number, &half, 2);
    made[bits] = (float)number;
  }
  return made;
}
}  // namespace

float decode(int type, unsigned bits) {
  if (type == TF32 || type == F32) {
    if (type == TF32) bits &= 0xffffe000u;  // tensor cores do not read the last 13 bits
    float made;
    memcpy(&made, &bits, 4);
    return made;
  }
  if (type == BF16) return decode(F32, bits << 16);
  if (type == E2M1) {
    static const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return bits & 8 ? -numbers[bits & 7] : numbers[bits & 7];
  }
  if (type == UE8M0) return bits == 0xff ? NAN : ldexpf(1, (int)bits - 127);
  if (type == UE4M3) {
    if (bits & 0x80) fail("a factor of ue4m3 has its top bit set: it is not negative");
    return decode(E4M3, bits);
  }
  if (type == F16) {
    static const std::vector<float> numbers = all_halves();
    return numbers[bits & 0xffff];
  }
  Format f = format(type);
  int total = f.exponent_bits + f.mantissa_bits;
  int bias = (1 << (f.exponent_bits - 1)) - !f.is_fnuz;
  int exponent = bits >> f.mantissa_bits & ((1 << f.exponent_bits) - 1);
  int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  float sign = bits >> total & 1 ? -1.0f : 1.0f;
  int last = (1 << f.exponent_bits) - 1, ones = (1 << f.mantissa_bits) - 1;
  if (f.is_fnuz && (bits & 0xff) == 0x80) return NAN;
  if (exponent == last && f.has_infinity) return mantissa ? NAN : sign * INFINITY;
  if (exponent == last && !f.has_infinity && !f.is_fnuz && mantissa == ones) return NAN;
  if (exponent == 0) return sign * ldexpf((float)mantissa, 1 - bias - f.mantissa_bits);
  return sign * ldexpf((float)(mantissa + ones + 1), exponent - bias - f.mantissa_bits);
}

unsigned encode(int type, float value) {
  unsigned word;
  memcpy(&word, &value, 4);
  if (type == F32) return word;
  if (type == F16) {
    _Float16 made = (_Float16)value;
    uint16_t half;
    memcpy(&half, &made, 2);
    return half;
  }
  if (type == BF16) {
    if (std::isnan(value)) return 0x7fff;
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  Format f = format(type);
  if (f.is_fnuz) fail("encode: no instruction makes numbers of this type");
  int bias = (1 << (f.exponent_bits - 1)) - 1, ones = (1 << f.mantissa_bits) - 1;
  int last = (1 << f.exponent_bits) - 1;
  unsigned sign = word >> 31 << (f.exponent_bits + f.mantissa_bits);
  if (std::isnan(value)) return f.has_infinity ? 0x7f : sign | 0x7f;
  unsigned largest = f.has_infinity ? (last - 1) << f.mantissa_bits | ones
                                    : last << f.mantissa_bits | (ones - 1);
  float size = fabsf(value);
  if (size > decode(type, largest)) return sign | largest;  // .satfinite
  int exponent = 1 - bias;
  if (size > 0) {
    int e = ilogbf(size);
    if (e > exponent) exponent = e;
  }
  int scaled = (int)nearbyintf(ldexpf(size, f.mantissa_bits - exponent));
  return sign | (unsigned)(((exponent - 1 + bias) << f.mantissa_bits) + scaled);
}

float round_tf32(float value) {  // ties away from zero
  unsigned word;
  memcpy(&word, &value, 4);
  if (std::isfinite(value)) word = (word + 0x1000) & 0xffffe000u;
  memcpy(&value, &word, 4);
  return value;
}
}  // namespace emu
