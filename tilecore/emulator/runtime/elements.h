// Element types by number: widths, and their bits as numbers (types.h: struct f16, ...; tensor maps:
// tilecore/emulator/arguments.py).
#pragma once
#include <cstdint>
#include <cstring>

namespace emu {
enum Type { F16, BF16, TF32, F32, F64, E4M3, E5M2, E4M3Z, E5M2Z, S8, U8, S4, U4, S32, U32, E2M1, UE4M3, UE8M0 };

inline int width(int type) {  // in bits
  static const int widths[] = {16, 16, 32, 32, 64, 8, 8, 8, 8, 8, 8, 4, 4, 32, 32, 4, 8, 8};
  return widths[type];
}
inline bool is_integer(int type) { return type >= S8 && type <= U32; }

unsigned encode(int type, float value);
float decode(int type, unsigned bits);

// Element `index` of an array as a double, which holds all of these types exactly.
inline double element(int type, const void* array, int index) {
  const unsigned char* bytes = (const unsigned char*)array;
  switch (type) {
    case F64: { double v; memcpy(&v, bytes + 8 * index, 8); return v; }
    case F32: { float v; memcpy(&v, bytes + 4 * index, 4); return v; }
    case S32: { int32_t v; memcpy(&v, bytes + 4 * index, 4); return v; }
    case U32: { uint32_t v; memcpy(&v, bytes + 4 * index, 4); return v; }
    case TF32: { uint32_t v; memcpy(&v, bytes + 4 * index, 4); return decode(TF32, v); }
    case F16: case BF16: { uint16_t v; memcpy(&v, bytes + 2 * index, 2); return decode(type, v); }
    case S8: return (signed char)bytes[index];
    case U8: return bytes[index];
    case S4: { int v = bytes[index / 2] >> 4 * (index % 2) & 15; return v < 8 ? v : v - 16; }
    case U4: return bytes[index / 2] >> 4 * (index % 2) & 15;
    case E2M1: return decode(E2M1, bytes[index / 2] >> 4 * (index % 2) & 15);
    default: return decode(type, bytes[index]);
  }
}
inline void set_element(int type, void* array, int index, double value) {
  unsigned char* bytes = (unsigned char*)array;
  switch (type) {
    case F64: memcpy(bytes + 8 * index, &value, 8); return;
    case F32: { float v = (float)value; memcpy(bytes + 4 * index, &v, 4); return; }
    case S32: { int32_t v = (int32_t)(int64_t)value; memcpy(bytes + 4 * index, &v, 4); return; }
    case U32: { uint32_t v = (uint32_t)(int64_t)value; memcpy(bytes + 4 * index, &v, 4); return; }
    case F16: case BF16: {
      uint16_t v = (uint16_t)encode(type, (float)value);
      memcpy(bytes + 2 * index, &v, 2);
      return;
    }
    default: bytes[index] = (unsigned char)encode(type, (float)value);
  }
}
}  // namespace emu
