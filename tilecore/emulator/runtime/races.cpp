#include "machine.h"

#include <cstring>
#include <unordered_map>

namespace emu {
// Most of the time of a kernel with many barriers: each thread takes up what all agents did.
EMU_VECTORS void raise_all(unsigned* __restrict x, const unsigned* __restrict y, size_t n) {
  for (size_t i = 0; i < n; ++i) x[i] = x[i] < y[i] ? y[i] : x[i];
}

namespace {
std::vector<Clock> clocks;  // of threads
struct Suspect {            // a write that races with another one, unless it changes nothing
  const unsigned char* at = nullptr;
  unsigned bytes = 0;
  unsigned char old[64];
  std::string message;
} suspect;

constexpr unsigned LINE = 16;  // bytes
struct Line {
  Access writes[LINE];
};
std::unordered_map<uintptr_t, Line> stored;  // global memory by lines, since the blocks began

void raise(std::vector<unsigned>& a, const std::vector<unsigned>& b) {
  if (a.size() < b.size()) a.resize(b.size());
  if (&a != &b) raise_all(a.data(), b.data(), b.size());
}
int resident() { return (int)machine.fibers.size(); }

std::string name_of(int agent) {
  int n = resident();
  auto thread = [&](int number) {
    const Fiber& f = machine.fibers[number];
    std::string text = "thread " + std::to_string(f.rank);
    if (f.block->cluster->blocks.size() > 1) text += " of block " + std::to_string(f.block->rank);
    return text;
  };
  if (agent < n) return thread(agent);
  if (agent < 2 * n) return "cp.async of " + thread(agent - n);
  if (agent < 3 * n) return "a bulk store of " + thread(agent - 2 * n);
  if (agent < 4 * n && (agent - 3 * n) % WARPGROUP == 1) return "tcgen05.mma";
  if (agent < 4 * n) return "wgmma of the warpgroup of " + thread(agent - 3 * n);
  return "a TMA load";
}
void suspect_write(const unsigned char* at, unsigned bytes, const std::string& message) {
  if (suspect.at) return;
  suspect.at = at;
  suspect.bytes = bytes;
  memcpy(suspect.old, at, bytes);
  suspect.message = message;
}
// Whether a thread must be ordered after a store, and is not.
bool is_unordered(const Access& store, const Fiber& fiber) {
  return store.time && store.agent != fiber.number &&
         machine.fibers[store.agent].block == fiber.block &&
         clock_of(fiber).at(store.agent) < store.time;
}
std::string place(unsigned offset) { return "shared memory at byte " + std::to_string(offset); }
}  // namespace

void Clock::set(int agent, unsigned time) {
  if (agent >= (int)seen.size()) seen.resize(agent + 1);
  if (seen[agent] < time) seen[agent] = time;
}
void Clock::join(const Clock& other) {
  raise(seen, other.seen);
  raise(fenced, other.fenced);
}
void Clock::fence() { raise(fenced, seen); }

int thread_agent(const Fiber& fiber) { return fiber.number; }
int copy_agent(const Fiber& fiber) { return resident() + fiber.number; }
int bulk_agent(const Fiber& fiber) { return 2 * resident() + fiber.number; }
int group_agent(const Block& block, int warpgroup) {
  return 3 * resident() + block.first + warpgroup * WARPGROUP;
}
int tensor_agent(const Block& block) { return group_agent(block, 0) + 1; }
int barrier_agent(int number) { return 4 * resident() + number; }
Clock& clock_of(const Fiber& fiber) { return clocks[fiber.number]; }
void start_clocks() {
  suspect.at = nullptr;
  stored.clear();
  clocks.assign(resident(), Clock());
  for (const Fiber& f : machine.fibers) clocks[f.number].set(f.number, 1);
}
unsigned tick(const Fiber& fiber) { return clocks[fiber.number].seen[fiber.number]++; }

void settle() {
  if (!suspect.at) return;
  const unsigned char* at = suspect.at;
  suspect.at = nullptr;
  if (memcmp(at, suspect.old, suspect.bytes)) fail(suspect.message);
}

void on_read(Block& block, unsigned offset, unsigned bytes, int agent, const Clock& clock,
             bool is_async) {
  if (!machine.finds_races) return;
  settle();
  unsigned time = clock.at(agent);
  for (unsigned i = offset; i < offset + bytes; ++i) {
    Cell& cell = block.shadow.cells[i];
    const Access w = cell.write;
    if (w.agent >= 0 && w.agent != agent && clock.at(w.agent) < w.time)
      fail("race: " + name_of(agent) + " reads " + place(i) + ", which " + name_of(w.agent) +
           " writes; no barrier is between them");
    if (is_async && w.agent >= 0 && cell.is_generic && clock.fenced_at(w.agent) < w.time)
      fail("missing fence.proxy.async: " + name_of(agent) + " reads " + place(i) + ", which " +
           name_of(w.agent) + " wrote");
    bool is_known = false;
    for (Access& read : cell.reads)
      if (read.agent == agent) {
        read.time = time;
        is_known = true;
        break;
      }
    if (!is_known) cell.reads.push_back({agent, time});
  }
}

void on_write(Block& block, unsigned offset, unsigned bytes, int agent, const Clock& clock,
              unsigned time, bool is_async) {
  if (!machine.finds_races) return;
  settle();
  for (unsigned i = offset; i < offset + bytes; ++i) {
    Cell& cell = block.shadow.cells[i];
    const Access w = cell.write;
    for (const Access& read : cell.reads)
      if (read.agent != agent && clock.at(read.agent) < read.time)
        fail("race: " + name_of(agent) + " writes " + place(i) + ", which " +
             name_of(read.agent) + " reads; no barrier is between them");
    if (w.agent >= 0 && w.agent != agent && clock.at(w.agent) < w.time) {
      std::string message = "race: " + name_of(agent) + " and " + name_of(w.agent) +
                            " write different values to " + place(i) +
                            "; no barrier is between them";
      if (agent >= resident() || bytes > sizeof suspect.old) fail(message);
      suspect_write(block.shared + offset, bytes, message);
    }
    cell.write = {agent, time};
    cell.is_generic = !is_async;
    cell.reads.clear();
  }
}

void on_global_read(const Fiber& fiber, const void* pointer, unsigned bytes) {
  if (!machine.finds_races || stored.empty()) return;
  settle();
  uintptr_t first = (uintptr_t)pointer;
  for (uintptr_t line = first / LINE; line <= (first + bytes - 1) / LINE; ++line) {
    auto found = stored.find(line);
    if (found == stored.end()) continue;
    for (uintptr_t p = std::max(first, line * LINE); p < std::min(first + bytes, (line + 1) * LINE); ++p) {
      const Access& store = found->second.writes[p % LINE];
      if (is_unordered(store, fiber))
        fail("race: " + name_of(fiber.number) + " reads " + global_place((void*)p) + ", which " +
             name_of(store.agent) + " writes; no barrier is between them");
    }
  }
}
void on_global_write(const Fiber& fiber, const void* pointer, unsigned bytes) {
  if (!machine.finds_races) return;
  settle();
  uintptr_t first = (uintptr_t)pointer;
  unsigned time = clock_of(fiber).at(fiber.number);
  for (uintptr_t line = first / LINE; line <= (first + bytes - 1) / LINE; ++line) {
    Line& at = stored.try_emplace(line, Line{}).first->second;
    for (uintptr_t p = std::max(first, line * LINE); p < std::min(first + bytes, (line + 1) * LINE); ++p) {
      Access& store = at.writes[p % LINE];
      if (is_unordered(store, fiber) && bytes <= sizeof suspect.old)
        suspect_write((const unsigned char*)pointer, bytes,
                      "race: " + name_of(fiber.number) + " and " + name_of(store.agent) +
                          " write different values to " + global_place((void*)p) +
                          "; no barrier is between them");
      store = {fiber.number, time};
    }
  }
}
}  // namespace emu
