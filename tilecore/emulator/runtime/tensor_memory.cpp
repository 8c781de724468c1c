// Tensor memory (tcgen05): 128 lanes of 512 columns, products that complete with a barrier.
#include <algorithm>
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
namespace {
constexpr int LANES = 128, COLUMNS = 512;
constexpr int A_COLUMNS = 8;  // of the A of one product: 32 bytes of each row
constexpr int COPIED = 4;     // columns that a copy of words fills

TensorMemory& memory_of(Block& block) {
  TensorMemory& m = block.tensor;
  if (m.cells.empty()) m.cells.assign(LANES * COLUMNS, 0xffffffffu);  // NaN
  return m;
}
// The own memory, for an instruction of one block or of a pair; a kernel has one kind of them.
TensorMemory& memory(bool pair, const char* what) {
  TensorMemory& m = memory_of(my_block());
  if (m.group && m.group != 1 + pair)
    fail(std::string(what) + ": cta_group::" + std::to_string(1 + pair) +
         " in a kernel that has instructions of cta_group::" + std::to_string(m.group));
  m.group = 1 + pair;
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
  if ((bits >> 46 & 7) != 1) fail("tcgen05: the descriptor is not one of tcgen05");
  return {(unsigned)(bits & 0x3fff) << 4, (unsigned)(bits >> 16 & 0x3fff) << 4,
          (unsigned)(bits >> 32 & 0x3fff) << 4, swizzles[bits >> 61]};
}
// Sums of a product in a block: how many columns they take, and which cell one of them is in.
int share_of(const TensorProduct& p) { return p.form.n / (int)p.blocks.size(); }
bool is_folded(const TensorProduct& p) {  // data path layout B
  return p.form.is_pair && p.form.m == LANES;
}
int columns_of(const TensorProduct& p) { return is_folded(p) ? share_of(p) : p.form.n; }
uint32_t* cell_of(TensorMemory& m, const TensorProduct& p, int row, int n) {
  int lane = row, column = n, half = LANES / 2;
  if (is_folded(p)) {
    lane = row + n / share_of(p) * half;
    column = n % share_of(p);
  } else if (p.form.m == half) {
    lane = row % 16 + 32 * (row / 16);
  }
  return &m.cells[lane * COLUMNS + (p.d & 0xffff) + column];
}

// Bytes of an element as operands are addressed by; one of 4 bits shares a byte along K.
int bytes_of(int type) { return std::max(1, width(type) / 8); }
double operand_element(const Block& block, const TensorOperand& o, int type, int x, int k,
                       bool transposed) {
  int each = width(type) == 4 ? 2 : 1;
  unsigned at = operand_place(o, x, k / each, bytes_of(type), transposed);
  return element(type, block.shared + at, k % each);
}
// The factor of element `k` along K of a row of A or column of B, as a quarter of the lanes has it.
double factor_of(const TensorProduct& p, const Block& block, int side, int quarter, int x, int k) {
  const TensorFactors& f = p.factors[side];
  int column = (int)(f.place & 0xffff) + x / WARP, lane = quarter * WARP + x % WARP;
  int byte = f.byte + k * p.form.factors / (256 / width(p.form.a_type));
  return element(p.form.factor_type, &block.tensor.cells[lane * COLUMNS + column], byte);
}
void copy_words(const TensorProduct& p) {
  for (Block* block : p.blocks)
    for (int lane = 0; lane < LANES; ++lane)
      memcpy(&block->tensor.cells[lane * COLUMNS + (p.d & 0xffff)],
             block->shared + operand_place(p.b, lane % WARP, 0, 1, false), 4 * COPIED);
}

void multiply(const TensorProduct& p) {
  const TensorForm& f = p.form;
  if (f.is_copy) return copy_words(p);
  int k = 256 / width(f.a_type), share = share_of(p);
  std::vector<double> left(k), right(k * f.n), scaled(right);
  for (int n = 0; n < f.n; ++n)  // each block has some columns of B
    for (int x = 0; x < k; ++x)
      right[n * k + x] =
          operand_element(*p.blocks[n / share], p.b, f.b_type, n % share, x, f.b_transposed);
  for (Block* block : p.blocks)  // and some rows of A and of the sums
    for (int row = 0; row < f.m / (int)p.blocks.size(); ++row) {
      TensorMemory& m = block->tensor;
      const uint32_t* lane = &m.cells[row * COLUMNS + (p.a.start & 0xffff)];
      if (row % WARP == 0) scaled = right;
      if (f.factors && row % WARP == 0)
        for (int n = 0; n < f.n; ++n)
          for (int x = 0; x < k; ++x) scaled[n * k + x] *= factor_of(p, *block, 1, row / WARP, n, x);
      for (int x = 0; x < k; ++x) {
        left[x] = f.a_in_tensor ? element(f.a_type, lane, x)
                                : operand_element(*block, p.a, f.a_type, row, x, f.a_transposed);
        if (f.factors) left[x] *= factor_of(p, *block, 0, row / WARP, row, x);
      }
      for (int n = 0; n < f.n; ++n) {
        uint32_t* cell = cell_of(m, p, row, n);
        double sum = p.accumulates ? element(f.c_type, cell, 0) : 0.0;
        for (int x = 0; x < k; ++x) sum += left[x] * scaled[n * k + x];
        set_element(f.c_type, cell, 0, sum);
      }
    }
}
int factor_columns(const TensorProduct& p, int side) {
  return ((side ? p.form.n : p.form.m / (int)p.blocks.size()) + WARP - 1) / WARP;
}
// Waits for the other block to allocate or free as well; both must be told the same.
void meet_peer(TensorMemory& m, const char* what) {
  const TensorMemory* other = &peer_of(my_block()).tensor;
  size_t calls = m.pair_calls.size();
  wait_until(std::string(what) + " by the other block of the pair",
             [=] { return other->pair_calls.size() >= calls; });
  if (other->pair_calls[calls - 1] != m.pair_calls[calls - 1])
    fail(std::string(what) + ": the blocks of the pair give different addresses or columns");
}
// Fails if a product that is in flight, of the block or of its pair, uses columns.
void check_in_flight(Block& block, unsigned first, int columns, bool writes, const char* what) {
  auto look = [&](const Block& owner) {
    for (const TensorProduct& p : owner.tensor.products) {
      if (std::find(p.blocks.begin(), p.blocks.end(), &block) == p.blocks.end()) continue;
      unsigned d = p.d & 0xffff, a = p.a.start & 0xffff;
      if (d < first + columns && first < d + columns_of(p))
        fail(std::string(what) + ": a product into these columns is still in flight");
      if (writes && p.form.a_in_tensor && a < first + columns && first < a + A_COLUMNS)
        fail(std::string(what) + ": a product that reads these columns is still in flight");
      for (int side = 0; writes && p.form.factors && side < 2; ++side) {
        unsigned f = p.factors[side].place & 0xffff, last = f + factor_columns(p, side);
        if (f < first + columns && first < last)
          fail(std::string(what) + ": a product that reads these factors is still in flight");
      }
    }
  };
  look(block);
  if (block.tensor.group == 2) look(peer_of(block));
}
}  // namespace

Block& peer_of(const Block& block) {
  auto& blocks = block.cluster->blocks;
  size_t rank = block.rank ^ 1;
  if (rank >= blocks.size()) fail("cta_group::2: the block has no other one beside it in its cluster");
  return *blocks[rank];
}
void tensor_allocate(void* address, int columns, bool pair) {
  const char* what = "tcgen05.alloc";
  meet_warp(what, 0xffffffffu, nullptr, [=](Collective&) {
    TensorMemory& m = memory(pair, what);
    int first = 0;
    while (first < COLUMNS) {  // blocks of a power of two lie at multiples of their size
      bool is_free = true;
      for (int c = first; c < first + columns; ++c) is_free &= !m.is_used[c];
      if (is_free) break;
      first += columns;
    }
    if (first >= COLUMNS) fail("tcgen05.alloc: no " + std::to_string(columns) + " columns are free");
    for (int c = first; c < first + columns; ++c) m.is_used[c] = true;
    unsigned offset = shared_offset_of(address, what);
    m.pair_calls.push_back({offset, columns});
    const Clock& clock = clock_of(me());
    shared_at(my_block(), offset, 4, what);
    on_write(my_block(), offset, 4, thread_agent(me()), clock, clock.at(thread_agent(me())));
    memcpy(address, &first, 4);
  });
  if (pair) meet_peer(my_block().tensor, what);
}
void tensor_free(unsigned address, int columns, bool pair) {
  const char* what = "tcgen05.dealloc";
  meet_warp(what, 0xffffffffu, nullptr, [=](Collective&) {
    TensorMemory& m = memory(pair, what);
    check_columns(m, address, columns, what);
    check_in_flight(my_block(), address & 0xffff, columns, true, what);
    for (int c = 0; c < columns; ++c) m.is_used[(address & 0xffff) + c] = false;
    m.pair_calls.push_back({address, columns});
  });
  if (pair) meet_peer(my_block().tensor, what);
}
// The blocks of an instruction: the own one, and the other one of its pair.
static std::vector<Block*> unit_blocks(Block& block, bool pair, const char* what) {
  std::vector<Block*> blocks{&block};
  if (!pair) return blocks;
  std::string name = std::string(what) + " of two blocks: ";
  if (block.rank % 2) fail(name + "expected a thread of the one of even rank");
  blocks.push_back(&peer_of(block));
  if (blocks[1]->alive == 0) fail(name + "the other one has exited");
  return blocks;
}
// Gives the unit a product, or a copy of words: later ones of the block follow it.
static void begin(TensorMemory& m, TensorProduct p) {
  if (machine.delivery == EARLY) {
    multiply(p);
    p.is_done = true;
  }
  m.products.push_back(std::move(p));
  maybe_pause();
}
static void product(const TensorForm& form, unsigned d, unsigned long long a, unsigned long long b,
                    bool accumulates, TensorFactors a_factors, TensorFactors b_factors) {
  settle();
  Block& block = my_block();
  TensorMemory& m = memory(form.is_pair, "tcgen05.mma");
  if (d >> 16) fail("tcgen05.mma: the accumulator does not begin in lane 0");
  TensorOperand left{(unsigned)a, 0, 0, 0};
  if (!form.a_in_tensor) left = fields(a);
  std::vector<Block*> blocks = unit_blocks(block, form.is_pair, "tcgen05.mma");
  TensorProduct p{form, blocks, d, left, fields(b), accumulates, {a_factors, b_factors}};
  int agent = tensor_agent(block);
  Clock clock = clock_of(me());
  clock.set(agent, ++m.time);
  int size = bytes_of(form.b_type), step = 16 / size, k = 32 / size;
  auto note = [&](Block& owner, const TensorOperand& o, int extent, bool transposed) {
    for (int x = 0; x < extent; x += transposed ? step : 1)
      for (int y = 0; y < k; y += transposed ? 1 : step) {
        unsigned at = operand_place(o, x, y, size, transposed);
        shared_at(owner, at, 16, "tcgen05.mma");
        on_read(owner, at, 16, agent, clock, true);
      }
  };
  for (Block* owner : p.blocks) {
    check_columns(memory_of(*owner), d, columns_of(p), "tcgen05.mma");
    if (form.a_in_tensor) check_columns(owner->tensor, (unsigned)a, A_COLUMNS, "tcgen05.mma, A");
    else note(*owner, p.a, form.m / (int)p.blocks.size(), form.a_transposed);
    note(*owner, p.b, share_of(p), form.b_transposed);
  }
  begin(m, p);
}
void tensor_mma(const TensorForm& form, unsigned d, unsigned long long a, unsigned long long b,
                bool accumulates) {
  product(form, d, a, b, accumulates, {}, {});
}
void tensor_mma_scaled(const TensorForm& form, unsigned d, unsigned long long a,
                       unsigned long long b, TensorFactors a_factors, TensorFactors b_factors,
                       bool accumulates) {
  const char* what = "tcgen05.mma, factors";
  for (const TensorFactors& f : {a_factors, b_factors})
    if (f.byte < 0 || f.byte > 4 - form.factors || f.byte % form.factors)
      fail(std::string(what) + ": byte " + std::to_string(f.byte) + " of words, of which " +
           std::to_string(form.factors) + " count");
  if (form.m / (1 + form.is_pair) != LANES) fail(std::string(what) + ": expected 128 rows of a block");
  TensorMemory& m = memory(form.is_pair, what);
  check_columns(m, a_factors.place, LANES / WARP, what);
  check_columns(m, b_factors.place, (form.n + WARP - 1) / WARP, what);
  product(form, d, a, b, accumulates, a_factors, b_factors);
}
// 32 rows of 16 bytes of shared memory to four columns of each quarter of the lanes.
void tensor_copy(unsigned d, unsigned long long source, bool pair) {
  settle();
  const char* what = "tcgen05.cp";
  Block& block = my_block();
  TensorMemory& m = memory(pair, what);
  if (d >> 16 || d % COPIED) fail("tcgen05.cp: expected lane 0 of a column that is a multiple of 4");
  TensorForm form{LANES, COPIED, U32, U32, U32, false, false, false, false};
  form.is_copy = true;
  TensorProduct p{form, unit_blocks(block, pair, what), d, {}, fields(source), false};
  int agent = tensor_agent(block);
  Clock clock = clock_of(me());
  clock.set(agent, ++m.time);
  for (Block* owner : p.blocks) {
    check_columns(memory_of(*owner), d, COPIED, what);
    for (int row = 0; row < WARP; ++row) {
      unsigned at = operand_place(p.b, row, 0, 1, false);
      shared_at(*owner, at, 16, what);
      on_read(*owner, at, 16, agent, clock, true);
    }
  }
  begin(m, p);
}
void tensor_commit(void* barrier, int mask, bool pair) {
  settle();
  Block* block = &my_block();
  TensorMemory& m = memory(pair, "tcgen05.commit");
  unsigned offset = shared_offset_of(barrier, "tcgen05.commit");
  memory_barrier(*block, barrier, "tcgen05.commit");
  unsigned long long last = m.first + m.products.size();
  Clock clock = clock_of(me());
  clock.set(tensor_agent(*block), m.time);
  tick(me());
  auto complete = std::make_shared<std::function<void()>>([=] {
    TensorMemory& tensor = block->tensor;
    while (tensor.first < last) {  // in order, whatever the schedule
      if (!tensor.products.front().is_done) multiply(tensor.products.front());
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
  TensorMemory& m = memory_of(my_block());
  int columns = halves ? 8 * count : count;
  check_columns(m, address, columns, what);
  unsigned quarter = me().rank / WARP % 4 * WARP, first = address & 0xffff;
  if (address >> 16 != quarter)
    fail(std::string(what) + ": lane " + std::to_string(address >> 16) + ", but the warp has lanes " +
         std::to_string(quarter) + " to " + std::to_string(quarter + 31));
  check_in_flight(my_block(), first, columns, writes, what);
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
