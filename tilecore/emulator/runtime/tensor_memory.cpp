// Tensor memory (tcgen05): 128 lanes of 512 columns, products that complete with a barrier.
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
namespace {
constexpr int LANES = 128, COLUMNS = 512;

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
void multiply(Block& block, const TensorProduct& p) {
  TensorMemory& m = block.tensor;
  int k = 256 / width(p.a_type), size = width(p.b_type) / 8;
  for (int row = 0; row < LANES; ++row)
    for (int n = 0; n < p.n; ++n) {
      uint32_t* cell = &m.cells[row * COLUMNS + (p.d & 0xffff) + n];
      double sum = p.accumulates ? element(p.c_type, cell, 0) : 0.0;
      for (int x = 0; x < k; ++x) {
        unsigned a = operand_place(p.a, row, x, size, p.a_transposed);
        unsigned b = operand_place(p.b, n, x, size, p.b_transposed);
        sum += element(p.a_type, block.shared + a, 0) * element(p.b_type, block.shared + b, 0);
      }
      set_element(p.c_type, cell, 0, sum);
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
void tensor_mma(int n, int a_type, int b_type, int c_type, unsigned d, unsigned long long a,
                unsigned long long b, bool accumulates, bool a_transposed, bool b_transposed) {
  settle();
  Block& block = my_block();
  TensorMemory& m = memory();
  check_columns(m, d, n, "tcgen05.mma");
  TensorProduct p{n,         a_type,      b_type,       c_type,       d,
                  fields(a), fields(b), accumulates, a_transposed, b_transposed};
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
  note(p.a, LANES, a_transposed);
  note(p.b, n, b_transposed);
  if (machine.delivery == EARLY) {
    multiply(block, p);
    p.is_done = true;
  }
  m.products.push_back(p);
  maybe_pause();
}
void tensor_commit(void* barrier) {
  settle();
  Block* block = &my_block();
  TensorMemory& m = memory();
  unsigned offset = shared_offset_of(barrier, "tcgen05.commit");
  memory_barrier(*block, barrier, "tcgen05.commit");
  unsigned long long last = m.first + m.products.size();
  Clock clock = clock_of(me());
  clock.set(tensor_agent(*block), m.time);
  tick(me());
  post("tcgen05.commit", [=] {
    TensorMemory& tensor = block->tensor;
    while (tensor.first < last) {  // in order, whatever the schedule
      if (!tensor.products.front().is_done) multiply(*block, tensor.products.front());
      tensor.products.pop_front();
      tensor.first++;
    }
    auto found = block->barriers.find(offset);
    if (found == block->barriers.end()) fail("tcgen05.commit: the barrier is gone");
    arrive(found->second, 1, clock, "tcgen05.commit");
  });
  maybe_pause();
}
static unsigned* lane_cells(unsigned address, int columns, const char* what) {
  TensorMemory& m = memory();
  check_columns(m, address, columns, what);
  unsigned quarter = me().rank / WARP % 4 * WARP, first = address & 0xffff;
  if (address >> 16 != quarter)
    fail(std::string(what) + ": lane " + std::to_string(address >> 16) + ", but the warp has lanes " +
         std::to_string(quarter) + " to " + std::to_string(quarter + 31));
  for (const TensorProduct& p : m.products) {
    unsigned d = p.d & 0xffff;
    if (d < first + columns && first < d + p.n)
      fail(std::string(what) + ": a product into these columns is still in flight");
  }
  return &m.cells[(quarter + lane_of(me())) * COLUMNS + first];
}
void tensor_load(void* d, unsigned address, int columns) {
  meet_warp("tcgen05.ld.x" + std::to_string(columns), 0xffffffffu, nullptr, [](Collective&) {});
  const unsigned* cells = lane_cells(address, columns, "tcgen05.ld");
  std::vector<unsigned> values(cells, cells + columns);
  me().tensor_loads.push_back([=] { memcpy(d, values.data(), 4 * values.size()); });
  if (machine.delivery == EARLY) me().tensor_loads.back()();
}
void tensor_store(unsigned address, const void* s, int columns) {
  meet_warp("tcgen05.st.x" + std::to_string(columns), 0xffffffffu, nullptr, [](Collective&) {});
  memcpy(lane_cells(address, columns, "tcgen05.st"), s, 4 * columns);
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
