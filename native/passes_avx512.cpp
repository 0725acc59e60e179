// The passes for AVX-512: sixteen floats, or a whole bucket, at a time. Empty where the compiler does not target it.
#include "passes.h"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace elasticdl {
namespace {

struct Lanes {
  using V = __m512;
  static constexpr const char* name = "avx512";
  static constexpr size_t width = 16;
  static V spread(float x) { return _mm512_set1_ps(x); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static __mmask16 first(size_t count) { return static_cast<__mmask16>((1u << count) - 1); }
  // Up to eight floats in the narrower form: the slots of a row of eight begin in the middle of a cache line, and a wide
  // access there, masked or not, would touch the next row's.
  static V load_part(const float* p, size_t count) {
    if (count <= 8) return _mm512_zextps256_ps512(_mm256_maskz_loadu_ps(static_cast<__mmask8>(first(count)), p));
    return _mm512_maskz_loadu_ps(first(count), p);
  }
  static void store_part(float* p, V v, size_t count) {
    if (count <= 8) return _mm256_mask_storeu_ps(p, static_cast<__mmask8>(first(count)), _mm512_castps512_ps256(v));
    _mm512_mask_storeu_ps(p, first(count), v);
  }
  // The masked forms: GCC 12 warns about the plain ones in its own header.
  static V root(V v) { return _mm512_maskz_sqrt_ps(0xffff, v); }
  static V larger(V a, V b) { return _mm512_maskz_max_ps(0xffff, a, b); }
  static V smaller(V a, V b) { return _mm512_maskz_min_ps(0xffff, a, b); }
  static uint32_t equal_keys(const Bucket& bucket, int64_t id) {
    return _mm512_cmpeq_epi64_mask(_mm512_load_si512(&bucket), _mm512_set1_epi64(id));
  }
};

}  // namespace
}  // namespace elasticdl

#include "passes_impl.h"

namespace elasticdl {
const Passes* avx512_passes() {
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
  return has ? &kPasses : nullptr;
}
}  // namespace elasticdl

#else

namespace elasticdl {
const Passes* avx512_passes() { return nullptr; }
}  // namespace elasticdl

#endif
