// What the instruction of a product in tensor memory says: for kernels (emu.h) and the machine.
#pragma once

namespace emu {
struct TensorForm {
  int m, n, a_type, b_type, c_type;
  bool a_transposed, b_transposed, a_in_tensor;
  bool is_pair;  // of two blocks, which m and n count together
  int factor_type = 0, factors = 0;  // along K, for which rows of A and columns of B have a word
  bool is_copy = false;              // no product: words of shared memory to four columns
};
struct TensorFactors {
  unsigned place;  // in tensor memory
  int byte;        // of their words, from which on they count
};
}  // namespace emu
