#include "profile.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "machine.h"

namespace emu {
extern int line;
namespace {
constexpr int BANKS = 32, BANK_BYTES = 4, SECTOR = 32;

struct Lane {
  int lane;
  uint64_t address;  // an offset, in shared memory
  unsigned bytes;
};
struct Total {
  long requests = 0, found = 0, ideal = 0;
};
typedef std::tuple<int, int, unsigned> Key;  // line, kind, bytes of a lane
std::map<Key, Total> totals;
struct Pending {
  Key key;
  std::vector<Lane> lanes;
};
// (warp, site, how many times its lanes have been there) -> the lanes so far.
std::map<std::tuple<int, const void*, unsigned>, Pending> pending;
std::map<std::pair<int, const void*>, unsigned> visits;  // of a thread to a site
std::string text;

// Passes that the banks need: lanes go in groups whose accesses could fill all banks once.
void count_shared(Total& total, const std::vector<Lane>& lanes) {
  unsigned bytes = std::max(4u, lanes[0].bytes);
  int group = std::max(1, (int)(BANKS * BANK_BYTES / bytes));
  for (int first = 0; first < WARP; first += group) {
    std::set<uint64_t> words[BANKS];
    bool any = false;
    for (const Lane& l : lanes) {
      if (l.lane < first || l.lane >= first + group) continue;
      any = true;
      for (uint64_t w = l.address / BANK_BYTES; w <= (l.address + l.bytes - 1) / BANK_BYTES; ++w)
        words[w % BANKS].insert(w);
    }
    size_t most = 0;
    for (const auto& bank : words) most = std::max(most, bank.size());
    total.found += (long)most;
    total.ideal += any;
  }
}
void count_global(Total& total, const std::vector<Lane>& lanes) {
  std::set<uint64_t> sectors, bytes;
  for (const Lane& l : lanes)
    for (unsigned i = 0; i < l.bytes; ++i) {
      sectors.insert((l.address + i) / SECTOR);
      bytes.insert(l.address + i);
    }
  total.found += (long)sectors.size();
  total.ideal += (long)((bytes.size() + SECTOR - 1) / SECTOR);
}
void count(const Pending& p) {
  Total& total = totals[p.key];
  total.requests++;
  if (std::get<1>(p.key) <= SHARED_STORE) count_shared(total, p.lanes);
  else count_global(total, p.lanes);
}
}  // namespace

void note_access(Kind kind, const void* site, unsigned long place, unsigned bytes) {
  const Fiber& f = me();
  int warp = f.number / WARP;
  unsigned visit = visits[{f.number, site}]++;
  auto key = std::make_tuple(warp, site, visit);
  Pending& p = pending[key];
  p.key = {line, kind, bytes};
  p.lanes.push_back({lane_of(f), place, bytes});
  if ((int)p.lanes.size() == WARP) {
    count(p);
    pending.erase(key);
  }
}
void note_rows(Kind kind, const unsigned* offsets) {
  std::vector<Lane> lanes;
  for (int i = 0; i < 8; ++i) lanes.push_back({i, offsets[i], 16});
  Total& total = totals[{line, kind, 16}];
  total.requests++;
  count_shared(total, lanes);
}
void end_profile_of_blocks() {
  for (const auto& item : pending) count(item.second);
  pending.clear();
  visits.clear();
}
}  // namespace emu

extern "C" void emu_profile(int enabled) {
  emu::machine.counts = enabled != 0;
  emu::totals.clear();
}
// One line for each place and kind of access: line kind bytes requests found ideal.
extern "C" const char* emu_profile_text() {
  emu::text.clear();
  for (const auto& item : emu::totals) {
    auto [line, kind, bytes] = item.first;
    const emu::Total& t = item.second;
    for (long value : {(long)line, (long)kind, (long)bytes, t.requests, t.found, t.ideal})
      emu::text += std::to_string(value) + " ";
    emu::text += "\n";
  }
  return emu::text.c_str();
}
