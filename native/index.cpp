#include "index.h"

#include <stdexcept>
#include <utility>

namespace elasticdl {
namespace {

constexpr size_t kFirstBuckets = kPage / sizeof(Bucket);
constexpr size_t kSegmentBuckets = kHugePage / sizeof(Bucket);
constexpr unsigned kMaxDepth = 30;

size_t places(size_t buckets) { return buckets * kBucketKeys; }

// From 0.45 to 0.50 of the places, spread over the segments by the golden ratio.
uint32_t limit_of(size_t number, size_t buckets) {
  if (buckets < kSegmentBuckets) return static_cast<uint32_t>(places(buckets) / 2);
  const uint64_t spread = (number * kGolden) >> 58;  // 0..63
  return static_cast<uint32_t>(places(buckets) * (576 + spread) / 1280);
}

}  // namespace

Index::Index(size_t expected_rows) {
  size_t buckets = kFirstBuckets;
  while (buckets < kSegmentBuckets && places(buckets) / 2 < expected_rows) buckets *= 2;
  if (buckets == kSegmentBuckets) {
    while ((size_t{limit_of(0, buckets)} << depth_) < expected_rows) ++depth_;
  }
  mask_ = static_cast<uint32_t>(buckets - 1);
  const size_t count = size_t{1} << depth_;
  segments_.reserve(count);
  for (size_t number = 0; number < count; ++number) {
    segments_.push_back(make_segment(number, depth_, buckets));
    owners_.push_back(static_cast<uint32_t>(number));
    directory_.push_back(segments_.back().buckets());
  }
}

Index::Segment Index::make_segment(size_t number, unsigned depth, size_t buckets) const {
  Segment segment;
  segment.pages = Pages(buckets * sizeof(Bucket), 0);
  segment.depth = depth;
  segment.limit = limit_of(number, buckets);
  return segment;
}

uint32_t Index::find(int64_t id) const {
  const uint64_t hash = place_hash(id);
  const Bucket* buckets = directory_[directory_entry(hash)];
  for (uint32_t at = static_cast<uint32_t>(hash) & mask_;; at = (at + 1) & mask_) {
    const Bucket& bucket = buckets[at];
    for (uint32_t i = 0; i < bucket.count; ++i) {
      if (bucket.keys[i] == id) return bucket.slots[i];
    }
    if (bucket.count < kBucketKeys) return kAbsent;
  }
}

void Index::place(Bucket* buckets, uint32_t mask, uint64_t hash, int64_t id, uint32_t slot) {
  uint32_t at = static_cast<uint32_t>(hash) & mask;
  while (buckets[at].count == kBucketKeys) at = (at + 1) & mask;
  Bucket& bucket = buckets[at];
  bucket.keys[bucket.count] = id;
  bucket.slots[bucket.count] = slot;
  ++bucket.count;
}

void Index::insert(int64_t id, uint32_t slot) {
  const uint64_t hash = place_hash(id);
  size_t entry = directory_entry(hash);
  while (segments_[owners_[entry]].count >= segments_[owners_[entry]].limit) {
    if (size_t{mask_} + 1 < kSegmentBuckets) {
      widen();
    } else {
      split(hash);
    }
    entry = directory_entry(hash);
  }
  place(directory_[entry], mask_, hash, id, slot);
  ++segments_[owners_[entry]].count;
}

Index::Position Index::position(int64_t id) const {
  const uint64_t hash = place_hash(id);
  Bucket* buckets = directory_[directory_entry(hash)];
  for (uint32_t at = static_cast<uint32_t>(hash) & mask_;; at = (at + 1) & mask_) {
    for (uint32_t i = 0; i < buckets[at].count; ++i) {
      if (buckets[at].keys[i] == id) return {buckets, at, i};
    }
  }
}

void Index::move(int64_t id, uint32_t slot) {
  const Position found = position(id);
  found.buckets[found.bucket].slots[found.key] = slot;
}

// No mark is left behind: while the bucket with the gap had been full, ids may have been pushed past it, and the first
// of those is drawn back into the gap, which opens one where it was.
void Index::erase(int64_t id) {
  const Position found = position(id);
  Bucket* buckets = found.buckets;
  uint32_t gap = found.bucket;
  bool full = buckets[gap].count == kBucketKeys;
  const auto take_out = [&](uint32_t bucket, uint32_t key) {
    Bucket& from = buckets[bucket];
    const uint32_t last = --from.count;
    from.keys[key] = from.keys[last];
    from.slots[key] = from.slots[last];
  };
  take_out(gap, found.key);
  for (uint32_t at = (gap + 1) & mask_; full; at = (at + 1) & mask_) {
    Bucket& bucket = buckets[at];
    full = bucket.count == kBucketKeys;  // ids were pushed past this one too
    for (uint32_t i = 0; i < bucket.count; ++i) {
      const uint32_t home = static_cast<uint32_t>(place_hash(bucket.keys[i])) & mask_;
      if (((at - home) & mask_) < ((at - gap) & mask_)) continue;  // its way does not lead over the gap
      Bucket& to = buckets[gap];
      to.keys[to.count] = bucket.keys[i];
      to.slots[to.count++] = bucket.slots[i];
      take_out(at, i);
      gap = at;
      break;
    }
  }
  --segments_[owners_[directory_entry(place_hash(id))]].count;
}

void Index::widen() {
  Segment& old = segments_.front();
  const size_t buckets = (size_t{mask_} + 1) * 2;
  Segment wide = make_segment(0, 0, buckets);
  const uint32_t mask = static_cast<uint32_t>(buckets - 1);
  for (size_t b = 0; b <= mask_; ++b) {
    const Bucket& bucket = old.buckets()[b];
    for (uint32_t i = 0; i < bucket.count; ++i) {
      place(wide.buckets(), mask, place_hash(bucket.keys[i]), bucket.keys[i], bucket.slots[i]);
    }
  }
  wide.count = old.count;
  directory_.front() = wide.buckets();
  old = std::move(wide);
  mask_ = mask;
}

void Index::split(uint64_t hash) {
  const uint32_t number = owners_[directory_entry(hash)];
  const unsigned depth = segments_[number].depth;
  if (depth == kMaxDepth) throw std::runtime_error("row index: too many ids share a hash prefix");
  // Everything that can fail comes first.
  segments_.reserve(segments_.size() + 1);
  if (depth == depth_) {
    std::vector<uint32_t> owners(owners_.size() * 2);
    std::vector<Bucket*> directory(owners.size());
    for (size_t i = 0; i < owners.size(); ++i) {
      owners[i] = owners_[i / 2];
      directory[i] = directory_[i / 2];
    }
    owners_ = std::move(owners);
    directory_ = std::move(directory);
    ++depth_;
  }
  const uint32_t sibling = static_cast<uint32_t>(segments_.size());
  Segment high = make_segment(sibling, depth + 1, size_t{mask_} + 1);
  struct Displaced {
    int64_t id;
    uint64_t hash;
    uint32_t slot;
  };
  std::vector<Displaced> displaced;
  displaced.reserve(segments_[number].count);

  // The low half stays where it is. Taking the high half out leaves gaps, so ids that had been pushed on to a later
  // bucket are lifted out as well and placed again once every other one is known to sit at home.
  Segment& low = segments_[number];
  for (uint32_t b = 0; b <= mask_; ++b) {
    Bucket& bucket = low.buckets()[b];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < bucket.count; ++i) {
      const int64_t id = bucket.keys[i];
      const uint32_t slot = bucket.slots[i];
      const uint64_t h = place_hash(id);
      if ((h >> (63 - depth)) & 1) {
        place(high.buckets(), mask_, h, id, slot);
        ++high.count;
      } else if ((static_cast<uint32_t>(h) & mask_) != b) {
        displaced.push_back({id, h, slot});
      } else {
        bucket.keys[kept] = id;
        bucket.slots[kept++] = slot;
      }
    }
    bucket.count = kept;
  }
  for (const Displaced& d : displaced) place(low.buckets(), mask_, d.hash, d.id, d.slot);
  low.count -= high.count;
  low.depth = depth + 1;

  for (size_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == number && ((i >> (depth_ - depth - 1)) & 1) != 0) {
      owners_[i] = sibling;
      directory_[i] = high.buckets();
    }
  }
  segments_.push_back(std::move(high));
}

}  // namespace elasticdl
