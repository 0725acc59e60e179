// The body of the passes. Each passes_<isa>.cpp defines `Lanes` in an unnamed namespace and includes this once.
//
// Nothing here may instantiate a template of the standard library: the linker would be free to keep the copy compiled
// for AVX-512 and run it on a processor that lacks it.

namespace elasticdl {
namespace {

constexpr size_t kBucketsAhead = 24;
constexpr size_t kRowsAhead = 24;
// Rows that are moved span two lines or more: the second cache keeps more of them in flight than the first can ask for.
constexpr size_t kMovedAhead = 32;
constexpr size_t kMergeAhead = 16;
constexpr size_t kLine = 64;
constexpr size_t kMaxLines = 8;  // beyond these the processor's own prefetcher has noticed

using V = Lanes::V;

inline size_t lines_of(size_t bytes) {
  const size_t lines = (bytes + kLine - 1) / kLine;
  return lines < kMaxLines ? lines : kMaxLines;
}

// Locality as __builtin_prefetch has it: 3 brings the row into every cache, 2 into the second level only.
template <int Locality>
inline void prefetch_row(const RowsHead& rows, uint32_t slot, size_t lines) {
  const char* row = row_address(rows, slot);
  for (size_t line = 0; line < lines; ++line) __builtin_prefetch(row + line * kLine, 0, Locality);
}

inline const Bucket* first_bucket(const IndexHead& index, uint64_t hash) {
  return index.directory[(hash >> 1) >> index.shift] + (static_cast<uint32_t>(hash) & index.mask);
}

size_t resolve(const IndexHead& index, const int64_t* ids, size_t n, uint32_t* slots) {
  size_t absent = 0;
  const size_t lead = n < kBucketsAhead ? n : kBucketsAhead;
  for (size_t i = 0; i < lead; ++i) __builtin_prefetch(first_bucket(index, place_hash(ids[i])));
  for (size_t i = 0; i < n; ++i) {
    if (i + kBucketsAhead < n) __builtin_prefetch(first_bucket(index, place_hash(ids[i + kBucketsAhead])));
    const int64_t id = ids[i];
    const uint64_t hash = place_hash(id);
    const Bucket* bucket = first_bucket(index, hash);
    uint32_t slot = kAbsent;
    for (uint32_t at = static_cast<uint32_t>(hash) & index.mask;;) {
      const uint32_t hits = Lanes::equal_keys(*bucket, id) & ((1u << bucket->count) - 1);
      if (hits != 0) {
        slot = bucket->slots[__builtin_ctz(hits)];
        break;
      }
      if (bucket->count < kBucketKeys) break;
      const uint32_t next = (at + 1) & index.mask;
      bucket = bucket - at + next;
      at = next;
    }
    absent += slot == kAbsent;
    slots[i] = slot;
  }
  return absent;
}

inline void copy(float* to, const float* from, size_t n) {
  size_t i = 0;
  for (; i + Lanes::width <= n; i += Lanes::width) Lanes::store(to + i, Lanes::load(from + i));
  if (i < n) Lanes::store_part(to + i, Lanes::load_part(from + i, n - i), n - i);
}

inline void sum(float* to, const float* a, const float* b, size_t n) {
  size_t i = 0;
  for (; i + Lanes::width <= n; i += Lanes::width) Lanes::store(to + i, Lanes::load(a + i) + Lanes::load(b + i));
  if (i < n) Lanes::store_part(to + i, Lanes::load_part(a + i, n - i) + Lanes::load_part(b + i, n - i), n - i);
}

// Dim: known when compiled, or 0 for any.
template <size_t Dim>
void gather_rows(const RowsHead& rows, const uint32_t* slots, size_t n, float* out) {
  const size_t dim = Dim != 0 ? Dim : rows.dim;
  const size_t lines = lines_of(dim * sizeof(float));
  const size_t lead = n < kRowsAhead ? n : kRowsAhead;
  for (size_t i = 0; i < lead; ++i) prefetch_row<3>(rows, slots[i], lines);
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) prefetch_row<3>(rows, slots[i + kRowsAhead], lines);
    copy(out + i * dim, reinterpret_cast<const float*>(row_address(rows, slots[i])), dim);
  }
}

void gather(const RowsHead& rows, const uint32_t* slots, size_t n, float* out) {
  switch (rows.dim) {
    case 8:
      return gather_rows<8>(rows, slots, n, out);
    case 16:
      return gather_rows<16>(rows, slots, n, out);
    case 32:
      return gather_rows<32>(rows, slots, n, out);
    default:
      return gather_rows<0>(rows, slots, n, out);
  }
}

// Ids, not slots: what is repeated is looked up in the index once. A table entry is the upper half of an id's hash and
// the id's position among the distinct ones; all ones is empty.
size_t merge(const int64_t* ids, const float* gradients, size_t n, size_t dim, const MergeScratch& scratch) {
  const unsigned shift = 64 - scratch.table_bits;
  const uint32_t mask = (1u << scratch.table_bits) - 1;
  constexpr uint64_t kEmpty = ~uint64_t{0};
  uint64_t* table = scratch.table;
  for (size_t i = 0; i <= mask; ++i) table[i] = kEmpty;
  const auto spread = [](int64_t id) { return static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15ULL; };
  const auto home = [shift](uint64_t hash) { return static_cast<uint32_t>(hash >> shift); };
  uint32_t distinct = 0;
  float* free_sum = scratch.sums;
  for (size_t i = 0; i < n; ++i) {
    if (i + kMergeAhead < n) __builtin_prefetch(table + home(spread(ids[i + kMergeAhead])), 1);
    const int64_t id = ids[i];
    const float* gradient = gradients + i * dim;
    const uint64_t hash = spread(id);
    uint32_t at = home(hash);
    while (table[at] != kEmpty &&
           ((table[at] ^ hash) >> 32 != 0 || scratch.ids[static_cast<uint32_t>(table[at])] != id)) {
      at = (at + 1) & mask;
    }
    if (table[at] == kEmpty) {
      table[at] = (hash & ~uint64_t{0xffffffff}) | distinct;
      scratch.ids[distinct] = id;
      scratch.sources[distinct++] = gradient;
      continue;
    }
    const float*& source = scratch.sources[static_cast<uint32_t>(table[at])];
    const bool own = source >= scratch.sums && source < free_sum;
    float* total = own ? const_cast<float*>(source) : free_sum;
    sum(total, source, gradient, dim);
    if (!own) free_sum += dim;
    source = total;
  }
  return distinct;
}

// For exponents other than 1/2, which no default needs: one lane after the other.
inline V power(V v, float exponent) {
  float lanes[Lanes::width];
  Lanes::store(lanes, v);
  for (size_t i = 0; i < Lanes::width; ++i) lanes[i] = __builtin_powf(lanes[i], exponent);
  return Lanes::load(lanes);
}

// One rule with its numbers spread over the lanes. The order of operations is that of the library named.
// Prepared: weight decay or a turned sign come first, for any rule.
template <Rule R, bool Prepared>
struct Mover {
  static constexpr int kSlots = slots_of(R);
  static constexpr bool kKerasRms = R >= Rule::keras_rmsprop && R <= Rule::keras_rmsprop_centered_momentum;
  static constexpr bool kTorchRms = R >= Rule::torch_rmsprop && R <= Rule::torch_rmsprop_centered_momentum;
  static constexpr bool kRmsMomentum = R == Rule::keras_rmsprop_momentum || R == Rule::torch_rmsprop_momentum ||
                                       R == Rule::keras_rmsprop_centered_momentum ||
                                       R == Rule::torch_rmsprop_centered_momentum;
  static constexpr bool kRmsCentered = (kKerasRms || kTorchRms) && kSlots - kRmsMomentum == 2;

  explicit Mover(const Step& s)
      : rate(Lanes::spread(s.rate)),
        momentum(Lanes::spread(s.momentum)),
        fresh(Lanes::spread(s.fresh)),
        epsilon(Lanes::spread(s.epsilon)),
        one_minus_beta_1(Lanes::spread(s.one_minus_beta_1)),
        beta_2(Lanes::spread(s.beta_2)),
        one_minus_beta_2(Lanes::spread(s.one_minus_beta_2)),
        root_correction_2(Lanes::spread(s.root_correction_2)),
        l1(Lanes::spread(s.l1)),
        minus_l1(Lanes::spread(-s.l1)),
        twice_l2(Lanes::spread(s.twice_l2)),
        twice_shrinkage(Lanes::spread(s.twice_shrinkage)),
        sign(Lanes::spread(s.sign)),
        into_gradient(Lanes::spread(s.into_gradient)),
        keep(Lanes::spread(s.keep)),
        exponent(s.power) {}

  void move(V& w, V* s, V g) const {
    (void)s;
    if constexpr (Prepared) {
      g = g * sign + w * into_gradient;
      w = w * keep;
    }
    if constexpr (R == Rule::sgd) {
      w = w - g * rate;
    } else if constexpr (R == Rule::keras_momentum) {
      s[0] = s[0] * momentum - g * rate;
      w = w + s[0];
    } else if constexpr (R == Rule::keras_nesterov) {
      s[0] = s[0] * momentum - g * rate;
      w = w + (s[0] * momentum - g * rate);
    } else if constexpr (R == Rule::torch_momentum) {
      s[0] = s[0] * momentum + g * fresh;
      w = w - s[0] * rate;
    } else if constexpr (R == Rule::torch_nesterov) {
      s[0] = s[0] * momentum + g * fresh;
      w = w - (g + s[0] * momentum) * rate;
    } else if constexpr (R == Rule::keras_adagrad) {
      s[0] = s[0] + g * g;
      w = w - g * rate / Lanes::root(s[0] + epsilon);
    } else if constexpr (R == Rule::torch_adagrad) {
      s[0] = s[0] + g * g;
      w = w - g * rate / (Lanes::root(s[0]) + epsilon);
    } else if constexpr (R == Rule::keras_adam || R == Rule::keras_amsgrad) {
      s[0] = s[0] + (g - s[0]) * one_minus_beta_1;
      s[1] = s[1] + (g * g - s[1]) * one_minus_beta_2;
      V second = s[1];
      if constexpr (R == Rule::keras_amsgrad) second = s[2] = Lanes::larger(s[2], s[1]);
      w = w - s[0] * rate / (Lanes::root(second) + epsilon);
    } else if constexpr (R == Rule::torch_adam || R == Rule::torch_amsgrad) {
      s[0] = s[0] + (g - s[0]) * one_minus_beta_1;
      s[1] = s[1] * beta_2 + g * g * one_minus_beta_2;
      V second = s[1];
      if constexpr (R == Rule::torch_amsgrad) second = s[2] = Lanes::larger(s[2], s[1]);
      w = w - s[0] * rate / (Lanes::root(second) / root_correction_2 + epsilon);
    } else if constexpr (kKerasRms || kTorchRms) {
      move_rms(w, s, g);
    } else {
      move_ftrl(w, s, g);
    }
  }

  // Slots: mean square, then momentum, then mean, those that there are.
  void move_rms(V& w, V* s, V g) const {
    s[0] = s[0] * beta_2 + g * g * one_minus_beta_2;
    V square = s[0];
    if constexpr (kRmsCentered) {
      V& mean = s[kSlots - 1];
      mean = kKerasRms ? mean * beta_2 + g * one_minus_beta_2 : mean + (g - mean) * one_minus_beta_2;
      // Never below 0, where rounding would give the libraries a NaN.
      square = Lanes::larger(square - mean * mean, Lanes::spread(0.0f));
    }
    if constexpr (kKerasRms) {
      const V increment = g * rate / Lanes::root(square + epsilon);
      if constexpr (kRmsMomentum) s[1] = s[1] * momentum + increment;
      w = w - (kRmsMomentum ? s[kRmsMomentum] : increment);
    } else if constexpr (kRmsMomentum) {
      s[1] = s[1] * momentum + g / (Lanes::root(square) + epsilon);
      w = w - s[1] * rate;
    } else {
      w = w - g * rate / (Lanes::root(square) + epsilon);
    }
  }

  // Slots: accumulator, linear.
  void move_ftrl(V& w, V* s, V g) const {
    const V sum = s[0] + g * g;
    const V before = raised(s[0]), after = raised(sum);
    s[1] = s[1] + ((g + w * twice_shrinkage) - (after - before) / rate * w);
    s[0] = sum;
    const V clipped = Lanes::smaller(Lanes::larger(s[1], minus_l1), l1);
    w = (clipped - s[1]) / (after / rate + twice_l2);
  }

  V raised(V v) const {
    if constexpr (R == Rule::ftrl_any_power) return power(v, exponent);
    return Lanes::root(v);
  }

  // Slot k starts at s + k * stride.
  void span(float* w, float* s, size_t stride, const float* g, size_t n) const {
    V state[kSlots != 0 ? kSlots : 1] = {};
    size_t i = 0;
    for (; i + Lanes::width <= n; i += Lanes::width) {
      V weight = Lanes::load(w + i);
      for (int k = 0; k < kSlots; ++k) state[k] = Lanes::load(s + k * stride + i);
      move(weight, state, Lanes::load(g + i));
      Lanes::store(w + i, weight);
      for (int k = 0; k < kSlots; ++k) Lanes::store(s + k * stride + i, state[k]);
    }
    if (i < n) {
      const size_t rest = n - i;
      V weight = Lanes::load_part(w + i, rest);
      for (int k = 0; k < kSlots; ++k) state[k] = Lanes::load_part(s + k * stride + i, rest);
      move(weight, state, Lanes::load_part(g + i, rest));
      Lanes::store_part(w + i, weight, rest);
      for (int k = 0; k < kSlots; ++k) Lanes::store_part(s + k * stride + i, state[k], rest);
    }
  }

  V rate, momentum, fresh, epsilon, one_minus_beta_1, beta_2, one_minus_beta_2, root_correction_2;
  V l1, minus_l1, twice_l2, twice_shrinkage, sign, into_gradient, keep;
  float exponent;
};

template <Rule R, bool Prepared, size_t Dim>
void apply_rows(const RowsHead& rows, const uint32_t* slots, const float* gradients, const float* const* sources,
                size_t n, const Step& step) {
  const Mover<R, Prepared> mover(step);
  const size_t dim = Dim != 0 ? Dim : rows.dim;
  const size_t lines = lines_of(dim * (1 + slots_of(R)) * sizeof(float));
  const size_t lead = n < kMovedAhead ? n : kMovedAhead;
  for (size_t i = 0; i < lead; ++i) prefetch_row<2>(rows, slots[i], lines);
  for (size_t i = 0; i < n; ++i) {
    if (i + kMovedAhead < n) prefetch_row<2>(rows, slots[i + kMovedAhead], lines);
    float* row = reinterpret_cast<float*>(row_address(rows, slots[i]));
    mover.span(row, row + dim, dim, sources != nullptr ? sources[i] : gradients + i * dim, dim);
  }
}

template <Rule R, bool Prepared>
void apply(const RowsHead& rows, const uint32_t* slots, const float* gradients, const float* const* sources, size_t n,
           const Step& step) {
  switch (rows.dim) {
    case 8:
      return apply_rows<R, Prepared, 8>(rows, slots, gradients, sources, n, step);
    case 16:
      return apply_rows<R, Prepared, 16>(rows, slots, gradients, sources, n, step);
    case 32:
      return apply_rows<R, Prepared, 32>(rows, slots, gradients, sources, n, step);
    default:
      return apply_rows<R, Prepared, 0>(rows, slots, gradients, sources, n, step);
  }
}

template <Rule R, bool Prepared>
void dense(float* weights, float* slots, const float* gradients, size_t n, const Step& step) {
  Mover<R, Prepared>(step).span(weights, slots, n, gradients, n);
}

#define ELASTICDL_APPLY(name) {apply<Rule::name, false>, apply<Rule::name, true>},
#define ELASTICDL_DENSE(name) {dense<Rule::name, false>, dense<Rule::name, true>},
const Passes kPasses = {
    Lanes::name, resolve, gather, merge, {ELASTICDL_EACH_RULE(ELASTICDL_APPLY)}, {ELASTICDL_EACH_RULE(ELASTICDL_DENSE)},
};
#undef ELASTICDL_APPLY
#undef ELASTICDL_DENSE

}  // namespace
}  // namespace elasticdl
