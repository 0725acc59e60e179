// A client's ids before it sends them: each once, grouped by server.
#pragma once
#include <cstddef>
#include <cstdint>

namespace elasticdl {

constexpr uint64_t kPartitions = 1024;

// The partition of an id, the same in every process and release; the low ten bits choose it.
inline uint64_t partition_hash(int64_t id) {
  uint64_t z = static_cast<uint64_t>(id);
  z = (z ^ (z >> 31)) * 0x7fb5d329728ea185ULL;
  z = (z ^ (z >> 27)) * 0x81dadef4bc2dd44dULL;
  return z ^ (z >> 33);
}

// The server of each partition: a function of the number of servers. A further server takes an equal share from each of
// the others; no other partition moves. Without it they get their shares back.
const uint16_t* partition_owners(size_t servers);

inline size_t server_of(uint64_t hash, const uint16_t* owners) { return owners[hash & (kPartitions - 1)]; }

// Which server holds each id, and how many each holds; whether the ids lie grouped by server already.
bool owners(const int64_t* ids, size_t n, size_t servers, uint16_t* owner, size_t* counts);

// Positions of the ids, those of server 0 first, in their order.
void group_order(const uint16_t* owner, size_t n, size_t servers, const size_t* counts, int64_t* order);

// Distinct ids, grouped by server, in the order in which they first appear; where each id went. Returns how many.
size_t distinct(const int64_t* ids, size_t n, size_t servers, int64_t* unique, int64_t* positions, size_t* counts);

// out[order[i]] = rows[i], and the other way round, for rows of `bytes` bytes.
void scatter_rows(const int64_t* order, size_t n, size_t bytes, const char* rows, char* out);
void gather_rows(const int64_t* order, size_t n, size_t bytes, const char* rows, char* out);

}  // namespace elasticdl
