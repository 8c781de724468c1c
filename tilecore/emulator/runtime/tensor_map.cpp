// Tensor maps and the copies of boxes by the TMA unit.
#include <cstring>

#include "elements.h"
#include "machine.h"

namespace emu {
constexpr unsigned MAGIC = 0x70616d74;
struct TensorMap {  // in place of CUtensorMap's 128 bytes; repeated in tilecore/emulator/arguments.py
  unsigned char* address;
  uint64_t extents[5];
  uint64_t strides[4];  // in bytes, of axes 1 to 4
  uint16_t box[5];
  uint8_t type, rank, swizzle, fills_nan;
  uint32_t magic;
};

unsigned swizzled(unsigned address, unsigned bytes) {
  unsigned rows = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
  return address ^ (address >> 7 & rows) << 4;
}
static const TensorMap& map_at(unsigned long long address, int rank) {
  const TensorMap& map = *(const TensorMap*)address;
  if (address % 64) fail("a tensor map is not aligned to 64 bytes");
  if (map.magic != MAGIC) fail("the address is not that of a tensor map");
  if (rank && map.rank != rank)
    fail("a tensor map of rank " + std::to_string(map.rank) + " is used as one of rank " +
         std::to_string(rank));
  return map;
}

static unsigned box_bytes(const TensorMap& map) {
  unsigned elements = 1;
  for (int i = 0; i < map.rank; ++i) elements *= map.box[i];
  return elements * width(map.type) / 8;
}
// Calls `visit` with the offset in shared memory and the address of every element of a box, which
// is nullptr outside the tensor.
template <class F>
static void for_each(const TensorMap& map, const int* at, unsigned offset, F visit) {
  unsigned size = width(map.type) / 8, row = map.box[0] * size, count = box_bytes(map) / size;
  for (unsigned i = 0; i < count; ++i) {
    unsigned rest = i;
    bool is_inside = true;
    unsigned char* address = map.address;
    for (int axis = 0; axis < map.rank; ++axis) {
      int64_t x = at[axis] + (int64_t)(rest % map.box[axis]);
      rest /= map.box[axis];
      is_inside &= x >= 0 && x < (int64_t)map.extents[axis];
      address += x * (axis ? (int64_t)map.strides[axis - 1] : (int64_t)size);
    }
    unsigned place = offset + i / map.box[0] * row + i % map.box[0] * size;
    visit(swizzled(place, map.swizzle), is_inside ? address : nullptr);
  }
}
static void check_box(const TensorMap& map, const void* shared, const char* what) {
  check_aligned(shared, 128, what);
  unsigned row = map.box[0] * width(map.type) / 8;
  if (map.swizzle && row > map.swizzle)
    fail(std::string(what) + ": a row of " + std::to_string(row) + " bytes is wider than the " +
         "swizzle of " + std::to_string(map.swizzle));
}

// A box into the shared memory of a block, of which a barrier of block `told` hears.
static void load(Block& block, Block& told, unsigned offset, unsigned barrier, const TensorMap& map,
                 const int* at) {
  if (block.alive == 0 || told.alive == 0) fail("a TMA load to a block that has exited");
  std::vector<int> origin(at, at + map.rank);
  unsigned char* shared = block.shared;
  async_load(block, offset, box_bytes(map), told, barrier, "a TMA load", [=] {
    unsigned size = width(map.type) / 8;
    for_each(map, origin.data(), offset, [&](unsigned place, const unsigned char* from) {
      if (from) memcpy(shared + place, from, size);
      else memset(shared + place, map.fills_nan ? 0xff : 0, size);
    });
  });
}
void tma_load(void* dst, unsigned long long address, void* barrier, int rank, const int* at,
              int mask) {
  settle();
  const TensorMap map = map_at(address, rank);
  check_box(map, dst, "a TMA load");
  unsigned offset = shared_offset_of(dst, "a TMA load");
  unsigned bar = shared_offset_of(barrier, "the barrier of a TMA load");
  auto& blocks = my_block().cluster->blocks;
  if (mask >> blocks.size()) fail("a TMA load to blocks that the cluster does not have");
  for (Block* block : blocks)
    if (mask ? mask >> block->rank & 1 : block == &my_block())
      load(*block, *block, offset, bar, map, at);
  maybe_pause();
}
void tma_load_pair(void* dst, unsigned long long address, void* barrier, int rank, const int* at) {
  settle();
  const TensorMap map = map_at(address, rank);
  check_box(map, dst, "a TMA load");
  Block& mine = my_block();
  Block& first = mine.rank % 2 ? peer_of(mine) : mine;
  load(mine, first, shared_offset_of(dst, "a TMA load"),
       shared_offset_of(barrier, "the barrier of a TMA load"), map, at);
  maybe_pause();
}

static void store(unsigned long long address, const void* src, int rank, const int* at,
                  const std::string& op) {
  settle();
  const char* what = op.empty() ? "a TMA store" : "a TMA reduction";
  const TensorMap map = map_at(address, rank);
  check_box(map, src, what);
  for (int i = 0; i < rank; ++i)
    if (at[i] < 0) fail(std::string(what) + ": coordinate " + std::to_string(at[i]) + " is negative");
  unsigned offset = shared_offset_of(src, what), size = width(map.type) / 8;
  std::vector<int> origin(at, at + rank);
  Block* block = &my_block();
  auto held = std::make_shared<std::vector<std::pair<unsigned char*, uint64_t>>>();
  auto read = [=] {
    for_each(map, origin.data(), offset, [&](unsigned place, unsigned char* to) {
      uint64_t bits = 0;
      memcpy(&bits, block->shared + place, size);
      if (to) held->push_back({to, bits});
    });
  };
  auto write = [=] {
    for (auto& element_ : *held) {
      auto [to, bits] = element_;
      if (op.empty()) memcpy(to, &bits, size);
      else
        set_element(map.type, to, 0,
                    combine(op, element(map.type, to, 0), element(map.type, &bits, 0)));
    }
  };
  async_store(src, box_bytes(map), what, read, write);
}
void tma_store(unsigned long long map, const void* src, int rank, const int* at) {
  store(map, src, rank, at, "");
}
void tma_reduce(unsigned long long map, const void* src, int rank, const int* at,
                const char* op) {
  store(map, src, rank, at, op);
}
}  // namespace emu
