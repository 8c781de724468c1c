// Asynchronous copies between global and shared memory: cp.async, and cp.async.bulk of plain bytes.
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
// --- cp.async ------------------------------------------------------------------------------------
void deliver(const std::vector<Copy>& copies, Fiber& f) {
  Clock& clock = clock_of(f);
  for (const Copy& copy : copies) {
    memcpy(copy.dst, copy.src, copy.src_bytes);
    memset(copy.dst + copy.src_bytes, 0, copy.bytes - copy.src_bytes);
    clock.set(copy_agent(f), copy.time);
  }
}
void cp_async(void* dst, const void* src, int bytes, int src_bytes) {
  settle();
  check_aligned(dst, bytes, "cp.async to shared memory");
  if (src_bytes < 0 || src_bytes > bytes)
    fail("cp.async: " + std::to_string(src_bytes) + " of " + std::to_string(bytes) + " bytes");
  const unsigned char* first = nullptr;
  if (src_bytes) {
    check_aligned(src, bytes, "cp.async from global memory");
    first = check_range(src, src_bytes, false, "cp.async");
  }
  Fiber& f = me();
  unsigned offset = shared_offset_of(dst, "cp.async");
  shared_at(*f.block, offset, bytes, "cp.async");
  if (machine.counts) {
    const void* site = __builtin_return_address(0);
    note_access(SHARED_STORE, site, offset, bytes);
    unsigned long place = (const unsigned char*)src - first;
    if (src_bytes) note_access(GLOBAL_LOAD, (const char*)site + 1, place, src_bytes);
  }
  unsigned time = ++f.copies;
  on_write(*f.block, offset, bytes, copy_agent(f), clock_of(f), time);
  Copy copy{(unsigned char*)dst, (const unsigned char*)src, bytes, src_bytes, time};
  if (machine.delivery == EARLY) {  // it has happened; that is known after the wait only
    memcpy(copy.dst, copy.src, src_bytes);
    memset(copy.dst + src_bytes, 0, bytes - src_bytes);
  }
  f.open.push_back(copy);
}
void cp_async_commit() {
  settle();
  me().groups.push_back(std::move(me().open));
  me().open.clear();
  maybe_pause();
}
static void finish(Fiber& f, const std::vector<Copy>& copies) {
  if (machine.delivery != EARLY) {
    deliver(copies, f);
    return;
  }
  for (const Copy& copy : copies) clock_of(f).set(copy_agent(f), copy.time);
}
void cp_async_wait(int pending) {
  settle();
  Fiber& f = me();
  while ((int)f.groups.size() > pending) {
    finish(f, f.groups.front());
    f.groups.pop_front();
  }
  maybe_pause();
}
void cp_async_arrive(void* pointer, bool counts) {
  settle();
  Fiber* f = &me();
  Block* block = f->block;
  MemoryBarrier& b = memory_barrier(*block, pointer, "cp.async.mbarrier.arrive");
  if (counts) b.pending++;
  std::vector<Copy> copies;
  for (auto& group : f->groups) copies.insert(copies.end(), group.begin(), group.end());
  copies.insert(copies.end(), f->open.begin(), f->open.end());
  f->groups.clear();
  f->open.clear();
  Clock clock = clock_of(*f);
  tick(*f);
  post("cp.async", [=, &b]() mutable {
    if (machine.delivery != EARLY)
      for (const Copy& copy : copies) {
        memcpy(copy.dst, copy.src, copy.src_bytes);
        memset(copy.dst + copy.src_bytes, 0, copy.bytes - copy.src_bytes);
      }
    for (const Copy& copy : copies) clock.set(copy_agent(*f), copy.time);
    arrive(b, 1, clock, "cp.async.mbarrier.arrive");
  });
  maybe_pause();
}

// --- bulk copies -----------------------------------------------------------------------------------
static void check_fenced(const MemoryBarrier& b, const char* what) {
  bool is_fenced = b.maker->init_fences != b.maker_fences;
  if (!is_fenced && machine.finds_races)
    fail(std::string(what) + ": the barrier was initialised without a fence (fence_barrier_init)");
}
void async_load(Block& block, unsigned offset, unsigned bytes, Block& told, unsigned barrier,
                const char* what, std::function<void()> copy) {
  auto found = told.barriers.find(barrier);
  if (found == told.barriers.end())
    fail(std::string(what) + ": no barrier was initialised at byte " + std::to_string(barrier) +
         " of shared memory");
  check_fenced(found->second, what);
  int agent = barrier_agent(found->second.number);
  Clock clock = clock_of(me());
  unsigned time = ++found->second.transfers;
  shared_at(block, offset, bytes, what);
  on_write(block, offset, bytes, agent, clock, time, true);
  clock.set(agent, time);
  Block* target = &told;
  post(what, [=] {
    copy();
    complete_bytes(*target, barrier, bytes, clock);
  });
}
void bulk_load(void* dst, const void* src, int bytes, void* barrier) {
  settle();
  check_aligned(dst, 16, "cp.async.bulk to shared memory");
  check_aligned(src, 16, "cp.async.bulk from global memory");
  if (bytes <= 0 || bytes % 16) fail("cp.async.bulk: expected a multiple of 16 bytes");
  check_range(src, bytes, false, "cp.async.bulk");
  unsigned offset = shared_offset_of(dst, "cp.async.bulk");
  async_load(my_block(), offset, bytes, my_block(), shared_offset_of(barrier, "cp.async.bulk"),
             "a bulk copy", [=] { memcpy(dst, src, bytes); });
  maybe_pause();
}

// A store's source is read when its group is waited for, at the latest; then it is written.
void async_store(const void* src, unsigned bytes, const char* what, std::function<void()> read,
                 std::function<void()> write) {
  Fiber& f = me();
  unsigned offset = shared_offset_of(src, what);
  shared_at(*f.block, offset, bytes, what);
  Clock clock = clock_of(f);
  clock.set(bulk_agent(f), ++f.bulks);
  on_read(*f.block, offset, bytes, bulk_agent(f), clock, true);
  if (machine.delivery == EARLY) {
    read();
    write();
    read = write = [] {};
  }
  f.bulk_open.push_back({std::move(read), std::move(write), f.bulks});
  maybe_pause();
}
static void check_store(void* dst, const void* src, int bytes, const char* what) {
  settle();
  check_aligned(dst, 16, what);
  check_aligned(src, 16, what);
  if (bytes <= 0 || bytes % 16) fail(std::string(what) + ": expected a multiple of 16 bytes");
  check_range(dst, bytes, true, what);
}
void bulk_store(void* dst, const void* src, int bytes) {
  check_store(dst, src, bytes, "cp.async.bulk");
  auto held = std::make_shared<std::vector<unsigned char>>(bytes);
  async_store(src, bytes, "a bulk store", [=] { memcpy(held->data(), src, bytes); },
              [=] { memcpy(dst, held->data(), bytes); });
}
double combine(const std::string& op, double old, double value) {
  if (op == "add") return old + value;
  if (op == "min") return value < old ? value : old;
  if (op == "max") return value > old ? value : old;
  if (op == "inc") return old >= value ? 0 : old + 1;
  if (op == "dec") return old == 0 || old > value ? value : old - 1;
  int64_t a = (int64_t)old, b = (int64_t)value;
  return (double)(op == "and" ? a & b : op == "or" ? a | b : a ^ b);
}
void bulk_commit() {
  settle();
  me().bulk_groups.push_back(std::move(me().bulk_open));
  me().bulk_open.clear();
}
void bulk_wait(int pending, bool only_reads) {
  settle();
  Fiber& f = me();
  while ((int)f.bulk_groups.size() > pending) {
    for (Bulk& bulk : f.bulk_groups.front()) {
      bulk.read();
      clock_of(f).set(bulk_agent(f), bulk.time);
      f.bulk_read.push_back(std::move(bulk));
    }
    f.bulk_groups.pop_front();
  }
  if (!only_reads) {
    for (Bulk& bulk : f.bulk_read) bulk.write();
    f.bulk_read.clear();
  }
  maybe_pause();
}
}  // namespace emu
