// What threads of a block, a warp or a warpgroup do together.
#include "machine.h"

#include <cstring>

namespace emu {
int lane() { return me().rank % machine.warp; }

static uint64_t existing_lanes(const Block& block, int warp) {
  int lanes = std::min(machine.warp, block.threads - warp * machine.warp);
  return lanes == 64 ? ALL_LANES : ((uint64_t)1 << lanes) - 1;
}

// --- barriers of a block -------------------------------------------------------------------------
static NamedBarrier& arrive_at(int id, int threads, const char* what) {
  if (id < 0 || id >= NAMED_BARRIERS) fail("barrier " + std::to_string(id) + ": expected 0 to 15");
  if (threads % WARP && threads != my_block().threads)
    fail(std::string(what) + ": expected a multiple of 32 threads, found " + std::to_string(threads));
  if (threads > my_block().threads)
    fail(std::string(what) + ": " + std::to_string(threads) + " threads, the block has " +
         std::to_string(my_block().threads));
  NamedBarrier& b = my_block().named[id];
  if (b.arrived == 0) b.threads = threads;
  else if (b.threads != threads)
    fail("divergent barrier " + std::to_string(id) + ": one thread expects " +
         std::to_string(b.threads) + " threads, another one " + std::to_string(threads));
  b.gathered.join(clock_of(me()));
  tick(me());
  if (++b.arrived == threads) {
    b.released = b.gathered;
    b.gathered = Clock();
    b.arrived = 0;
    b.generation++;
    machine.progress++;
  }
  return b;
}
static void wait_at(NamedBarrier& b, unsigned generation, const std::string& what) {
  wait_until(what, [&b, generation] { return b.generation != generation; });
  clock_of(me()).join(b.released);
}
void bar_sync(int id, int threads) {
  settle();
  unsigned generation = my_block().named[id & 15].generation;
  NamedBarrier& b = arrive_at(id, threads, "bar.sync");
  wait_at(b, generation, "barrier " + std::to_string(id) + " of " + std::to_string(threads) +
                             " threads");
}
void bar_arrive(int id, int threads) {
  settle();
  arrive_at(id, threads, "bar.arrive");
  maybe_pause();
}
void sync_threads() {
  settle();
  unsigned generation = my_block().named[0].generation;
  NamedBarrier& b = arrive_at(0, my_block().threads, "__syncthreads");
  wait_at(b, generation, "__syncthreads");
}
int sync_threads_reduce(int condition, int kind) {
  NamedBarrier& b = my_block().named[0];
  b.votes += condition != 0;
  sync_threads();
  int votes = b.votes;
  sync_threads();
  b.votes = 0;
  if (kind == 2) return votes;
  return kind == 1 ? votes > 0 : votes == my_block().threads;
}

// --- warps and warpgroups ------------------------------------------------------------------------
static void complete(Collective& c, const std::function<void(Collective&)>& act) {
  act(c);
  c.released = c.gathered;
  c.gathered = Clock();
  c.arrived = 0;
  c.is_part = false;
  c.generation++;
  machine.progress++;
}
// AMD's lanes run in step, those of a branch by themselves: nothing waits for the others.
bool part_wavefronts() {
  bool found = false;
  for (Block& block : machine.blocks)
    for (auto& open : block.warps)
      for (Collective& c : open)
        if (c.arrived && c.may_part) found = c.is_part = true;
  return found;
}
int meet_warp(const std::string& what, uint64_t mask, void* argument,
              const std::function<void(Collective&)>& act, bool may_part) {
  settle();
  Block& block = my_block();
  int warp = me().rank / machine.warp, own = lane();
  if (!(mask >> own & 1)) fail(what + ": the lane is not in its own mask " + hex((unsigned)mask));
  mask &= existing_lanes(block, warp);
  auto& open = block.warps[warp];
  Collective* c = nullptr;
  for (Collective& other : open) {
    if (!other.arrived) continue;
    if (other.mask != mask) continue;
    if (other.what != what)
      fail("divergent warp: one lane is at " + what + ", another one at " + other.what);
    c = &other;
  }
  if (!c) {
    for (Collective& other : open)
      if (!other.arrived) c = &other;
    if (!c) {
      open.emplace_back();
      c = &open.back();
    }
    c->mask = mask;
    c->what = what;
    c->may_part = may_part && machine.warp != WARP;
    c->arguments.assign(machine.warp, nullptr);
  }
  c->arguments[own] = argument;
  unsigned generation = c->generation;
  bool orders = what == "__syncwarp";
  if (orders) {
    c->gathered.join(clock_of(me()));
    tick(me());
  }
  if (++c->arrived == __builtin_popcountll(mask)) {
    complete(*c, act);
  } else {
    wait_until(what, [c, generation] { return c->generation != generation || c->is_part; });
    if (c->generation == generation) complete(*c, act);
  }
  if (orders) clock_of(me()).join(c->released);
  return own;
}
void meet_warpgroup(const std::string& what, void* argument,
                    const std::function<void(Warpgroup&, Collective&)>& act) {
  settle();
  Block& block = my_block();
  int number = me().rank / WARPGROUP;
  if (block.threads < (number + 1) * WARPGROUP)
    fail(what + ": a warpgroup of 128 threads is needed, the block has " +
         std::to_string(block.threads) + " threads");
  Warpgroup& group = block.warpgroups[number];
  Collective& c = group.meeting;
  if (c.arrived == 0) {
    c.what = what;
    c.arguments.assign(WARPGROUP, nullptr);
  } else if (c.what != what) {
    fail("divergent warpgroup: one thread is at " + what + ", another one at " + c.what);
  }
  c.arguments[me().rank % WARPGROUP] = argument;
  unsigned generation = c.generation;
  if (++c.arrived == WARPGROUP) {
    act(group, c);
    c.arrived = 0;
    c.generation++;
    machine.progress++;
  } else {
    wait_until(what, [&c, generation] { return c.generation != generation; });
  }
}
// A mask of a program's 32 lanes is one of a half of an AMD GPU's wavefront.
void sync_warp(unsigned mask) {
  meet_warp("__syncwarp", (uint64_t)mask << (lane() & 32), nullptr, [](Collective&) {});
}
void converge_warp() { meet_warp("the meeting of a warp", 0xffffffffu, nullptr, [](Collective&) {}); }
// Which lane is chosen is the device's affair, but always the same one: here it is not the first.
int elect() {
  meet_warp("elect.sync", 0xffffffffu, nullptr, [](Collective&) {});
  constexpr int CHOSEN = 5;
  int last = my_block().threads - me().rank / machine.warp * machine.warp - 1;
  return lane() == std::min(CHOSEN, last);
}

struct Shuffled {
  unsigned char in[16], out[16];
  int source;
};
void shuffle(const char* kind, u64 mask, void* value, int bytes, int source) {
  Shuffled own;
  memcpy(own.in, value, bytes);
  own.source = source & (machine.warp - 1);
  meet_warp(kind, mask, &own, [=](Collective& c) {
    for (int i = 0; i < machine.warp; ++i) {
      Shuffled* to = (Shuffled*)c.arguments[i];
      if (!to) continue;
      Shuffled* from = (Shuffled*)c.arguments[to->source];
      if (!from)
        fail(std::string(kind) + ": lane " + std::to_string(i) + " reads lane " +
             std::to_string(to->source) + ", which does not take part");
      memcpy(to->out, from->in, bytes);
    }
  }, true);
  memcpy(value, own.out, bytes);
}
u64 ballot(const char* kind, u64 mask, int condition) {
  struct Vote { int condition; u64 all; } own{condition, 0};
  meet_warp(kind, mask, &own, [](Collective& c) {
    u64 all = 0;
    for (int i = 0; i < machine.warp; ++i)
      if (c.arguments[i] && ((Vote*)c.arguments[i])->condition) all |= (u64)1 << i;
    for (void* a : c.arguments)
      if (a) ((Vote*)a)->all = all;
  }, true);
  return own.all;
}
unsigned match(unsigned mask, unsigned long long value) {
  struct Match { unsigned long long value; unsigned same; } own{value, 0};
  meet_warp("match.any", mask, &own, [](Collective& c) {
    for (void* a : c.arguments)
      for (int i = 0; a && i < WARP; ++i)
        if (c.arguments[i] && ((Match*)c.arguments[i])->value == ((Match*)a)->value)
          ((Match*)a)->same |= 1u << i;
  });
  return own.same;
}
int reduce(const char* kind, unsigned mask, int value, bool is_signed) {
  struct Reduced { int value, all; } own{value, 0};
  std::string op = kind + 6;  // behind "redux."
  meet_warp(kind, mask, &own, [&op, is_signed](Collective& c) {
    bool first = true;
    int all = 0;
    for (void* a : c.arguments) {
      if (!a) continue;
      int v = ((Reduced*)a)->value;
      bool less = is_signed ? v < all : (unsigned)v < (unsigned)all;
      if (first) all = v;
      else if (op == "add") all = (int)((unsigned)all + (unsigned)v);
      else if (op == "min") all = less ? v : all;
      else if (op == "max") all = less ? all : v;
      else if (op == "and") all &= v;
      else if (op == "or") all |= v;
      else all ^= v;
      first = false;
    }
    for (void* a : c.arguments)
      if (a) ((Reduced*)a)->all = all;
  });
  return own.all;
}

// --- the end of a thread ---------------------------------------------------------------------------
void leave(Fiber& f) {
  for (const auto& group : f.groups)
    if (!group.empty()) fail("cp.async is still in flight when the thread exits");
  if (!f.open.empty()) fail("cp.async is still in flight when the thread exits (not committed)");
  if (!f.bulk_open.empty()) fail("a bulk store was not committed when the thread exits");
  for (const auto& group : f.bulk_groups)
    if (!group.empty())
      fail("a bulk store still reads shared memory when the thread exits: bulk_wait is missing");
  for (Bulk& bulk : f.bulk_read) bulk.write();
  Warpgroup& group = my_block().warpgroups[f.rank / WARPGROUP];
  bool is_open = !group.open.empty();
  for (const auto& products : group.groups) is_open |= !products.empty();
  if (is_open) fail("wgmma is still in flight when the thread exits");
}
}  // namespace emu
