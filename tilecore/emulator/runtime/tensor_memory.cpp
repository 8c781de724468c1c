// Tensor memory (tcgen05): 128 lanes of 512 columns, products that complete with a barrier.
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
namespace {
constexpr int LANES = 128, COLUMNS = 512;
constexpr int A_COLUMNS = 8;  // of the A of one product: 32 bytes of each row

TensorMemory& memory() {
  TensorMemory& m = my_block().tensor;
  if (m.cells.empty()) m.cells.assign(LANES * COLUMNS, 0xffffffffu);  // NaN
  return m;
}
void check_columns(const TensorMemory& m, unsigned address, int columns, const char* what) {
  unsigned first = address & 0xffff;
  for (unsigned c = first; c < first + columns; ++c)
    if (c >= COLUMNS || !m.is_used[c])
      fail(std::string(what) + ": column " + std::to_string(c) + " of tensor memory is not allocated");
}
TensorOperand fields(uint64_t bits) {
  static const unsigned swizzles[] = {0, 0, 128, 0, 64, 0, 32, 0};
  if ((bits >> 46 & 7) != 1) fail("tcgen05.mma: the descriptor is not one of tcgen05");
  return {(unsigned)(bits & 0x3fff) << 4, (unsigned)(bits >> 16 & 0x3fff) << 4,
          (unsigned)(bits >> 32 & 0x3fff) << 4, swizzles[bits >> 61]};
}
// The lane that holds a row of a product of 128 or 64 rows.
int lane_of_row(int m, int row) { return m == LANES ? row : row % 16 + 32 * (row / 16); }

void multiply(Block& block, const TensorProduct& p) {
  TensorMemory& m = block.tensor;
  int k = 256 / width(p.a_type), size = width(p.b_type) / 8;
  std::vector<double> left(k), right(k * p.n);
  for (int n = 0; n < p.n; ++n)
    for (int x = 0; x < k; ++x)
      right[n * k + x] =
          element(p.b_type, block.shared + operand_place(p.b, n, x, size, p.b_transposed), 0);
  for (int row = 0; row < p.m; ++row) {
    const uint32_t* lane = &m.cells[lane_of_row(p.m, row) * COLUMNS + (p.a.start & 0xffff)];
    for (int x = 0; x < k; ++x)
      left[x] = p.a_in_tensor
                    ? element(p.a_type, lane, x)
                    : element(p.a_type,
                              block.shared + operand_place(p.a, row, x, size, p.a_transposed), 0);
    for (int n = 0; n < p.n; ++n) {
      uint32_t* cell = &m.cells[lane_of_row(p.m, row) * COLUMNS + (p.d & 0xffff) + n];
      double sum = p.accumulates ? element(p.c_type, cell, 0) : 0.0;
      for (int x = 0; x < k; ++x) sum += left[x] * right[n * k + x];
      set_element(p.c_type, cell, 0, sum);
    }
  }
}
}  // namespace

void tensor_allocate(void* address, int columns) {
  meet_warp("tcgen05.alloc", 0xffffffffu, nullptr, [=](Collective&) {
    TensorMemory& m = memory();
    int first = 0;
    while (first < COLUMNS) {  // blocks of a power of two lie at multiples of their size
      bool is_free = true;
      for (int c = first; c < first + columns; ++c) is_free &= !m.is_used[c];
      if (is_free) break;
      first += columns;
    }
    if (first >= COLUMNS) fail("tcgen05.alloc: no " + std::to_string(columns) + " columns are free");
    for (int c = first; c < first + columns; ++c) m.is_used[c] = true;
    unsigned offset = shared_offset_of(address, "tcgen05.alloc");
    const Clock& clock = clock_of(me());
    shared_at(my_block(), offset, 4, "tcgen05.alloc");
    on_write(my_block(), offset, 4, thread_agent(me()), clock, clock.at(thread_agent(me())));
    memcpy(address, &first, 4);
  });
}
void tensor_free(unsigned address, int columns) {
  meet_warp("tcgen05.dealloc", 0xffffffffu, nullptr, [=](Collective&) {
    TensorMemory& m = memory();
    check_columns(m, address, columns, "tcgen05.dealloc");
    for (int c = 0; c < columns; ++c) m.is_used[(address & 0xffff) + c] = false;
  });
}
void tensor_mma(int m_rows, int n, int a_type, int b_type, int c_type, unsigned d,
                unsigned long long a, unsigned long long b, bool accumulates, bool a_transposed,
                bool b_transposed, bool a_in_tensor) {
  settle();
  Block& block = my_block();
  TensorMemory& m = memory();
  check_columns(m, d, n, "tcgen05.mma");
  if (d >> 16) fail("tcgen05.mma: the accumulator does not begin in lane 0");
  TensorOperand left{(unsigned)a, 0, 0, 0};
  if (!a_in_tensor) left = fields(a);
  else check_columns(m, (unsigned)a, A_COLUMNS, "tcgen05.mma, A");
  TensorProduct p{m_rows, n, a_type, b_type, c_type, d, left, fields(b), accumulates,
                  a_transposed, b_transposed, a_in_tensor};
  int agent = tensor_agent(block);
  Clock clock = clock_of(me());
  clock.set(agent, ++m.time);
  int size = width(b_type) / 8, step = 16 / size, k = 256 / width(a_type);
  auto note = [&](const TensorOperand& o, int extent, bool transposed) {
    for (int x = 0; x < extent; x += transposed ? step : 1)
      for (int y = 0; y < k; y += transposed ? 1 : step) {
        unsigned at = operand_place(o, x, y, size, transposed);
        shared_at(block, at, 16, "tcgen05.mma");
        on_read(block, at, 16, agent, clock, true);
      }
  };
  if (!a_in_tensor) note(p.a, m_rows, a_transposed);
  note(p.b, n, b_transposed);
  if (machine.delivery == EARLY) {
    multiply(block, p);
    p.is_done = true;
  }
  m.products.push_back(p);
  maybe_pause();
}
void tensor_commit(void* barrier, int mask) {
  settle();
  Block* block = &my_block();
  TensorMemory& m = memory();
  unsigned offset = shared_offset_of(barrier, "tcgen05.commit");
  memory_barrier(*block, barrier, "tcgen05.commit");
  unsigned long long last = m.first + m.products.size();
  Clock clock = clock_of(me());
  clock.set(tensor_agent(*block), m.time);
  tick(me());
  auto complete = std::make_shared<std::function<void()>>([=] {
    TensorMemory& tensor = block->tensor;
    while (tensor.first < last) {  // in order, whatever the schedule
      if (!tensor.products.front().is_done) multiply(*block, tensor.products.front());
      tensor.products.pop_front();
      tensor.first++;
    }
    for (Block* other : block->cluster->blocks) {
      if (mask ? !(mask >> other->rank & 1) : other != block) continue;
      auto tell = [=] {
        if (other->alive == 0) fail("tcgen05.commit: a block has exited");
        auto found = other->barriers.find(offset);
        if (found == other->barriers.end()) fail("tcgen05.commit: the barrier is gone");
        arrive(found->second, 1, clock, "tcgen05.commit");
      };
      if (other == block) tell();
      else post("tcgen05.commit in another block", tell, nullptr);  // on its way for itself
    }
  });
  m.commits.push_back(complete);
  post("tcgen05.commit", [=] {  // commits complete in order, whatever the schedule
    auto& open = block->tensor.commits;
    while (*complete) {
      auto next = open.front();
      open.pop_front();
      (*next)();
      *next = nullptr;
    }
  }, [=] { return !*complete; });
  maybe_pause();
}
// The cells that a thread moves, in the order of its registers.
static std::vector<unsigned*> own_cells(unsigned address, int count, bool halves, bool writes,
                                        const char* what) {
  TensorMemory& m = memory();
  int columns = halves ? 8 * count : count;
  check_columns(m, address, columns, what);
  unsigned quarter = me().rank / WARP % 4 * WARP, first = address & 0xffff;
  if (address >> 16 != quarter)
    fail(std::string(what) + ": lane " + std::to_string(address >> 16) + ", but the warp has lanes " +
         std::to_string(quarter) + " to " + std::to_string(quarter + 31));
  for (const TensorProduct& p : m.products) {
    unsigned d = p.d & 0xffff;
    if (d < first + columns && first < d + p.n)
      fail(std::string(what) + ": a product into these columns is still in flight");
    unsigned a = p.a.start & 0xffff;
    if (writes && p.a_in_tensor && a < first + columns && first < a + A_COLUMNS)
      fail(std::string(what) + ": a product that reads these columns is still in flight");
  }
  std::vector<unsigned*> cells;
  int lane = lane_of(me());
  auto add = [&](int row, int column) {
    cells.push_back(&m.cells[(quarter + row) * COLUMNS + first + column]);
  };
  if (!halves)
    for (int c = 0; c < columns; ++c) add(lane, c);
  else
    for (int r = 0; r < 4 * count; ++r)
      add(lane / 4 + 8 * (r / 2 % 2), 8 * (r / 4) + 2 * (lane % 4) + r % 2);
  return cells;
}
void tensor_load(void* d, unsigned address, int count, bool halves) {
  meet_warp("tcgen05.ld.x" + std::to_string(count), 0xffffffffu, nullptr, [](Collective&) {});
  std::vector<unsigned> values;
  for (unsigned* cell : own_cells(address, count, halves, false, "tcgen05.ld")) values.push_back(*cell);
  me().tensor_loads.push_back([=] { memcpy(d, values.data(), 4 * values.size()); });
  if (machine.delivery == EARLY) me().tensor_loads.back()();
}
void tensor_store(unsigned address, const void* s, int count, bool halves) {
  meet_warp("tcgen05.st.x" + std::to_string(count), 0xffffffffu, nullptr, [](Collective&) {});
  const unsigned* value = (const unsigned*)s;
  for (unsigned* cell : own_cells(address, count, halves, true, "tcgen05.st")) memcpy(cell, value++, 4);
}
void tensor_wait(bool loads) {
  meet_warp(loads ? "tcgen05.wait::ld" : "tcgen05.wait::st", 0xffffffffu, nullptr,
            [](Collective&) {});
  if (!loads) return;
  if (machine.delivery != EARLY)
    for (auto& load : me().tensor_loads) load();
  me().tensor_loads.clear();
}
void leave_tensor_memory(const Block& block) {
  if (!block.tensor.products.empty()) fail("tcgen05.mma is still in flight when the block exits");
  for (bool used : block.tensor.is_used)
    if (used) fail("tensor memory was not freed when the block exits");
}
}  // namespace emu
