// Barriers in shared memory (mbarrier) and of clusters; proxy fences.
#include "machine.h"

namespace emu {
MemoryBarrier& memory_barrier(Block& block, const void* pointer, const char* what) {
  unsigned offset = offset_in(block, pointer);
  auto found = block.barriers.find(offset);
  if (found == block.barriers.end())
    fail(std::string(what) + ": no barrier was initialised at byte " + std::to_string(offset) +
         " of shared memory");
  return found->second;
}
static MemoryBarrier& own(const void* pointer, const char* what) {
  settle();
  check_aligned(pointer, 8, what);
  shared_at(my_block(), shared_offset_of(pointer, what), 8, what);
  return memory_barrier(my_block(), pointer, what);
}
static void advance(MemoryBarrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.phase++;
  b.pending = b.count;
  b.complete = b.arrived;
  machine.progress++;
}
void arrive(MemoryBarrier& b, int count, const Clock& clock, const std::string& what) {
  if (b.pending < count)
    fail(what + ": more arrivals than the barrier expects (" + std::to_string(b.count) + ")");
  b.arrived.join(clock);
  b.pending -= count;
  advance(b);
}
void complete_bytes(Block& block, unsigned offset, int64_t bytes, const Clock& clock) {
  auto found = block.barriers.find(offset);
  if (found == block.barriers.end())
    fail("a transfer completes at byte " + std::to_string(offset) +
         " of shared memory, where no barrier was initialised");
  MemoryBarrier& b = found->second;
  b.arrived.join(clock);
  b.bytes -= bytes;
  advance(b);
}

void barrier_init(void* pointer, int count) {
  settle();
  check_aligned(pointer, 8, "mbarrier.init");
  unsigned offset = shared_offset_of(pointer, "mbarrier.init");
  shared_at(my_block(), offset, 8, "mbarrier.init");
  if (count < 1 || count >= 1 << 20)
    fail("mbarrier.init: expected 1 to 2^20 - 1 arrivals, found " + std::to_string(count));
  auto& barriers = my_block().barriers;
  if (barriers.count(offset)) fail("mbarrier.init: the barrier was initialised before");
  MemoryBarrier& b = barriers[offset];
  b.count = b.pending = count;
  b.maker = &me();
  b.maker_fences = me().init_fences;
  b.number = machine.barriers++;
  b.made.join(clock_of(me()));
  b.arrived.join(clock_of(me()));
  const Clock& clock = clock_of(me());
  on_write(my_block(), offset, 8, thread_agent(me()), clock, clock.at(thread_agent(me())));
}
void barrier_invalidate(void* pointer) {
  own(pointer, "mbarrier.inval");
  my_block().barriers.erase(offset_in(my_block(), pointer));
}
static void check_made(const MemoryBarrier& b, const char* what) {
  const Clock& clock = clock_of(me());
  int maker = thread_agent(*b.maker);
  if (machine.finds_races && b.maker != &me() && clock.at(maker) < b.made.at(maker))
    fail(std::string(what) + ": thread " + std::to_string(b.maker->rank) +
         " initialises the barrier, and no other barrier is between");
}
void barrier_arrive(void* pointer, int count) {
  MemoryBarrier& b = own(pointer, "mbarrier.arrive");
  check_made(b, "mbarrier.arrive");
  arrive(b, count, clock_of(me()), "mbarrier.arrive");
  tick(me());
  maybe_pause();
}
static MemoryBarrier& remote(void* pointer, int rank, const std::string& what) {
  settle();
  shared_offset_of(pointer, what.c_str());
  unsigned char* there = (unsigned char*)cluster_pointer(pointer, rank);
  Block& block = *block_of(there);
  if (block.alive == 0) fail(what + ": block " + std::to_string(rank) + " has exited");
  MemoryBarrier& b = memory_barrier(block, there, (what + " (remote)").c_str());
  check_made(b, (what + " (remote)").c_str());
  return b;
}
void barrier_arrive_remote(void* pointer, int rank) {
  MemoryBarrier& b = remote(pointer, rank, "mbarrier.arrive");
  arrive(b, 1, clock_of(me()), "mbarrier.arrive (remote)");
  tick(me());
  maybe_pause();
}
static void expect(MemoryBarrier& b, int bytes) {
  b.bytes += bytes;
  if (b.bytes >= 1 << 20) fail("mbarrier.expect_tx: more than 2^20 - 1 bytes are expected");
}
void barrier_expect_remote(void* pointer, int rank, int bytes) {
  expect(remote(pointer, rank, "mbarrier.expect_tx"), bytes);
  maybe_pause();
}
void barrier_expect(void* pointer, int bytes, bool arrives) {
  MemoryBarrier& b = own(pointer, "mbarrier.expect_tx");
  check_made(b, "mbarrier.expect_tx");
  expect(b, bytes);
  if (arrives) {
    arrive(b, 1, clock_of(me()), "mbarrier.arrive.expect_tx");
    tick(me());
  }
  maybe_pause();
}
static void check_parity(int parity, const char* what) {
  if (parity & ~1) fail(std::string(what) + ": expected parity 0 or 1, found " + std::to_string(parity));
}
void barrier_wait(void* pointer, int parity) {
  MemoryBarrier& b = own(pointer, "mbarrier.wait");
  check_made(b, "mbarrier.wait");
  check_parity(parity, "mbarrier.wait");
  std::string what = "mbarrier at byte " + std::to_string(offset_in(my_block(), pointer)) +
                     ", parity " + std::to_string(parity);
  wait_until(what, [&b, parity] { return (b.phase & 1) != (unsigned)parity; });
  clock_of(me()).join(b.complete);
}
int barrier_test(void* pointer, int parity) {
  MemoryBarrier& b = own(pointer, "mbarrier.test_wait");
  check_made(b, "mbarrier.test_wait");
  check_parity(parity, "mbarrier.test_wait");
  spin();
  if ((b.phase & 1) == (unsigned)parity) return 0;
  clock_of(me()).join(b.complete);
  return 1;
}

void fence_barrier_init() {
  settle();
  me().init_fences++;
}
void fence_async() {
  settle();
  me().init_fences++;
  clock_of(me()).fence();
  tick(me());
}

// --- clusters --------------------------------------------------------------------------------------
static int cluster_threads() {
  int threads = 0;
  for (const Block* block : my_block().cluster->blocks) threads += block->threads;
  return threads;
}
void cluster_arrive() {
  meet_warp("barrier.cluster.arrive", ALL_LANES, nullptr, [](Collective&) {});  // .aligned
  Cluster& c = *my_block().cluster;
  if (me().cluster_phase != (int)c.generation && me().cluster_phase >= 0)
    fail("barrier.cluster.arrive: the thread arrived before and has not waited");
  me().cluster_phase = (int)c.generation;
  c.clock.join(clock_of(me()));
  tick(me());
  if (++c.arrived == cluster_threads()) {
    c.arrived = 0;
    c.generation++;
    c.released = c.clock;
    c.clock = Clock();
    machine.progress++;
  }
  maybe_pause();
}
void cluster_wait() {
  settle();
  Cluster& c = *my_block().cluster;
  int phase = me().cluster_phase;
  if (phase < 0) fail("barrier.cluster.wait: the thread has not arrived");
  wait_until("barrier.cluster", [&c, phase] { return (int)c.generation != phase; });
  me().cluster_phase = -1;
  clock_of(me()).join(c.released);
}
int cluster_rank() { return my_block().rank; }
}  // namespace emu
