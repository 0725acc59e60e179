// The loops over whole batches, compiled once per instruction set. They allocate nothing and throw nothing.
#pragma once
#include <cstddef>
#include <cstdint>

#include "index.h"
#include "optimizer.h"
#include "rows.h"

namespace elasticdl {

// Scratch of `merge`, all of it owned by the caller.
struct MergeScratch {
  uint64_t* table;  // 2^table_bits entries, at least twice the ids
  unsigned table_bits;
  int64_t* ids;           // out: the distinct ones, in order of first appearance
  const float** sources;  // out: the gradient of each, in the caller's array or in `sums`
  float* sums;            // room for half as many gradients as ids
};

struct Passes {
  const char* name;

  // Ids to slots, kAbsent where there is no row. Returns how many are absent.
  size_t (*resolve)(const IndexHead& index, const int64_t* ids, size_t n, uint32_t* slots);

  // The weights of each slot's row, one after the other.
  void (*gather)(const RowsHead& rows, const uint32_t* slots, size_t n, float* out);

  // The distinct ids, gradients of repeats added in their order. Returns how many there are.
  size_t (*merge)(const int64_t* ids, const float* gradients, size_t n, size_t dim, const MergeScratch& scratch);

  // One optimizer step on each row. Gradient i is sources[i], or row i of `gradients` when sources is null.
  using Apply = void (*)(const RowsHead& rows, const uint32_t* slots, const float* gradients,
                         const float* const* sources, size_t n, const Step& step);
  Apply apply[kRules][2];  // by rule and Step::prepared

  // One optimizer step on a dense tensor whose slots are tensors of their own, one after the other.
  using Dense = void (*)(float* weights, float* slots, const float* gradients, size_t n, const Step& step);
  Dense dense[kRules][2];
};

// Null where this build or this processor lacks the instruction set.
const Passes* scalar_passes();
const Passes* avx2_passes();
const Passes* avx512_passes();

const Passes& passes();  // the best this processor runs, or the one chosen
void choose_passes(const char* name);

}  // namespace elasticdl
