// How the accesses of a warp's lanes that run together meet banks of shared memory and sectors of
// global memory.
#pragma once

namespace emu {
enum Kind { SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE };

// The running thread accesses memory at `site` of the code; accesses of a warp's lanes belong
// together if each lane is at `site` for the same number of times.
// `place`: the offset in shared memory, or in a tensor (device memory begins at sectors).
void note_access(Kind kind, const void* site, unsigned long place, unsigned bytes);
// Eight rows of 16 bytes at offsets of shared memory, by one instruction (ldmatrix, stmatrix).
void note_rows(Kind kind, const unsigned* offsets);
void end_profile_of_blocks();
}  // namespace emu
