// What stand-ins for instructions share: the first fault of a call, and how functions are seen.
#pragma once
#include <cstdint>
#include <cstring>

#define STAND_IN extern "C" __attribute__((visibility("hidden")))

namespace x86 {
// Keeps the first fault of a call; it is raised when the kernel returns.
void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Sums of products as bfloat16 instructions form them, whatever the caller set: rounded to nearest
// even, subnormal operands and results are 0.
class Flushing {
 public:
  Flushing() : before_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(FLUSH | MASKED); }
  ~Flushing() { __builtin_ia32_ldmxcsr(before_); }

 private:
  static constexpr unsigned MASKED = 0x1F80, FLUSH = 0x8040;
  unsigned before_;
};

inline float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
}  // namespace x86
