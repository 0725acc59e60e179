// Ids by server, each once: a hash table of small entries, filled with prefetches ahead.
#include "split.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace elasticdl {
namespace {

constexpr size_t kAhead = 16;  // how far lookups are prefetched
constexpr size_t kRowsAhead = 8;

// A slot holds the number of a distinct id plus one in its low half, bits of its hash in the other; 0 is empty.
class Seen {
 public:
  explicit Seen(size_t n) {
    size_t size = 64;
    while (size < 2 * n) size *= 2;
    slots_.reset(new uint64_t[size]());
    mask_ = size - 1;
  }

  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[place(hash)], 1); }

  // The number of the id, or `next` if it is new.
  uint32_t find_or_add(int64_t id, uint64_t hash, uint32_t next, const int64_t* known) {
    const uint64_t tag = hash & 0xffffffff00000000ULL;
    for (size_t at = place(hash);; at = (at + 1) & mask_) {
      const uint64_t slot = slots_[at];
      if (slot == 0) {
        slots_[at] = tag | (next + 1);
        return next;
      }
      const uint32_t number = static_cast<uint32_t>(slot) - 1;
      if ((slot & 0xffffffff00000000ULL) == tag && known[number] == id) return number;
    }
  }

 private:
  size_t place(uint64_t hash) const { return (hash >> 10) & mask_; }

  std::unique_ptr<uint64_t[]> slots_;
  size_t mask_;
};

template <size_t Bytes>
void copy_row(char* to, const char* from) {
  std::memcpy(to, from, Bytes);
}

// Calls `move(i)` for each row with the size known to the compiler where it is a usual one.
template <class Move>
void rows_of_size(size_t bytes, Move&& move) {
  switch (bytes) {
    case 4: return move([](char* to, const char* from) { copy_row<4>(to, from); });
    case 16: return move([](char* to, const char* from) { copy_row<16>(to, from); });
    case 32: return move([](char* to, const char* from) { copy_row<32>(to, from); });
    case 64: return move([](char* to, const char* from) { copy_row<64>(to, from); });
    case 128: return move([](char* to, const char* from) { copy_row<128>(to, from); });
    case 256: return move([](char* to, const char* from) { copy_row<256>(to, from); });
    default: return move([bytes](char* to, const char* from) { std::memcpy(to, from, bytes); });
  }
}

}  // namespace

const uint16_t* partition_owners(size_t servers) {
  static std::mutex lock;
  static std::map<size_t, std::vector<uint16_t>> made;
  const std::lock_guard<std::mutex> held(lock);
  auto found = made.find(servers);
  if (found != made.end()) return found->second.data();
  std::vector<std::vector<uint16_t>> shares(1);
  for (uint64_t p = 0; p < kPartitions; ++p) shares[0].push_back(static_cast<uint16_t>(p));
  while (shares.size() < servers) {
    std::vector<uint16_t> newcomer;
    const size_t share = kPartitions / (shares.size() + 1);
    while (newcomer.size() < share) {
      auto fullest = std::max_element(shares.begin(), shares.end(),
                                      [](const auto& a, const auto& b) { return a.size() < b.size(); });
      newcomer.push_back(fullest->back());
      fullest->pop_back();
    }
    shares.push_back(std::move(newcomer));
  }
  std::vector<uint16_t> owners(kPartitions);
  for (size_t s = 0; s < shares.size(); ++s) {
    for (uint16_t p : shares[s]) owners[p] = static_cast<uint16_t>(s);
  }
  return made.emplace(servers, std::move(owners)).first->second.data();
}

bool owners(const int64_t* ids, size_t n, size_t servers, uint16_t* owner, size_t* counts) {
  std::fill(counts, counts + servers, size_t{0});
  const uint16_t* const holders = partition_owners(servers);
  bool grouped = true;
  size_t last = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t s = server_of(partition_hash(ids[i]), holders);
    owner[i] = static_cast<uint16_t>(s);
    ++counts[s];
    grouped &= s >= last;
    last = s;
  }
  return grouped;
}

void group_order(const uint16_t* owner, size_t n, size_t servers, const size_t* counts, int64_t* order) {
  std::vector<size_t> next(servers);
  for (size_t s = 1; s < servers; ++s) next[s] = next[s - 1] + counts[s - 1];
  for (size_t i = 0; i < n; ++i) order[next[owner[i]]++] = static_cast<int64_t>(i);
}

size_t distinct(const int64_t* ids, size_t n, size_t servers, int64_t* unique, int64_t* positions, size_t* counts) {
  std::fill(counts, counts + servers, size_t{0});
  const uint16_t* const holders = partition_owners(servers);
  Seen seen(n);
  std::unique_ptr<int64_t[]> known(new int64_t[n]);
  std::unique_ptr<uint16_t[]> owner(new uint16_t[n]);
  uint64_t hashes[kAhead];
  for (size_t i = 0; i < std::min(n, kAhead); ++i) {
    hashes[i] = partition_hash(ids[i]);
    seen.prefetch(hashes[i]);
  }
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = hashes[i % kAhead];
    if (i + kAhead < n) {
      hashes[i % kAhead] = partition_hash(ids[i + kAhead]);
      seen.prefetch(hashes[i % kAhead]);
    }
    const uint32_t number = seen.find_or_add(ids[i], hash, found, known.get());
    if (number == found) {
      known[found] = ids[i];
      const size_t s = server_of(hash, holders);
      owner[found] = static_cast<uint16_t>(s);
      ++counts[s];
      ++found;
    }
    positions[i] = number;
  }
  if (servers == 1) {
    std::copy(known.get(), known.get() + found, unique);
    return found;
  }
  std::vector<uint32_t> next(servers);
  for (size_t s = 1; s < servers; ++s) next[s] = next[s - 1] + static_cast<uint32_t>(counts[s - 1]);
  std::unique_ptr<uint32_t[]> place(new uint32_t[found]);
  for (uint32_t k = 0; k < found; ++k) {
    place[k] = next[owner[k]]++;
    unique[place[k]] = known[k];
  }
  for (size_t i = 0; i < n; ++i) positions[i] = place[positions[i]];
  return found;
}

void scatter_rows(const int64_t* order, size_t n, size_t bytes, const char* rows, char* out) {
  rows_of_size(bytes, [&](auto copy) {
    for (size_t i = 0; i < n; ++i) {
      if (i + kRowsAhead < n) __builtin_prefetch(out + order[i + kRowsAhead] * bytes, 1);
      copy(out + order[i] * bytes, rows + i * bytes);
    }
  });
}

void gather_rows(const int64_t* order, size_t n, size_t bytes, const char* rows, char* out) {
  rows_of_size(bytes, [&](auto copy) {
    for (size_t i = 0; i < n; ++i) {
      if (i + kRowsAhead < n) __builtin_prefetch(rows + order[i + kRowsAhead] * bytes);
      copy(out + i * bytes, rows + order[i] * bytes);
    }
  });
}

}  // namespace elasticdl
