// What the instruction of a product in tensor memory says: for kernels (emu.h) and the machine.
#pragma once

namespace emu {
struct TensorForm {
  int m, n, a_type, b_type, c_type;
  bool a_transposed, b_transposed, a_in_tensor;
  bool is_pair;  // of two blocks, which m and n count together
};
}  // namespace emu
