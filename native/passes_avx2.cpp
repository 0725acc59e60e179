// The passes for AVX2: eight floats at a time. Empty where the compiler does not target it.
#include "passes.h"

#if defined(__AVX2__)
#include <immintrin.h>

namespace elasticdl {
namespace {

struct Lanes {
  using V = __m256;
  static constexpr const char* name = "avx2";
  static constexpr size_t width = 8;
  static V spread(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static __m256i first(size_t count) {
    static const int32_t kEdge[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kEdge + 8 - count));
  }
  static V load_part(const float* p, size_t count) { return _mm256_maskload_ps(p, first(count)); }
  static void store_part(float* p, V v, size_t count) { _mm256_maskstore_ps(p, first(count), v); }
  static V root(V v) { return _mm256_sqrt_ps(v); }
  static V larger(V a, V b) { return _mm256_max_ps(a, b); }
  static V smaller(V a, V b) { return _mm256_min_ps(a, b); }
  static uint32_t equal_keys(const Bucket& bucket, int64_t id) {
    const __m256i four = _mm256_load_si256(reinterpret_cast<const __m256i*>(bucket.keys));
    const __m256i equal = _mm256_cmpeq_epi64(four, _mm256_set1_epi64x(id));
    const uint32_t hits = static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(equal)));
    return hits | static_cast<uint32_t>(bucket.keys[4] == id) << 4;
  }
};

}  // namespace
}  // namespace elasticdl

#include "passes_impl.h"

namespace elasticdl {
const Passes* avx2_passes() { return __builtin_cpu_supports("avx2") ? &kPasses : nullptr; }
}  // namespace elasticdl

#else

namespace elasticdl {
const Passes* avx2_passes() { return nullptr; }
}  // namespace elasticdl

#endif
