// Products of warpgroups (wgmma): operands in shared memory by descriptor, complete at their wait.
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
namespace {
constexpr int ROWS = 64;

typedef TensorOperand Operand;
Operand fields(uint64_t bits) {
  static const unsigned swizzles[] = {0, 128, 64, 32};
  return {(unsigned)(bits & 0x3fff) << 4, (unsigned)(bits >> 16 & 0x3fff) << 4,
          (unsigned)(bits >> 32 & 0x3fff) << 4, swizzles[bits >> 62]};
}
}  // namespace

unsigned operand_place(const TensorOperand& o, int x, int k, int size, bool transposed) {
  if (!o.swizzle) {
    if (transposed) fail("an M- or N-major operand without swizzle is not emulated");
    int byte = k * size;
    return o.start + x / 8 * o.stride + byte / 16 * o.leading + x % 8 * 16 + byte % 16;
  }
  int along = (transposed ? x : k) * size, across = transposed ? k : x, w = (int)o.swizzle;
  unsigned offset = o.start + across / 8 * o.stride + across % 8 * w;
  offset += transposed ? along / w * o.leading + along % w : along;
  return swizzled(offset, o.swizzle);
}
EMU_VECTORS void add_scaled(double* __restrict sums, const double* __restrict row, double factor, int n) {
  for (int i = 0; i < n; ++i) sums[i] += factor * row[i];
}
namespace {
int products_of(int type) { return 256 / width(type); }

void multiply(Block& block, const Product& p) {
  int k = products_of(p.a_type), each = 32 / width(p.a_type), size = width(p.b_type) / 8;
  std::vector<double> left(ROWS * k), right(k * p.n);
  Operand a = fields(p.a), b = fields(p.b);
  if (p.registers.empty()) {
    for (int m = 0; m < ROWS; ++m)
      for (int x = 0; x < k; ++x)
        left[m * k + x] =
            element(p.a_type, block.shared + operand_place(a, m, x, size, p.a_transposed), 0);
  } else {
    for (int t = 0; t < WARPGROUP; ++t)
      for (int r = 0; r < 4; ++r)
        for (int q = 0; q < each; ++q) {
          int m = 16 * (t / WARP) + t % WARP / 4 + 8 * (r % 2);
          int x = each * (t % 4) + 4 * each * (r / 2) + q;
          left[m * k + x] = element(p.a_type, p.registers[t], r * each + q);
        }
  }
  for (int x = 0; x < k; ++x)
    for (int n = 0; n < p.n; ++n)
      right[x * p.n + n] =
          element(p.b_type, block.shared + operand_place(b, n, x, size, p.b_transposed), 0);
  std::vector<double> sums(p.n);
  for (int m = 0; m < ROWS; ++m) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int x = 0; x < k; ++x) add_scaled(sums.data(), &right[x * p.n], left[m * k + x], p.n);
    for (int n = 0; n < p.n; ++n) {
      int t = m / 16 * WARP + m % 8 * 4 + n % 8 / 2;
      int i = 4 * (n / 8) + 2 * (m % 16 / 8) + n % 2;
      double old = p.accumulates ? element(p.c_type, p.d[t], i) : 0.0;
      set_element(p.c_type, p.d[t], i, old + sums[n]);
    }
  }
}
size_t accumulator_bytes(const Product& p) { return ROWS * p.n / WARPGROUP * width(p.c_type) / 8; }

std::vector<unsigned char> accumulators(const Product& p) {
  std::vector<unsigned char> made;
  for (void* d : p.d) {
    const unsigned char* bytes = (const unsigned char*)d;
    made.insert(made.end(), bytes, bytes + accumulator_bytes(p));
  }
  return made;
}
void complete(Block& block, const Product& p) {
  if (p.is_done) return;
  if (!p.before.empty() && p.before != accumulators(p))
    fail("the accumulator of a wgmma changes while it is in flight");
  multiply(block, p);
}
// The operands in shared memory are read by the warpgroup's asynchronous agent.
void note_reads(Block& block, int group, const Product& p, const Clock& seen) {
  int agent = group_agent(block, group), size = width(p.b_type) / 8, k = products_of(p.a_type);
  Clock clock = seen;
  clock.set(agent, p.time);
  auto note = [&](uint64_t bits, int extent, bool transposed) {
    Operand o = fields(bits);
    int step = 16 / size;  // elements of 16 bytes, which no swizzle takes apart
    for (int x = 0; x < extent; x += transposed ? step : 1)
      for (int y = 0; y < k; y += transposed ? 1 : step) {
        unsigned at = operand_place(o, x, y, size, transposed);
        shared_at(block, at, 16, "wgmma");
        on_read(block, at, 16, agent, clock, true);
      }
  };
  if (p.registers.empty()) note(p.a, ROWS, p.a_transposed);
  note(p.b, p.n, p.b_transposed);
}
// The next product in flight on the accumulators of `p`, which is the i-th of the oldest group.
Product* following(Warpgroup& g, size_t i, const Product& p) {
  for (size_t group = 0; group <= g.groups.size(); ++group) {
    auto& products = group < g.groups.size() ? g.groups[group] : g.open;
    for (size_t j = group ? 0 : i + 1; j < products.size(); ++j)
      if (products[j].d[0] == p.d[0] && !products[j].is_done) return &products[j];
  }
  return nullptr;
}
struct Issue {
  void* d;
  const void* registers;
  uint64_t a, b;
};
}  // namespace

void wgmma(int n, int a_type, int b_type, int c_type, void* d, const void* registers,
           unsigned long long a, unsigned long long b, bool accumulates, bool a_transposed,
           bool b_transposed) {
  Issue own{d, registers, a, b};
  Block& block = my_block();
  int number = me().rank / WARPGROUP;
  meet_warpgroup("wgmma.m64n" + std::to_string(n), &own, [&](Warpgroup& group, Collective& c) {
    if (!group.is_fenced) fail("wgmma without wgmma.fence since the start or the last wait");
    Product p{n, a_type, b_type, c_type, a, b, accumulates, a_transposed, b_transposed};
    Clock clock;
    for (int t = 0; t < WARPGROUP; ++t) {
      Issue& issue = *(Issue*)c.arguments[t];
      if ((!registers && issue.a != a) || issue.b != b)
        fail("wgmma: the threads of the warpgroup pass different descriptors");
      p.d.push_back(issue.d);
      if (registers) p.registers.push_back(issue.registers);
      clock.join(clock_of(*block.fibers[number * WARPGROUP + t]));
    }
    p.time = ++group.products;
    note_reads(block, number, p, clock);
    bool is_first = true;
    auto same = [&](const std::vector<Product>& others) {
      for (const Product& other : others) is_first &= other.d[0] != p.d[0];
    };
    same(group.open);
    for (auto& others : group.groups) same(others);
    if (machine.delivery == EARLY) {
      multiply(block, p);
      p.is_done = true;
    } else if (is_first) {
      p.before = accumulators(p);
    }
    group.open.push_back(std::move(p));
  });
}
void wgmma_fence() {
  meet_warpgroup("wgmma.fence", nullptr, [](Warpgroup& g, Collective&) { g.is_fenced = true; });
}
void wgmma_commit() {
  meet_warpgroup("wgmma.commit_group", nullptr, [](Warpgroup& g, Collective&) {
    g.groups.push_back(std::move(g.open));
    g.open.clear();
  });
}
void wgmma_wait(int pending) {
  Block& block = my_block();
  int number = me().rank / WARPGROUP;
  meet_warpgroup("wgmma.wait_group", nullptr, [&](Warpgroup& g, Collective&) {
    while ((int)g.groups.size() > pending) {
      auto& products = g.groups.front();
      for (size_t i = 0; i < products.size(); ++i) {
        const Product& p = products[i];
        complete(block, p);
        if (Product* next = following(g, i, p)) next->before = accumulators(*next);
        for (int t = 0; t < WARPGROUP; ++t)
          clock_of(*block.fibers[number * WARPGROUP + t]).set(group_agent(block, number), p.time);
      }
      g.groups.pop_front();
    }
    g.is_fenced = false;
  });
}
// At its launch every thread of a block has the same share of the multiprocessor's registers.
static int registers_at_launch(const Block& block) {
  int share = 64 * 1024 / (((block.threads - 1) / WARPGROUP + 1) * WARPGROUP);
  return share > 256 ? 256 : share / 8 * 8;
}
void set_registers(int count, bool grows) {
  Block& block = my_block();
  meet_warpgroup("setmaxnreg", nullptr, [&](Warpgroup& g, Collective&) {
    if (!g.registers) g.registers = registers_at_launch(block);
    if (grows || g.registers < count) return;
    block.free_registers += g.registers - count;
    g.registers = count;
  });
  if (!grows) return;
  Warpgroup* group = &block.warpgroups[me().rank / WARPGROUP];
  wait_until("setmaxnreg.inc " + std::to_string(count), [&block, group, count] {
    if (group->registers >= count) return true;
    if (block.free_registers < count - group->registers) return false;
    block.free_registers -= count - group->registers;
    group->registers = count;
    machine.progress++;
    return true;
  });
}
}  // namespace emu
