// Fibers and their scheduler; one launch of a kernel.
#include "machine.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

struct dim3 { unsigned x, y, z; };

namespace emu {
uint3_ thread_index, block_index;
dim3 block_shape, grid_shape;
int line = 0;
Machine machine;
void forget_images();

namespace {
constexpr size_t STACK = 256 << 10;
std::vector<char*> stacks;

char* stack(size_t number) {
  while (stacks.size() <= number) {
    char* made = (char*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) abort();
    mprotect(made, getpagesize(), PROT_NONE);
    stacks.push_back(made);
  }
  return stacks[number];
}
}  // namespace

struct JobFailed {};  // an asynchronous operation failed, which the scheduler ran
size_t stack_bytes() { return STACK; }
void at(int number) { line = number; }

// Saves what a call must keep on the stack of the one, and goes on with the other.
extern "C" void emu_switch(void** from, void* to);
#if defined(__x86_64__)
asm(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
constexpr int SAVED = 6;
#elif defined(__aarch64__)
asm(".text\n.globl emu_switch\n.type emu_switch,%function\nemu_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
#else
#error "the emulator runs on x86-64 and AArch64"
#endif

static void leave_fiber() {
  Fiber& f = me();
  f.line = line;
  machine.current = nullptr;
  emu_switch(&f.stack_pointer, machine.scheduler);
}
static void trampoline() {
  machine.entry(machine.arguments);
  settle();
  leave(me());
  me().is_done = true;
  if (--me().block->alive == 0) leave_tensor_memory(*me().block);
  leave_fiber();
  abort();
}
static void prepare(Fiber& f) {
  void** top = (void**)(f.stack + STACK - 64);
#if defined(__x86_64__)
  *--top = nullptr;  // where the trampoline would return to
  *--top = (void*)trampoline;
  for (int i = 0; i < SAVED; ++i) *--top = nullptr;
#else
  top -= 20;
  memset(top, 0, 160);
  top[11] = (void*)trampoline;
#endif
  f.stack_pointer = top;
}

void fail(const std::string& message) {
  Fiber* f = machine.current;
  if (machine.error.empty()) {
    machine.error = message;
    if (f) {
      machine.error += " (block (" + std::to_string(f->block->index.x) + ", " +
                       std::to_string(f->block->index.y) + ", " +
                       std::to_string(f->block->index.z) + "), thread " + std::to_string(f->rank) +
                       ", line " + std::to_string(line) + ")";
    }
  }
  if (!f) throw JobFailed();
  leave_fiber();
  abort();  // not reached: the scheduler runs nobody after an error
}
void fail(const char* message) { fail(std::string(message)); }
std::string hex(unsigned value) {
  char text[16];
  snprintf(text, sizeof text, "0x%x", value);
  return text;
}

void pause() {
  settle();
  leave_fiber();
}
void wait_until(const std::string& what, std::function<bool()> ready) {
  settle();
  if (ready()) {
    machine.progress++;
    return;
  }
  Fiber& f = me();
  f.waits_for = what;
  f.ready = std::move(ready);
  leave_fiber();
  f.ready = nullptr;
  machine.progress++;
}
unsigned random_number() {
  machine.seed = machine.seed * 1664525u + 1013904223u;
  return machine.seed >> 8;
}
void maybe_pause() {
  machine.progress++;
  if (machine.seed && random_number() % 4 == 0) pause();
}
void spin() {
  me().spins = true;
  pause();
  me().spins = false;
}
unsigned long long now() { return ++machine.clock; }

void post(std::string what, std::function<void()> run, std::function<bool()> is_over) {
  if (machine.delivery == EARLY) run();
  else machine.jobs.push_back({std::move(run), std::move(what), std::move(is_over)});
}
static void deliver_job(size_t number) {
  Job job = std::move(machine.jobs[number]);
  machine.jobs.erase(machine.jobs.begin() + number);
  machine.progress++;
  try {
    job.run();
  } catch (const JobFailed&) {
  }
}

static std::string position(const Fiber& f) {
  return (f.waits_for.empty() ? std::string("spinning") : f.waits_for) + ", line " +
         std::to_string(f.line);
}
static void report_deadlock() {
  std::string text = "deadlock:";
  for (Block& block : machine.blocks) {
    if (block.alive == 0) continue;
    text += "\n  block (" + std::to_string(block.index.x) + ", " + std::to_string(block.index.y) +
            ", " + std::to_string(block.index.z) + ")";
    for (size_t i = 0; i < block.fibers.size();) {
      Fiber& f = *block.fibers[i];
      std::string where = f.is_done ? "exited" : position(f);
      size_t j = i + 1;
      for (; j < block.fibers.size(); ++j) {
        Fiber& g = *block.fibers[j];
        if ((g.is_done ? "exited" : position(g)) != where) break;
      }
      text += "\n    threads " + std::to_string(i) + " to " + std::to_string(j - 1) + ": " + where;
      i = j;
    }
  }
  machine.error = text;
}

static void run_fiber(Fiber& f) {
  machine.current = &f;
  thread_index = f.index;
  block_index = f.block->index;
  line = f.line;
  emu_switch(&machine.scheduler, f.stack_pointer);
}
static void run_resident() {
  std::vector<Fiber*> order;
  for (Fiber& f : machine.fibers) order.push_back(&f);
  size_t alive = order.size();
  int idle = 0;
  while (alive && machine.error.empty()) {
    unsigned long long before = machine.progress;
    bool ran = false;
    if (machine.seed)
      for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random_number() % (i + 1)]);
    for (Fiber* f : order) {
      if (f->is_done || (f->ready && !f->ready())) continue;
      ran |= !f->spins;
      run_fiber(*f);
      if (!machine.error.empty()) return;
      if (f->is_done) alive--;
    }
    if (machine.delivery == RANDOM && !machine.jobs.empty() && random_number() % 2)
      deliver_job(random_number() % machine.jobs.size());
    if (ran || machine.progress != before) {
      idle = 0;
      continue;
    }
    if (!machine.jobs.empty())
      deliver_job(machine.delivery == RANDOM ? random_number() % machine.jobs.size() : 0);
    else if (part_wavefronts())
      idle = 0;
    else if (alive && ++idle > 1000)
      report_deadlock();
    else if (alive) {
      bool spins = false;
      for (Fiber* f : order) spins |= !f->is_done && f->spins;
      if (!spins) report_deadlock();
    }
  }
  for (const Job& job : machine.jobs)
    if (machine.error.empty() && !(job.is_over && job.is_over()))
      machine.error = job.what + " is still in flight when the block exits";
}

static void place_block(Block& block, Cluster& cluster, uint3_ index, int rank) {
  unsigned n = block_shape.x * block_shape.y * block_shape.z;
  size_t number = machine.blocks.size() - 1;
  block.index = index;
  block.rank = rank;
  block.cluster = &cluster;
  block.threads = block.alive = (int)n;
  block.first = (int)machine.fibers.size();
  block.shared = machine.memory + number * WINDOW;
  memset(block.shared, 0xff, WINDOW);  // NaN in every floating point type
  block.shadow.cells.assign(machine.dynamic_bytes + machine.static_bytes, Cell());
  block.warps.resize((n + machine.warp - 1) / machine.warp);
  block.warpgroups.resize((n + WARPGROUP - 1) / WARPGROUP);
  cluster.blocks.push_back(&block);
  for (unsigned i = 0; i < n; ++i) {
    machine.fibers.emplace_back();
    Fiber& f = machine.fibers.back();
    f.block = &block;
    f.rank = (int)i;
    f.number = block.first + (int)i;
    f.index = {i % block_shape.x, i / block_shape.x % block_shape.y,
               i / (block_shape.x * block_shape.y)};
    f.stack = stack(f.number);
    prepare(f);
    block.fibers.push_back(&f);
  }
}

static void reset() {
  machine.fibers.clear();
  machine.blocks.clear();
  machine.clusters.clear();
  machine.jobs.clear();
  machine.current = nullptr;
}
static void add_cluster(uint3_ origin) {
  machine.clusters.emplace_back();
  Cluster& cluster = machine.clusters.back();
  const unsigned* c = machine.cluster_shape;
  for (unsigned z = 0; z < c[2]; ++z)
    for (unsigned y = 0; y < c[1]; ++y)
      for (unsigned x = 0; x < c[0]; ++x) {
        machine.blocks.emplace_back();
        place_block(machine.blocks.back(), cluster, {origin.x + x, origin.y + y, origin.z + z},
                    (int)(x + c[0] * (y + c[1] * z)));
      }
}
}  // namespace emu

struct Launch {  // the layout is repeated in tilecore/emulator/launch.py
  unsigned grid[3], block[3], cluster[3];
  unsigned dynamic_bytes, shared_limit, resident, seed, delivery, finds_races, warp;
};

extern "C" void emu_add_range(const void* first, unsigned long bytes, int is_writable,
                              const char* name) {
  const unsigned char* p = (const unsigned char*)first;
  emu::machine.ranges.push_back({p, p + bytes, is_writable != 0, name});
}
extern "C" void emu_clear_ranges() { emu::machine.ranges.clear(); }

// Runs all blocks of a grid; returns what went wrong, or an empty string.
extern "C" const char* emu_launch(void (*entry)(void**), void** arguments, const Launch* launch) {
  using namespace emu;
  machine.entry = entry;
  machine.arguments = arguments;
  machine.error.clear();
  machine.seed = launch->seed;
  machine.warp = (int)launch->warp;
  machine.delivery = (Delivery)launch->delivery;
  machine.finds_races = launch->finds_races != 0;
  machine.dynamic_bytes = launch->dynamic_bytes;
  machine.static_bytes = 0;
  machine.statics.clear();
  machine.shared_limit = launch->shared_limit;
  block_shape = {launch->block[0], launch->block[1], launch->block[2]};
  grid_shape = {launch->grid[0], launch->grid[1], launch->grid[2]};
  memcpy(machine.cluster_shape, launch->cluster, sizeof machine.cluster_shape);
  forget_images();
  unsigned clusters[3], total = 1;
  for (int i = 0; i < 3; ++i) {
    clusters[i] = launch->grid[i] / launch->cluster[i];
    total *= clusters[i];
  }
  unsigned size = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
  unsigned resident = launch->resident ? launch->resident : 1;
  if (resident > total) resident = total;
  size_t needed = (size_t)resident * size * WINDOW;
  if (machine.memory_bytes < needed) {
    if (machine.memory) munmap(machine.memory, machine.memory_bytes);
    machine.memory = (unsigned char*)mmap(nullptr, needed, PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    machine.memory_bytes = needed;
  }
  for (unsigned first = 0; first < total && machine.error.empty(); first += resident) {
    reset();
    for (unsigned i = first; i < first + resident && i < total; ++i)
      add_cluster({i % clusters[0] * launch->cluster[0],
                   i / clusters[0] % clusters[1] * launch->cluster[1],
                   i / (clusters[0] * clusters[1]) * launch->cluster[2]});
    machine.barriers = 0;
    start_clocks();
    run_resident();
    end_profile_of_blocks();
  }
  reset();
  return machine.error.c_str();
}
