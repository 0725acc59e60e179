// The index: id -> slot number of its row. Extendible hashing over segments of 64-byte buckets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hash.h"
#include "memory.h"

namespace elasticdl {

constexpr int kBucketKeys = 5;
constexpr uint32_t kAbsent = 0xffffffffu;  // not a slot: the id has no row

// One cache line. Keys fill it from the front and `count` says how many are valid, so no id is reserved as a mark.
struct alignas(64) Bucket {
  int64_t keys[kBucketKeys];
  uint32_t slots[kBucketKeys];
  uint32_t count;
};
static_assert(sizeof(Bucket) == 64, "a bucket is one cache line");

// What a lookup needs. The top bits of the hash choose a segment, its low bits the bucket where probing starts.
struct IndexHead {
  Bucket* const* directory;
  unsigned shift;  // 63 - bits of the directory
  uint32_t mask;   // buckets per segment - 1
};

// A segment never exceeds 2 MiB (one huge page) and half its places. Growing splits one segment into two: about a
// millisecond and one new huge page, however large the table. Limits are staggered so that a batch of births meets
// few splits.
class Index {
 public:
  explicit Index(size_t expected_rows);

  IndexHead head() const { return {directory_.data(), 63 - depth_, mask_}; }
  uint32_t find(int64_t id) const;
  void insert(int64_t id, uint32_t slot);  // the id must be absent; throws before anything changed
  void erase(int64_t id);                  // the id must be there
  void move(int64_t id, uint32_t slot);    // the same; another slot for it
  size_t bytes() const { return segments_.size() * (size_t{mask_} + 1) * sizeof(Bucket); }

 private:
  struct Segment {
    Pages pages;
    unsigned depth = 0;  // how many top bits of the hash its ids share
    uint32_t count = 0;
    uint32_t limit = 0;
    Bucket* buckets() const { return reinterpret_cast<Bucket*>(pages.data()); }
  };

  Segment make_segment(size_t number, unsigned depth, size_t buckets) const;
  struct Position {
    Bucket* buckets;
    uint32_t bucket, key;
  };
  Position position(int64_t id) const;  // of an id that is there
  size_t directory_entry(uint64_t hash) const { return (hash >> 1) >> (63 - depth_); }
  void widen();               // one segment below 2 MiB: twice the buckets
  void split(uint64_t hash);  // the segment of this hash: two segments
  static void place(Bucket* buckets, uint32_t mask, uint64_t hash, int64_t id, uint32_t slot);

  std::vector<Segment> segments_;
  std::vector<uint32_t> owners_;    // directory entry -> segment number
  std::vector<Bucket*> directory_;  // directory entry -> the segment's buckets, what lookups read
  unsigned depth_ = 0;
  uint32_t mask_ = 0;
};

}  // namespace elasticdl
