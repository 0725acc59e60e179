// The passes in plain C++, for any processor.
#include "passes.h"

namespace elasticdl {
namespace {

struct Lanes {
  using V = float;
  static constexpr const char* name = "scalar";
  static constexpr size_t width = 1;
  static V spread(float x) { return x; }
  static V load(const float* p) { return *p; }
  static void store(float* p, V v) { *p = v; }
  static V load_part(const float* p, size_t) { return *p; }
  static void store_part(float* p, V v, size_t) { *p = v; }
  static V root(V v) { return __builtin_sqrtf(v); }
  static V larger(V a, V b) { return a > b ? a : b; }
  static V smaller(V a, V b) { return a < b ? a : b; }
  static uint32_t equal_keys(const Bucket& bucket, int64_t id) {
    uint32_t hits = 0;
    for (int i = 0; i < kBucketKeys; ++i) hits |= static_cast<uint32_t>(bucket.keys[i] == id) << i;
    return hits;
  }
};

}  // namespace
}  // namespace elasticdl

#include "passes_impl.h"

namespace elasticdl {
const Passes* scalar_passes() { return &kPasses; }
}  // namespace elasticdl
