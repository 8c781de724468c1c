// Accesses to shared memory that no barrier orders, found by vector clocks.
//
// Of global memory, what threads of one block store: another thread of the block that loads it, or
// stores something else there, must be ordered after. (That a load comes before a store is not
// looked at: another order of the threads makes it the other way round.) Nor is what blocks do to
// each other, nor atomic updates and loads and stores with an order of their own.
//
// Whoever accesses memory is an agent: a thread, its cp.async copies, its bulk stores, the products
// of a warpgroup, the TMA loads that complete at one barrier. A clock says up to which time the
// accesses of each agent have happened (`seen`), and up to which a proxy fence has made them
// visible to asynchronous operations (`fenced`).
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace emu {
struct Block;
struct Fiber;

struct Clock {
  std::vector<unsigned> seen, fenced;
  unsigned at(int agent) const { return agent < (int)seen.size() ? seen[agent] : 0; }
  unsigned fenced_at(int agent) const { return agent < (int)fenced.size() ? fenced[agent] : 0; }
  void set(int agent, unsigned time);
  void join(const Clock& other);
  void fence();  // what has happened is visible to asynchronous operations
};

struct Access {
  int agent;
  unsigned time;
};
struct Cell {  // one byte
  Access write{-1, 0};
  bool is_generic = false;  // written by a thread or its cp.async, not by the TMA unit
  std::vector<Access> reads;
};
struct Shadow {
  std::vector<Cell> cells;
};

// The numbers of agents; `count` threads are resident.
int thread_agent(const Fiber& fiber);
int copy_agent(const Fiber& fiber);
int bulk_agent(const Fiber& fiber);
int group_agent(const Block& block, int warpgroup);
int barrier_agent(int number);
int tensor_agent(const Block& block);  // products of tcgen05
Clock& clock_of(const Fiber& fiber);  // of a thread
void start_clocks();                  // at time 1, having seen nothing
unsigned tick(const Fiber& fiber);    // the thread's own time goes on; returns what it was

// An access by `agent` that is ordered after all that `clock` has seen. `is_async`: by the
// asynchronous proxy, which sees what threads wrote only after a fence.
void on_read(Block& block, unsigned offset, unsigned bytes, int agent, const Clock& clock,
             bool is_async = false);
void on_write(Block& block, unsigned offset, unsigned bytes, int agent, const Clock& clock,
              unsigned time, bool is_async = false);
void on_global_read(const Fiber& fiber, const void* pointer, unsigned bytes);
void on_global_write(const Fiber& fiber, const void* pointer, unsigned bytes);
void settle();  // two threads may write one value: look whether the last write changed anything
}  // namespace emu
