// Memory: shared memory of blocks, ranges of global memory, and the accesses of generated code,
// which the compiler reports through the functions of its thread sanitizer.
#include <cstdarg>
#include <cstring>
#include <dlfcn.h>
#include <link.h>

#include "machine.h"

namespace emu {
void* static_shared(int number, unsigned bytes, unsigned alignment) {
  auto found = machine.statics.find(number);
  if (found == machine.statics.end()) {
    unsigned used = machine.dynamic_bytes + machine.static_bytes;
    unsigned top = (used + alignment - 1) / alignment * alignment;
    if (top + bytes > machine.shared_limit)
      fail("the block's shared memory, " + std::to_string(top + bytes) + " bytes, is more than " +
           std::to_string(machine.shared_limit));
    machine.static_bytes = top + bytes - machine.dynamic_bytes;
    for (Block& block : machine.blocks) block.shadow.cells.resize(top + bytes);
    found = machine.statics.emplace(number, top).first;
  }
  return my_block().shared + found->second;
}
void* dynamic_shared() { return my_block().shared; }

Block* block_of(const void* pointer) {
  const unsigned char* p = (const unsigned char*)pointer;
  if (p < machine.memory || p >= machine.memory + machine.memory_bytes) return nullptr;
  size_t number = (p - machine.memory) / WINDOW;
  return number < machine.blocks.size() ? &machine.blocks[number] : nullptr;
}
unsigned offset_in(const Block& block, const void* pointer) {
  return (unsigned)((const unsigned char*)pointer - block.shared);
}
unsigned shared_offset_of(const void* pointer, const char* what) {
  Block* block = block_of(pointer);
  if (block != &my_block())
    fail(std::string(what) + ": expected an address of the block's shared memory");
  return offset_in(*block, pointer);
}
unsigned shared_offset(const void* pointer) {
  return shared_offset_of(pointer, "__cvta_generic_to_shared");
}
void* cluster_pointer(const void* pointer, int rank) {
  unsigned offset = shared_offset(pointer);
  auto& blocks = my_block().cluster->blocks;
  if (rank < 0 || rank >= (int)blocks.size())
    fail("block " + std::to_string(rank) + " of a cluster of " + std::to_string(blocks.size()));
  return blocks[rank]->shared + offset;
}
static unsigned shared_bytes() { return machine.dynamic_bytes + machine.static_bytes; }

unsigned char* shared_at(Block& block, unsigned offset, unsigned bytes, const char* what) {
  if (offset + (uint64_t)bytes > shared_bytes())
    fail(std::string(what) + ": shared memory at byte " + std::to_string(offset) + ", " +
         std::to_string(bytes) + " bytes; the block has " + std::to_string(shared_bytes()));
  return block.shared + offset;
}
void check_aligned(const void* pointer, unsigned bytes, const char* what) {
  if ((uintptr_t)pointer % bytes)
    fail(std::string(what) + ": misaligned address, expected a multiple of " +
         std::to_string(bytes) + " bytes");
}

// --- global memory -------------------------------------------------------------------------------
static std::vector<Range> images;  // of this library and of the kernel's

static int add_image(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_LOAD) {
      const unsigned char* first = (const unsigned char*)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      images.push_back({first, first + info->dlpi_phdr[i].p_memsz, true, ""});
    }
  return 0;
}
static bool is_inside(const Range& r, const unsigned char* p, size_t bytes) {
  return p >= r.first && p + bytes <= r.last;
}
static bool is_image(const unsigned char* p, size_t bytes) {
  static Range last{nullptr, nullptr, true, ""};
  if (is_inside(last, p, bytes)) return true;
  if (images.empty()) dl_iterate_phdr(add_image, nullptr);
  for (const Range& r : images)
    if (is_inside(r, p, bytes)) {
      last = r;
      return true;
    }
  return false;
}
void forget_images() { images.clear(); }

const unsigned char* check_range(const void* pointer, size_t bytes, bool writes,
                                 const char* what) {
  if (machine.ranges.empty()) return nullptr;
  const unsigned char* p = (const unsigned char*)pointer;
  static size_t last = 0;
  if (last < machine.ranges.size() && is_inside(machine.ranges[last], p, bytes)) {
    if (!writes || machine.ranges[last].is_writable) return machine.ranges[last].first;
  }
  const Range* near = nullptr;  // the one that was meant, most likely
  size_t nearest = 0;
  for (size_t i = 0; i < machine.ranges.size(); ++i) {
    const Range& r = machine.ranges[i];
    if (is_inside(r, p, bytes)) {
      if (writes && !r.is_writable) fail(std::string(what) + ": `" + r.name + "` is read-only");
      last = i;
      return r.first;
    }
    size_t distance = p < r.first ? r.first - p : p < r.last ? 0 : p - r.last;
    if (!near || distance < nearest) {
      near = &r;
      nearest = distance;
    }
  }
  long long distance = p - near->first;
  fail(std::string(what) + ": global memory out of bounds, byte " + std::to_string(distance) +
       " of `" + near->name + "`, which has " + std::to_string(near->last - near->first));
}

// --- accesses of generated code --------------------------------------------------------------------
static void access(void* pointer, unsigned bytes, bool writes, const void* site) {
  if (!machine.current) return;
  Fiber& f = me();
  const char* p = (const char*)pointer;
  const char* what = writes ? "a store" : "a load";
  if ((uintptr_t)pointer % (bytes > 16 ? 16 : bytes & -bytes)) check_aligned(pointer, bytes, what);
  extern size_t stack_bytes();
  if (p >= f.stack && p < f.stack + stack_bytes()) return;
  if (Block* block = block_of(pointer)) {
    if (block->cluster != f.block->cluster) fail("shared memory of a block of another cluster");
    unsigned offset = offset_in(*block, pointer);
    shared_at(*block, offset, bytes, what);
    if (machine.counts) note_access(writes ? SHARED_STORE : SHARED_LOAD, site, offset, bytes);
    const Clock& clock = clock_of(f);
    int agent = thread_agent(f);
    if (writes) on_write(*block, offset, bytes, agent, clock, clock.at(agent));
    else on_read(*block, offset, bytes, agent, clock);
    return;
  }
  if (is_image((const unsigned char*)pointer, bytes)) return;
  const unsigned char* first = check_range(pointer, bytes, writes, what);
  if (writes) on_global_write(f, pointer, bytes);
  else on_global_read(f, pointer, bytes);
  if (machine.counts)
    note_access(writes ? GLOBAL_STORE : GLOBAL_LOAD, site, (unsigned char*)pointer - first, bytes);
}
std::string global_place(const void* pointer) {
  const unsigned char* p = (const unsigned char*)pointer;
  for (const Range& r : machine.ranges)
    if (is_inside(r, p, 1)) return "`" + r.name + "` at byte " + std::to_string(p - r.first);
  return "global memory";
}
static bool is_atomic = false;
void atomic_begin(void* pointer, int bytes, bool writes) {
  check_aligned(pointer, bytes, "an atomic update");
  if (Block* block = block_of(pointer)) shared_at(*block, offset_in(*block, pointer), bytes, "an atomic update");
  else check_range(pointer, bytes, writes, "an atomic update");
  is_atomic = true;
}
void atomic_end() { is_atomic = false; }
}  // namespace emu

#define EMU_SEE(p, n, writes) \
  if (!emu::is_atomic) emu::access(p, n, writes, __builtin_return_address(0))
#define EMU_HOOK(n)                                                                  \
  extern "C" void __tsan_read##n(void* p) { EMU_SEE(p, n, false); }                  \
  extern "C" void __tsan_write##n(void* p) { EMU_SEE(p, n, true); }                  \
  extern "C" void __tsan_unaligned_read##n(void* p) { EMU_SEE(p, n, false); }        \
  extern "C" void __tsan_unaligned_write##n(void* p) { EMU_SEE(p, n, true); }        \
  extern "C" void __tsan_volatile_read##n(void* p) { EMU_SEE(p, n, false); }         \
  extern "C" void __tsan_volatile_write##n(void* p) { EMU_SEE(p, n, true); }
EMU_HOOK(1)
EMU_HOOK(2)
EMU_HOOK(4)
EMU_HOOK(8)
EMU_HOOK(16)
extern "C" void __tsan_read_range(void* p, unsigned long n) { EMU_SEE(p, (unsigned)n, false); }
extern "C" void __tsan_write_range(void* p, unsigned long n) { EMU_SEE(p, (unsigned)n, true); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
