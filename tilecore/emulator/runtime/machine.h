// The emulated machine: fibers in place of threads, blocks with their shared memory and barriers,
// asynchronous operations that are delivered when the schedule says so.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "profile.h"
#include "races.h"
#include "tensor_form.h"

// Of functions in which much of the time goes: vectors where the CPU has them.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EMU_VECTORS __attribute__((optimize("O3"), target_clones("avx2", "default")))
#else
#define EMU_VECTORS
#endif

struct uint3_ { unsigned x, y, z; };

namespace emu {
typedef unsigned long long u64;
constexpr unsigned WINDOW = 256 << 10;  // bytes between the shared memories of two blocks
constexpr uint64_t ALL_LANES = ~(uint64_t)0;
constexpr int WARP = 32, WARPGROUP = 128, NAMED_BARRIERS = 16;

enum Delivery { LATE = 0, EARLY = 1, RANDOM = 2 };  // of asynchronous operations

struct Copy {  // of cp.async
  unsigned char* dst;
  const unsigned char* src;
  int bytes, src_bytes;
  unsigned time;  // among the thread's copies
};
struct Bulk {  // a store by the TMA unit: first its source is read, then its destination written
  std::function<void()> read, write;
  unsigned time;  // among the thread's stores
};
struct Collective {  // threads that do something together
  int arrived = 0;
  unsigned generation = 0;
  uint64_t mask = 0;
  std::string what;
  std::vector<void*> arguments;  // by rank within the group
  bool may_part = false, is_part = false;  // lanes of a wavefront that went another way
  Clock gathered, released;
};
struct Block;
struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  Block* block = nullptr;
  int rank = 0;    // in its block
  int number = 0;  // among the resident threads
  uint3_ index{};
  bool is_done = false, spins = false;
  int line = 0;
  std::function<bool()> ready;  // when it waits
  std::string waits_for;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  std::vector<Bulk> bulk_open;
  std::deque<std::vector<Bulk>> bulk_groups;
  std::vector<Bulk> bulk_read;  // groups whose source has been read, not yet written
  std::vector<std::function<void()>> tensor_loads;  // that have not been waited for
  unsigned init_fences = 1, copies = 0, bulks = 0;
  int cluster_phase = -1;  // in which it arrived at the cluster's barrier and has not waited
};
struct MemoryBarrier {
  int count = 0, pending = 0;
  int64_t bytes = 0;
  unsigned phase = 0;
  const Fiber* maker = nullptr;
  unsigned maker_fences = 0;
  int number = 0;  // among all barriers
  unsigned transfers = 0;
  Clock made, arrived, complete;
};
struct Product {  // one wgmma of a warpgroup
  int n, a_type, b_type, c_type;
  uint64_t a, b;
  bool accumulates, a_transposed, b_transposed;
  std::vector<void*> d;
  std::vector<const void*> registers;
  unsigned time = 0;                  // among the products of the warpgroup
  bool is_done = false;
  std::vector<unsigned char> before;  // the accumulators at the issue, if none was open on them
};
struct Warpgroup {
  Collective meeting;
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
  bool is_fenced = false;
  unsigned products = 0;
  int registers = 0;  // of a thread, since it handed over or took some; 0: as at the launch
};
struct TensorOperand {  // a descriptor's fields
  unsigned start, leading, stride, swizzle;
};
// Offset of an element: `x` along M or N, `k` along K, of `size` bytes (wgmma.cpp).
unsigned operand_place(const TensorOperand& o, int x, int k, int size, bool transposed);
struct TensorProduct {  // one tcgen05.mma
  TensorForm form;
  std::vector<Block*> blocks;  // the one that issues it, and the other of the pair
  unsigned d;
  TensorOperand a, b;  // where A lies in tensor memory, a.start is its address there
  bool accumulates;
  TensorFactors factors[2] = {};  // of A and of B
  bool is_done = false;
};
struct TensorMemory {
  std::vector<unsigned> cells;
  bool is_used[512] = {};
  int group = 0;  // blocks of a product, in all instructions of a kernel
  std::vector<std::pair<unsigned, int>> pair_calls;  // what allocations and frees were told
  std::deque<TensorProduct> products;  // in flight; `first` have left
  std::deque<std::shared_ptr<std::function<void()>>> commits;  // in flight, in order
  unsigned long long first = 0;
  unsigned time = 0;
};
struct NamedBarrier {
  int arrived = 0, threads = 0;
  unsigned generation = 0;
  int votes = 0;  // of __syncthreads_and and its like
  Clock gathered, released;
};
struct Cluster {
  std::vector<Block*> blocks;
  int arrived = 0;
  unsigned generation = 0;
  Clock clock, released;
};
struct Block {
  uint3_ index{};
  int rank = 0, first = 0, threads = 0, alive = 0;
  unsigned char* shared = nullptr;
  Cluster* cluster = nullptr;
  std::vector<Fiber*> fibers;
  std::vector<std::deque<Collective>> warps;  // deques: threads that wait keep references
  std::vector<Warpgroup> warpgroups;
  NamedBarrier named[NAMED_BARRIERS];
  std::map<unsigned, MemoryBarrier> barriers;
  TensorMemory tensor;
  Shadow shadow;
  int free_registers = 0;  // that warpgroups have handed over, for one thread of each
};
struct Job {  // an asynchronous operation that completes by itself
  std::function<void()> run;
  std::string what;
  std::function<bool()> is_over = nullptr;  // whether another operation has completed it
};
struct Range {
  const unsigned char *first, *last;
  bool is_writable;
  std::string name;
};

std::string global_place(const void* pointer);  // a byte, for messages

struct Machine {
  std::deque<Fiber> fibers;
  std::deque<Block> blocks;
  std::deque<Cluster> clusters;
  std::vector<Range> ranges;
  std::deque<Job> jobs;
  Fiber* current = nullptr;
  void* scheduler = nullptr;
  unsigned char* memory = nullptr;  // of all blocks
  size_t memory_bytes = 0;
  unsigned dynamic_bytes = 0, static_bytes = 0, shared_limit = 0;
  std::map<int, unsigned> statics;  // where static arrays lie, by number
  unsigned seed = 0;
  int warp = WARP;  // 64 where a wavefront of an AMD GPU is meant
  Delivery delivery = LATE;
  bool finds_races = true;
  bool counts = false;  // bank conflicts and sectors
  unsigned long long progress = 0, clock = 0;
  int barriers = 0;  // made since the clocks started
  std::string error;
  void (*entry)(void**) = nullptr;
  void** arguments = nullptr;
  unsigned cluster_shape[3] = {1, 1, 1};
};
extern Machine machine;

[[noreturn]] void fail(const std::string& message);
std::string hex(unsigned value);
inline Fiber& me() { return *machine.current; }
inline Block& my_block() { return *me().block; }
inline int lane_of(const Fiber& fiber) { return fiber.rank % WARP; }
void pause();                                          // give the others a turn
void wait_until(const std::string& what, std::function<bool()> ready);
void spin();                                            // as long as others have nothing to do
void maybe_pause();                                    // where the schedule is random: perhaps
unsigned random_number();
// A job, by the machine's delivery.
void post(std::string what, std::function<void()> run, std::function<bool()> is_over = nullptr);

// Memory (memory.cpp): where a pointer lies, and accesses that the runtime makes for a thread.
Block& peer_of(const Block& block);  // the other one of its pair (tensor_memory.cpp)
Block* block_of(const void* pointer);  // whose shared memory holds it, or nullptr
unsigned shared_offset_of(const void* pointer, const char* what);  // in the own block
void* cluster_pointer(const void* pointer, int rank);
unsigned offset_in(const Block& block, const void* pointer);
unsigned char* shared_at(Block& block, unsigned offset, unsigned bytes, const char* what);
// Returns where the tensor begins that holds the bytes (nullptr where bounds are not checked).
const unsigned char* check_range(const void* pointer, size_t bytes, bool writes, const char* what);
void check_aligned(const void* pointer, unsigned bytes, const char* what);

// All lanes of `mask` (of the warp), or all threads of the warpgroup, do something together: the
// last one to arrive runs `act` with what each has passed. Returns the rank within the group.
// may_part: whether the lanes of a wavefront that came do it alone if no other one can.
int meet_warp(const std::string& what, uint64_t mask, void* argument,
              const std::function<void(Collective&)>& act, bool may_part = false);
bool part_wavefronts();  // returns whether lanes wait for others that are elsewhere
void meet_warpgroup(const std::string& what, void* argument,
                    const std::function<void(Warpgroup&, Collective&)>& act);

MemoryBarrier& memory_barrier(Block& block, const void* pointer, const char* what);
void complete_bytes(Block& block, unsigned offset, int64_t bytes, const Clock& clock);
void arrive(MemoryBarrier& barrier, int count, const Clock& clock, const std::string& what);
// A copy by the TMA unit into shared memory, told to a barrier of block `told`; a copy out of it.
void async_load(Block& block, unsigned offset, unsigned bytes, Block& told, unsigned barrier,
                const char* what, std::function<void()> copy);
void async_store(const void* src, unsigned bytes, const char* what, std::function<void()> read,
                 std::function<void()> write);
double combine(const std::string& op, double old, double value);
unsigned swizzled(unsigned address, unsigned bytes);  // address bits 4-6 ^= bits 7-9
void leave(Fiber& fiber);  // checks what a thread must not leave behind
void leave_tensor_memory(const Block& block);  // when its last thread exits
}  // namespace emu
