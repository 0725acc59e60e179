// The two hash functions: one places ids in the index, one draws the numbers a row is born with.
#pragma once
#include <cstdint>

namespace elasticdl {

// Places an id in the index. Its own function, so that ids which share a server do not share a segment.
inline uint64_t place_hash(int64_t id) {
  uint64_t x = static_cast<uint64_t>(id) ^ 0x5bd1e995c3a8f7b1ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

// Where the stream of random numbers of one row starts; number k of it is mix64(stream + (k + 1) * kGolden).
inline uint64_t stream_of(uint64_t seed, int64_t id) {
  return mix64(mix64(seed + kGolden) ^ static_cast<uint64_t>(id));
}

}  // namespace elasticdl
