// Arithmetic with a stated rounding, by the rounding mode of the processor.
#include <cfenv>
#include <cmath>

#include "emu.h"

namespace emu {
namespace {

struct Mode {
  int before = std::fegetround();
  explicit Mode(rounding mode) {
    const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
    std::fesetround(modes[mode]);
  }
  ~Mode() { std::fesetround(before); }
};

// Volatile: the compiler takes the mode for what it was at the start, and would compute before it.
template <class T, class Compute>
T computed(rounding mode, T a, T b, T c, Compute compute) {
  volatile T x = a, y = b, z = c, made;
  {
    Mode now(mode);
    made = compute(x, y, z);
  }
  return made;
}

}  // namespace

#define EMU_ROUNDED(T)                                                                   \
  T rounded_add(rounding mode, T a, T b) {                                               \
    return computed<T>(mode, a, b, b, [](T x, T y, T) { return x + y; });                \
  }                                                                                      \
  T rounded_mul(rounding mode, T a, T b) {                                               \
    return computed<T>(mode, a, b, b, [](T x, T y, T) { return x * y; });                \
  }                                                                                      \
  T rounded_div(rounding mode, T a, T b) {                                               \
    return computed<T>(mode, a, b, b, [](T x, T y, T) { return x / y; });                \
  }                                                                                      \
  T rounded_fma(rounding mode, T a, T b, T c) {                                          \
    return computed<T>(mode, a, b, c, [](T x, T y, T z) { return std::fma(x, y, z); });  \
  }                                                                                      \
  T rounded_sqrt(rounding mode, T a) {                                                   \
    return computed<T>(mode, a, a, a, [](T x, T, T) { return std::sqrt(x); });           \
  }
EMU_ROUNDED(float)
EMU_ROUNDED(double)
#undef EMU_ROUNDED

}  // namespace emu
