// The body of the passes. Each passes_<isa>.cpp defines `Lanes` in an unnamed namespace and includes this once.
//
// Nothing here may instantiate a template of the standard library: the linker would be free to keep the copy compiled
// for AVX-512 and run it on a processor that lacks it.

namespace elasticdl {
namespace {

constexpr size_t kBucketsAhead = 24;
constexpr size_t kRowsAhead = 24;
constexpr size_t kMergeAhead = 16;
constexpr size_t kLine = 64;
constexpr size_t kMaxLines = 8;  // beyond these the processor's own prefetcher has noticed

using V = Lanes::V;

inline size_t lines_of(size_t bytes) {
  const size_t lines = (bytes + kLine - 1) / kLine;
  return lines < kMaxLines ? lines : kMaxLines;
}

inline void prefetch_row(const RowsHead& rows, uint32_t slot, size_t lines) {
  const char* row = row_address(rows, slot);
  for (size_t line = 0; line < lines; ++line) __builtin_prefetch(row + line * kLine);
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
  for (size_t i = 0; i < lead; ++i) prefetch_row(rows, slots[i], lines);
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) prefetch_row(rows, slots[i + kRowsAhead], lines);
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

// A table entry is slot << 32 | position among the distinct ones; all ones is empty (kAbsent is no slot).
size_t merge(uint32_t* slots, const float* gradients, size_t n, size_t dim, const MergeScratch& scratch) {
  const unsigned shift = 32 - scratch.table_bits;
  const uint32_t mask = (1u << scratch.table_bits) - 1;
  uint64_t* table = scratch.table;
  for (size_t i = 0; i <= mask; ++i) table[i] = ~uint64_t{0};
  const auto home = [shift](uint32_t slot) { return (slot * 0x9e3779b1u) >> shift; };
  size_t distinct = 0;
  float* free_sum = scratch.sums;
  for (size_t i = 0; i < n; ++i) {
    if (i + kMergeAhead < n) __builtin_prefetch(table + home(slots[i + kMergeAhead]), 1);
    const uint32_t slot = slots[i];
    const float* gradient = gradients + i * dim;
    uint32_t at = home(slot);
    while (table[at] != ~uint64_t{0} && table[at] >> 32 != slot) at = (at + 1) & mask;
    if (table[at] == ~uint64_t{0}) {
      table[at] = uint64_t{slot} << 32 | distinct;
      slots[distinct] = slot;
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

constexpr int slots_of(Rule rule) {
  return rule == Rule::sgd ? 0 : (rule == Rule::keras_adam || rule == Rule::torch_adam ? 2 : 1);
}

// One rule with its numbers spread over the lanes. The order of operations is that of the library named.
template <Rule R>
struct Mover {
  explicit Mover(const Step& s)
      : rate(Lanes::spread(s.rate)),
        momentum(Lanes::spread(s.momentum)),
        epsilon(Lanes::spread(s.epsilon)),
        one_minus_beta_1(Lanes::spread(s.one_minus_beta_1)),
        beta_2(Lanes::spread(s.beta_2)),
        one_minus_beta_2(Lanes::spread(s.one_minus_beta_2)),
        root_correction_2(Lanes::spread(s.root_correction_2)) {}

  void move(V& w, V& s0, V& s1, V g) const {
    (void)s0, (void)s1;
    if constexpr (R == Rule::sgd) {
      w = w - g * rate;
    } else if constexpr (R == Rule::keras_momentum) {
      s0 = s0 * momentum - g * rate;
      w = w + s0;
    } else if constexpr (R == Rule::keras_nesterov) {
      s0 = s0 * momentum - g * rate;
      w = w + (s0 * momentum - g * rate);
    } else if constexpr (R == Rule::torch_momentum) {
      s0 = s0 * momentum + g;
      w = w - s0 * rate;
    } else if constexpr (R == Rule::torch_nesterov) {
      s0 = s0 * momentum + g;
      w = w - (g + s0 * momentum) * rate;
    } else if constexpr (R == Rule::keras_adagrad) {
      s0 = s0 + g * g;
      w = w - g * rate / Lanes::root(s0 + epsilon);
    } else if constexpr (R == Rule::torch_adagrad) {
      s0 = s0 + g * g;
      w = w - g * rate / (Lanes::root(s0) + epsilon);
    } else if constexpr (R == Rule::keras_adam) {
      s0 = s0 + (g - s0) * one_minus_beta_1;
      s1 = s1 + (g * g - s1) * one_minus_beta_2;
      w = w - s0 * rate / (Lanes::root(s1) + epsilon);
    } else {
      s0 = s0 + (g - s0) * one_minus_beta_1;
      s1 = s1 * beta_2 + g * g * one_minus_beta_2;
      w = w - s0 * rate / (Lanes::root(s1) / root_correction_2 + epsilon);
    }
  }

  void span(float* w, float* s0, float* s1, const float* g, size_t n) const {
    constexpr int kSlots = slots_of(R);
    V none = Lanes::spread(0.0f);
    size_t i = 0;
    for (; i + Lanes::width <= n; i += Lanes::width) {
      V weight = Lanes::load(w + i), a = none, b = none;
      if constexpr (kSlots > 0) a = Lanes::load(s0 + i);
      if constexpr (kSlots > 1) b = Lanes::load(s1 + i);
      move(weight, a, b, Lanes::load(g + i));
      Lanes::store(w + i, weight);
      if constexpr (kSlots > 0) Lanes::store(s0 + i, a);
      if constexpr (kSlots > 1) Lanes::store(s1 + i, b);
    }
    if (i < n) {
      const size_t rest = n - i;
      V weight = Lanes::load_part(w + i, rest), a = none, b = none;
      if constexpr (kSlots > 0) a = Lanes::load_part(s0 + i, rest);
      if constexpr (kSlots > 1) b = Lanes::load_part(s1 + i, rest);
      move(weight, a, b, Lanes::load_part(g + i, rest));
      Lanes::store_part(w + i, weight, rest);
      if constexpr (kSlots > 0) Lanes::store_part(s0 + i, a, rest);
      if constexpr (kSlots > 1) Lanes::store_part(s1 + i, b, rest);
    }
  }

  V rate, momentum, epsilon, one_minus_beta_1, beta_2, one_minus_beta_2, root_correction_2;
};

template <Rule R, size_t Dim>
void apply_rows(const RowsHead& rows, const uint32_t* slots, const float* gradients, const float* const* sources,
                size_t n, const Step& step) {
  const Mover<R> mover(step);
  const size_t dim = Dim != 0 ? Dim : rows.dim;
  const size_t lines = lines_of(dim * (1 + slots_of(R)) * sizeof(float));
  const size_t lead = n < kRowsAhead ? n : kRowsAhead;
  for (size_t i = 0; i < lead; ++i) prefetch_row(rows, slots[i], lines);
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) prefetch_row(rows, slots[i + kRowsAhead], lines);
    float* row = reinterpret_cast<float*>(row_address(rows, slots[i]));
    rows.changed[slots[i] >> 6] |= uint64_t{1} << (slots[i] & 63);
    mover.span(row, row + dim, row + 2 * dim, sources != nullptr ? sources[i] : gradients + i * dim, dim);
  }
}

template <Rule R>
void apply(const RowsHead& rows, const uint32_t* slots, const float* gradients, const float* const* sources, size_t n,
           const Step& step) {
  switch (rows.dim) {
    case 8:
      return apply_rows<R, 8>(rows, slots, gradients, sources, n, step);
    case 16:
      return apply_rows<R, 16>(rows, slots, gradients, sources, n, step);
    case 32:
      return apply_rows<R, 32>(rows, slots, gradients, sources, n, step);
    default:
      return apply_rows<R, 0>(rows, slots, gradients, sources, n, step);
  }
}

template <Rule R>
void dense(float* weights, float* slot_0, float* slot_1, const float* gradients, size_t n, const Step& step) {
  Mover<R>(step).span(weights, slot_0, slot_1, gradients, n);
}

const Passes kPasses = {
    Lanes::name,
    resolve,
    gather,
    merge,
    {apply<Rule::sgd>, apply<Rule::keras_momentum>, apply<Rule::keras_nesterov>, apply<Rule::torch_momentum>,
     apply<Rule::torch_nesterov>, apply<Rule::keras_adagrad>, apply<Rule::torch_adagrad>, apply<Rule::keras_adam>,
     apply<Rule::torch_adam>},
    {dense<Rule::sgd>, dense<Rule::keras_momentum>, dense<Rule::keras_nesterov>, dense<Rule::torch_momentum>,
     dense<Rule::torch_nesterov>, dense<Rule::keras_adagrad>, dense<Rule::torch_adagrad>, dense<Rule::keras_adam>,
     dense<Rule::torch_adam>},
};

}  // namespace
}  // namespace elasticdl
