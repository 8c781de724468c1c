// Matrix instructions of warps: ldmatrix, stmatrix, mma.
#include <cmath>
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
namespace {
struct Rows {
  void* fragment;
  void* row;
};
// Row `r` of matrix `i` is at the address that lane 8 * i + r passes.
unsigned char* row_at(Collective& c, int lane, const char* what, bool writes) {
  void* row = ((Rows*)c.arguments[lane])->row;
  check_aligned(row, 16, what);
  Block* block = block_of(row);
  if (block != &my_block()) fail(std::string(what) + ": expected an address of shared memory");
  unsigned offset = offset_in(*block, row);
  shared_at(*block, offset, 16, what);
  const Fiber& f = *block->fibers[me().rank / WARP * WARP + lane];
  const Clock& clock = clock_of(f);
  if (writes) on_write(*block, offset, 16, thread_agent(f), clock, clock.at(thread_agent(f)));
  else on_read(*block, offset, 16, thread_agent(f), clock);
  return (unsigned char*)row;
}
// Calls `visit` with the bytes of each element of each matrix, in a row and in a lane's fragment.
template <class F>
void for_each(Collective& c, int count, bool transposed, const char* what, bool writes, F visit) {
  for (int i = 0; i < count; ++i) {
    unsigned offsets[8];
    for (int r = 0; r < 8; ++r) {
      unsigned char* row = row_at(c, 8 * i + r, what, writes);
      offsets[r] = offset_in(my_block(), row);
      for (int x = 0; x < 8; ++x) {
        int first = transposed ? x : r, second = transposed ? r : x;
        unsigned char* fragment =
            (unsigned char*)((Rows*)c.arguments[4 * first + second / 2])->fragment;
        visit(row + 2 * x, fragment + 4 * i + 2 * (second % 2));
      }
    }
    if (machine.counts) note_rows(writes ? SHARED_STORE : SHARED_LOAD, offsets);
  }
}
}  // namespace

void ldmatrix(void* d, const void* row, int count, bool transposed) {
  std::string what = "ldmatrix.x" + std::to_string(count) + (transposed ? ".trans" : "");
  Rows own{d, (void*)row};
  meet_warp(what, 0xffffffffu, &own, [&](Collective& c) {
    for_each(c, count, transposed, "ldmatrix", false,
             [](unsigned char* in, unsigned char* out) { memcpy(out, in, 2); });
  });
}
void stmatrix(void* row, const void* s, int count, bool transposed) {
  std::string what = "stmatrix.x" + std::to_string(count) + (transposed ? ".trans" : "");
  Rows own{(void*)s, row};
  meet_warp(what, 0xffffffffu, &own, [&](Collective& c) {
    for_each(c, count, transposed, "stmatrix", true,
             [](unsigned char* out, unsigned char* in) { memcpy(out, in, 2); });
  });
}

namespace {
struct Fragments {
  void* d;
  const void *a, *b;
};
}  // namespace

// d += a * b of m x k and k x n elements; sums are exact to double and rounded once.
void mma(int m, int n, int k, int a_type, int b_type, int c_type, void* d, const void* a,
         const void* b) {
  std::string what = "mma.m" + std::to_string(m) + "n" + std::to_string(n) + "k" + std::to_string(k);
  Fragments own{d, a, b};
  meet_warp(what, 0xffffffffu, &own, [=](Collective& c) {
    int bits = a_type == F64 ? 64 : 32, each = bits / width(a_type);  // elements of a register
    int a_registers = m * k / (WARP * each), b_registers = n * k / (WARP * each);
    std::vector<double> left(m * k), right(k * n);
    for (int lane = 0; lane < WARP; ++lane) {
      Fragments& f = *(Fragments*)c.arguments[lane];
      int g = lane / 4, t = lane % 4;
      for (int r = 0; r < a_registers; ++r)
        for (int q = 0; q < each; ++q) {
          int row = m == 8 ? g : g + 8 * (r % 2), step = m == 8 ? r : r / 2;
          left[row * k + each * t + 4 * each * step + q] = element(a_type, f.a, r * each + q);
        }
      for (int r = 0; r < b_registers; ++r)
        for (int q = 0; q < each; ++q)
          right[(each * t + 4 * each * r + q) * n + g] = element(b_type, f.b, r * each + q);
    }
    for (int lane = 0; lane < WARP; ++lane) {
      Fragments& f = *(Fragments*)c.arguments[lane];
      for (int i = 0; i < m * n / WARP; ++i) {
        int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = element(c_type, f.d, i);
        for (int x = 0; x < k; ++x) sum += left[row * k + x] * right[x * n + column];
        set_element(c_type, f.d, i, sum);
      }
    }
  });
}

namespace {
struct Factors {
  int type;          // of a factor of 8 bits
  int count, first;  // along K: how many, and the byte of the first one in a word
  int selectors[2];  // of A and of B: which lanes of four give words
};
struct ScaledFragments {
  void* d;
  const void *a, *b;
  unsigned words[2];
};
// Multiplies rows of k elements by the factors that lanes give; of a row r of A these come from lane
// 4 (r % 8) + 2 selector + r / 8, of a column r of B from lane 4 r + selector.
void scale(Collective& c, std::vector<double>& rows, int k, int side, const Factors& factors) {
  int count = (int)rows.size() / k, lanes = count / 8;  // that give the factors of a selector
  for (int row = 0; row < count; ++row) {
    int lane = 4 * (row % 8) + lanes * factors.selectors[side] + row / 8;
    unsigned word = ((ScaledFragments*)c.arguments[lane])->words[side];
    for (int x = 0; x < k; ++x)
      rows[row * k + x] *= element(factors.type, &word, factors.first + x * factors.count / k);
  }
}
// The rows of A or columns of B, of k elements, that the registers of lanes hold.
std::vector<double> rows_of(Collective& c, int count, int k, int side, int type) {
  int each = 32 / width(type), halves = count / 8;  // elements of a register; of a tile's rows
  std::vector<double> rows(count * k);
  for (int lane = 0; lane < WARP; ++lane) {
    ScaledFragments& f = *(ScaledFragments*)c.arguments[lane];
    for (int r = 0; r < count * k / (WARP * each); ++r)
      for (int q = 0; q < each; ++q) {
        int row = lane / 4 + 8 * (r % halves), x = each * (lane % 4 + 4 * (r / halves)) + q;
        rows[row * k + x] = element(type, side ? f.b : f.a, r * each + q);
      }
  }
  return rows;
}
}  // namespace

// d += (a * factors) * (b * factors) of m x k and k x n elements; sums are exact to double and
// rounded once.
void mma_scaled(int m, int n, int k, int a_type, int b_type, int factor_type, int count, int first,
                int a_selector, int b_selector, void* d, const void* a, const void* b,
                unsigned a_factors, unsigned b_factors) {
  std::string what = "mma.m" + std::to_string(m) + "n" + std::to_string(n) + "k" + std::to_string(k);
  ScaledFragments own{d, a, b, {a_factors, b_factors}};
  Factors factors{factor_type, count, first, {a_selector, b_selector}};
  meet_warp(what + " with factors", 0xffffffffu, &own, [=](Collective& c) {
    std::vector<double> left = rows_of(c, m, k, 0, a_type), right = rows_of(c, n, k, 1, b_type);
    scale(c, left, k, 0, factors);
    scale(c, right, k, 1, factors);
    for (int lane = 0; lane < WARP; ++lane) {
      ScaledFragments& f = *(ScaledFragments*)c.arguments[lane];
      for (int i = 0; i < m * n / WARP; ++i) {
        int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        double sum = element(F32, f.d, i);
        for (int x = 0; x < k; ++x) sum += left[row * k + x] * right[column * k + x];
        set_element(F32, f.d, i, sum);
      }
    }
  });
}

namespace {
// A subnormal number of a type as zero, where the instruction flushes.
double flushed(int type, double value, bool flushes) {
  return flushes && fabs(value) < (type == F16 ? 0x1p-14 : 0x1p-126) ? 0 : value;
}
}  // namespace

// 16 x 16 sums of k products by a wavefront; sums are exact to double and rounded once. gfx90a
// flushes subnormal numbers, given and made, in products of 16-bit floats. A lane has four rows of
// a column of D: neighbours, but every fourth one where D is of float64.
void mfma(int k, int a_type, int b_type, int c_type, bool flushes, void* d, const void* a,
          const void* b) {
  std::string what = "mfma.16x16x" + std::to_string(k);
  Fragments own{d, a, b};
  if (machine.warp != 64) fail(what + ": expected wavefronts of 64 lanes");
  meet_warp(what, ALL_LANES, &own, [=](Collective& c) {
    int each = k / 4;  // elements of a lane
    std::vector<double> left(16 * k), right(16 * k);
    for (int lane = 0; lane < 64; ++lane) {
      Fragments& f = *(Fragments*)c.arguments[lane];
      for (int e = 0; e < each; ++e) {
        int at = lane % 16 * k + lane / 16 * each + e;
        left[at] = flushed(a_type, element(a_type, f.a, e), flushes);
        right[at] = flushed(b_type, element(b_type, f.b, e), flushes);
      }
    }
    for (int lane = 0; lane < 64; ++lane) {
      Fragments& f = *(Fragments*)c.arguments[lane];
      for (int e = 0; e < 4; ++e) {
        int row = c_type == F64 ? 4 * e + lane / 16 : lane / 16 * 4 + e;
        double sum = flushed(c_type, element(c_type, f.d, e), flushes);
        for (int x = 0; x < k; ++x) sum += left[row * k + x] * right[lane % 16 * k + x];
        set_element(c_type, f.d, e, flushed(c_type, sum, flushes));
      }
    }
  });
}

// m8n8k4 of float16 (sm_70): lanes 4 q .. 4 q + 3 and those 16 further on compute one product.
void mma_quad(int c_type, void* d, const void* a, const void* b, bool a_row, bool b_col) {
  std::string what = "mma.m8n8k4";
  Fragments own{d, a, b};
  meet_warp(what, 0xffffffffu, &own, [=](Collective& c) {
    for (int pair = 0; pair < 4; ++pair) {
      double left[8][4], right[4][8];
      for (int x = 0; x < 8; ++x) {
        int lane = 4 * pair + x % 4 + (x < 4 ? 0 : 16), half = x < 4 ? 0 : 4;
        Fragments& f = *(Fragments*)c.arguments[lane];
        for (int i = 0; i < 4; ++i) {
          double u = element(F16, f.a, i), v = element(F16, f.b, i);
          if (a_row) left[x % 4 + half][i] = u;
          else left[i + half][x % 4] = u;
          if (b_col) right[i][x % 4 + half] = v;
          else right[x % 4][i + half] = v;
        }
      }
      for (int x = 0; x < 8; ++x) {
        int lane = 4 * pair + x % 4 + (x < 4 ? 0 : 16), half = x < 4 ? 0 : 4;
        Fragments& f = *(Fragments*)c.arguments[lane];
        for (int i = 0; i < 8; ++i) {
          int row = x % 4 + half, column = i;
          if (c_type == F32) {
            row = (lane & 1) + (i & 2) + half;
            column = (i & 4) + (lane & 2) + (i & 1);
          }
          double sum = element(c_type, f.d, i);
          for (int y = 0; y < 4; ++y) sum += left[row][y] * right[y][column];
          set_element(c_type, f.d, i, sum);
        }
      }
    }
  });
}
}  // namespace emu
