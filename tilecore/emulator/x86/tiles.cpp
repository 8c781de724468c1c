// Tiles of AMX, per thread, and the faults that a processor would raise for them.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and
// volume 2, "Operation" and exceptions (classes AMX-E1 to AMX-E6) of each instruction, palette 1.
#include <sched.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "instructions.h"

namespace {
constexpr int TILES = 8, MAX_ROWS = 16, MAX_BYTES = 64, RESERVED = 14, DESCRIBED = 16;

struct Tiles {
  uint64_t call;  // in which they were configured; 0: they are not
  int rows[TILES], bytes[TILES];
  alignas(64) uint8_t elements[TILES][MAX_ROWS][MAX_BYTES];
};

thread_local Tiles tiles;
std::atomic<uint64_t> call{1};
std::atomic<int> configured{0};  // threads whose tiles are
std::atomic<bool> has_fault{false}, is_running{false};
char message[256];

bool is_set_up() { return tiles.call == call.load(std::memory_order_relaxed); }

// Returns whether a tile may be used.
bool is_usable(const char* instruction, int64_t tile) {
  if (!is_set_up()) {
    x86::fault("%s of tile %d: no tiles are configured on this thread", instruction, int(tile));
  } else if (tile < 0 || tile >= TILES) {
    x86::fault("%s of tile %d: expected 0 to 7", instruction, int(tile));
  } else if (tiles.rows[tile] == 0) {
    x86::fault("%s of tile %d: it has no rows", instruction, int(tile));
  } else {
    return true;
  }
  return false;
}

void release() {
  if (is_set_up()) configured--;
  tiles.call = 0;
}

bool is_valid(const uint8_t* layout) {
  for (int i = 1; i < 2 + RESERVED; i++)
    if (layout[i]) {
      x86::fault("ldtilecfg: expected 0 in byte %d, found %d", i, layout[i]);
      return false;
    }
  for (int i = 0; i < DESCRIBED; i++) {
    int bytes = layout[16 + 2 * i] | layout[17 + 2 * i] << 8, rows = layout[48 + i];
    bool is_known = i < TILES || (bytes == 0 && rows == 0);
    if (!is_known || rows > MAX_ROWS || bytes > MAX_BYTES || (rows == 0) != (bytes == 0)) {
      x86::fault("ldtilecfg: tile %d has %d rows of %d bytes, expected up to 16 of up to 64", i,
                 rows, bytes);
      return false;
    }
  }
  return true;
}

void load(const char* instruction, int64_t tile, const uint8_t* from, int64_t stride) {
  if (!is_usable(instruction, tile)) return;
  memset(tiles.elements[tile], 0, sizeof tiles.elements[tile]);
  for (int i = 0; i < tiles.rows[tile]; i++)
    memcpy(tiles.elements[tile][i], from + i * stride, tiles.bytes[tile]);
}

// Returns whether shapes of sums (m x n), a (m x k) and b (k x n words) fit together.
bool fit(const char* instruction, int64_t c, int64_t a, int64_t b) {
  const int64_t all[] = {c, a, b};
  for (int64_t tile : all)
    if (!is_usable(instruction, tile)) return false;
  const int *rows = tiles.rows, *bytes = tiles.bytes;
  bool has_words = bytes[c] % 4 == 0 && bytes[a] % 4 == 0 && bytes[b] % 4 == 0;
  if (c != a && c != b && a != b && has_words && rows[c] == rows[a] && bytes[c] == bytes[b] &&
      bytes[a] == 4 * rows[b])
    return true;
  x86::fault("%s of tiles %d, %d, %d: %d x %d, %d x %d and %d x %d bytes do not fit together",
             instruction, int(c), int(a), int(b), rows[c], bytes[c], rows[a], bytes[a], rows[b],
             bytes[b]);
  return false;
}

template <class T>
T* row(int64_t tile, int i) {
  return reinterpret_cast<T*>(tiles.elements[tile][i]);
}

// Products of first elements and of second ones are summed up by themselves, and then together.
__attribute__((noinline)) void multiply_bfloat16(int64_t c, int64_t a, int64_t b) {
  constexpr int WORDS = MAX_BYTES / 4;
  for (int m = 0; m < tiles.rows[c]; m++) {
    float first[WORDS] = {}, second[WORDS] = {};
    for (int k = 0; k < tiles.bytes[a] / 4; k++) {
      uint32_t x = row<uint32_t>(a, m)[k];
      const uint32_t* y = row<uint32_t>(b, k);
      for (int n = 0; n < WORDS; n++) {
        first[n] = __builtin_fmaf(x86::of_bits(x << 16), x86::of_bits(y[n] << 16), first[n]);
        second[n] = __builtin_fmaf(x86::of_bits(x & 0xFFFF0000), x86::of_bits(y[n] & 0xFFFF0000),
                                   second[n]);
      }
    }
    for (int n = 0; n < tiles.bytes[c] / 4; n++) row<float>(c, m)[n] += first[n] + second[n];
  }
}

template <class A, class B>
void multiply_bytes(const char* instruction, int64_t c, int64_t a, int64_t b) {
  if (!fit(instruction, c, a, b)) return;
  for (int m = 0; m < tiles.rows[c]; m++)
    for (int k = 0; k < tiles.bytes[a] / 4; k++)
      for (int n = 0; n < tiles.bytes[c] / 4; n++) {
        const A* x = row<A>(a, m) + 4 * k;
        const B* y = row<B>(b, k) + 4 * n;
        int32_t sum = x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
        row<uint32_t>(c, m)[n] += uint32_t(sum);
      }
}
}  // namespace

void x86::fault(const char* format, ...) {
  if (has_fault.exchange(true)) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
}

// A kernel begins, when no other thread runs it: whatever an earlier call left behind on a thread is
// no setup of this one.
STAND_IN void x86_begin() {
  while (is_running.exchange(true, std::memory_order_acquire)) sched_yield();
  call++;
  configured = 0;
  message[0] = 0;
  has_fault = false;
}

// Returns what the kernel did wrong, null if nothing.
STAND_IN const char* x86_found() {
  if (configured != 0) x86::fault("tiles of %d threads were not released", configured.load());
  return has_fault ? message : nullptr;
}

STAND_IN void x86_end() { is_running.store(false, std::memory_order_release); }

STAND_IN void x86_ldtilecfg(const uint8_t* layout) {
  release();
  if (layout[0] == 0) return;
  if (layout[0] != 1) return x86::fault("ldtilecfg: expected palette 1, found %d", layout[0]);
  if (!is_valid(layout)) return;
  memset(&tiles, 0, sizeof tiles);
  for (int i = 0; i < TILES; i++) {
    tiles.bytes[i] = layout[16 + 2 * i];
    tiles.rows[i] = layout[48 + i];
  }
  tiles.call = call;
  configured++;
}

STAND_IN void x86_tilerelease() { release(); }

STAND_IN void x86_tilezero(int64_t tile) {
  if (is_usable("tilezero", tile)) memset(tiles.elements[tile], 0, sizeof tiles.elements[tile]);
}

STAND_IN void x86_tileloadd(int64_t tile, const uint8_t* from, int64_t stride) {
  load("tileloadd", tile, from, stride);
}

STAND_IN void x86_tileloaddt1(int64_t tile, const uint8_t* from, int64_t stride) {
  load("tileloaddt1", tile, from, stride);
}

STAND_IN void x86_tilestored(int64_t tile, uint8_t* to, int64_t stride) {
  if (!is_usable("tilestored", tile)) return;
  for (int i = 0; i < tiles.rows[tile]; i++)
    memcpy(to + i * stride, tiles.elements[tile][i], tiles.bytes[tile]);
}

STAND_IN void x86_tdpbf16ps(int64_t c, int64_t a, int64_t b) {
  if (!fit("tdpbf16ps", c, a, b)) return;
  x86::Flushing flushing;
  multiply_bfloat16(c, a, b);
}

STAND_IN void x86_tdpbssd(int64_t c, int64_t a, int64_t b) {
  multiply_bytes<int8_t, int8_t>("tdpbssd", c, a, b);
}

STAND_IN void x86_tdpbuud(int64_t c, int64_t a, int64_t b) {
  multiply_bytes<uint8_t, uint8_t>("tdpbuud", c, a, b);
}
