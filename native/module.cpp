// elasticdl.ps._native: the row store and the dense update as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "store.h"

namespace elasticdl {

void bind_optimizer(nb::module_& m);  // optimizer_module.cpp
void bind_split(nb::module_& m);      // split_module.cpp

namespace {

using Ids = Array<const int64_t>;
using Floats = Array<const float>;
using Out = Array<float>;

// One call on a store: the GIL is released while it runs. A store has no locks, so a second thread is an error.
template <class Work>
auto bulk(RowStore& store, Work&& work) {
  if (store.busy.exchange(true, std::memory_order_acquire)) {
    throw std::runtime_error("a row store belongs to one thread: another call on it is still running");
  }
  struct Done {
    RowStore& store;
    ~Done() { store.busy.store(false, std::memory_order_release); }
  } done{store};
  nb::gil_scoped_release released;
  try {
    return work();
  } catch (const std::bad_alloc& error) {
    throw OutOfMemory("out of memory in " + store.describe() + ": " + error.what());
  }
}

// A new numpy array around memory of ours.
template <class T, size_t Dims>
auto give(std::unique_ptr<T[]> data, const size_t (&shape)[Dims]) {
  nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<Dims>>(data.release(), Dims, shape, owner);
}

constexpr uint32_t kMaxAdmitAfter = 1u << 24;  // counts are exact floats

int64_t rows_of(const Ids& ids) { return static_cast<int64_t>(ids.rows()); }

void check_dim(size_t dim) {
  if (dim < 1 || dim > kMaxDim) {
    throw std::invalid_argument("dim: expected 1 to " + std::to_string(kMaxDim) + ", got " + std::to_string(dim));
  }
}

RowStore* make_store(size_t dim, const Optimizer& optimizer, const std::string& initializer, double a, double b,
                     uint64_t seed, size_t capacity, size_t max_rows, uint32_t admit_after, bool aging) {
  check_dim(dim);
  if (capacity > kMaxRows) {
    throw std::invalid_argument("capacity: at most " + std::to_string(kMaxRows) + " rows, got " +
                                std::to_string(capacity));
  }
  if (admit_after > kMaxAdmitAfter) {
    throw std::invalid_argument("admit_after: at most " + std::to_string(kMaxAdmitAfter) + " pushes, got " +
                                std::to_string(admit_after));
  }
  return new RowStore(dim, optimizer, Initializer(initializer, a, b, seed), capacity, max_rows,
                      Policy{admit_after, aging});
}

void pull(RowStore& store, nb::handle ids_object, nb::handle out_object) {
  const Ids ids("ids", ids_object, {kAnyLength});
  const Out out("out", out_object, {rows_of(ids), static_cast<int64_t>(store.dim())});
  bulk(store, [&] { store.pull(ids.data(), ids.rows(), out.data()); });
}

void peek(RowStore& store, nb::handle ids_object, nb::handle out_object, uint32_t view) {
  const Ids ids("ids", ids_object, {kAnyLength});
  const Out out("out", out_object, {rows_of(ids), static_cast<int64_t>(store.dim())});
  bulk(store, [&] { store.peek(ids.data(), ids.rows(), out.data(), view); });
}

size_t push(RowStore& store, nb::handle ids_object, nb::handle grads_object, double learning_rate, int64_t step) {
  const Ids ids("ids", ids_object, {kAnyLength});
  const Floats grads("grads", grads_object, {rows_of(ids), static_cast<int64_t>(store.dim())});
  return bulk(store, [&] { return store.push(ids.data(), grads.data(), ids.rows(), learning_rate, step); });
}

void push_unique(RowStore& store, nb::handle ids_object, nb::handle grads_object, double learning_rate, int64_t step) {
  const Ids ids("ids", ids_object, {kAnyLength});
  const Floats grads("grads", grads_object, {rows_of(ids), static_cast<int64_t>(store.dim())});
  bulk(store, [&] { store.push_unique(ids.data(), grads.data(), ids.rows(), learning_rate, step); });
}

auto export_rows(RowStore& store, size_t start, size_t limit, uint32_t view) {
  std::unique_ptr<int64_t[]> ids;
  std::unique_ptr<float[]> rows;
  const size_t n = bulk(store, [&] {
    const size_t have = store.rows_in(view);
    const size_t count = std::min(limit, have - std::min(start, have));
    ids.reset(new int64_t[count]);
    rows.reset(new float[count * store.columns()]);
    store.export_rows(start, count, view, ids.get(), rows.get());
    return count;
  });
  return std::pair(give<int64_t, 1>(std::move(ids), {n}), give<float, 2>(std::move(rows), {n, store.columns()}));
}

auto export_changed(RowStore& store, uint32_t view, size_t start, size_t limit) {
  if (limit == 0) throw std::invalid_argument("limit: expected at least 1 row, got 0");
  std::unique_ptr<int64_t[]> ids;
  std::unique_ptr<float[]> rows;
  size_t n = 0, next = kNoRow;
  bulk(store, [&] {
    const std::vector<uint32_t> slots = store.changed_rows(view, start, limit);
    n = slots.size();
    ids.reset(new int64_t[n]);
    rows.reset(new float[n * store.columns()]);
    store.export_slots(slots.data(), n, view, ids.get(), rows.get());
    if (n == limit) next = store.next_changed(view, size_t{slots.back()} + 1);
  });
  return std::tuple(give<int64_t, 1>(std::move(ids), {n}), give<float, 2>(std::move(rows), {n, store.columns()}),
                    next == kNoRow ? int64_t{-1} : static_cast<int64_t>(next));
}

auto removed(RowStore& store, uint32_t view) {
  std::unique_ptr<int64_t[]> ids;
  const size_t n = bulk(store, [&] {
    const std::vector<int64_t> found = store.removed(view);
    ids.reset(new int64_t[found.size()]);
    std::copy(found.begin(), found.end(), ids.get());
    return found.size();
  });
  return give<int64_t, 1>(std::move(ids), {n});
}

size_t remove(RowStore& store, nb::handle ids_object) {
  const Ids ids("ids", ids_object, {kAnyLength});
  return bulk(store, [&] { return store.remove(ids.data(), ids.rows()); });
}

void import_rows(RowStore& store, nb::handle ids_object, nb::handle rows_object) {
  const Ids ids("ids", ids_object, {kAnyLength});
  const Floats rows("rows", rows_object, {rows_of(ids), static_cast<int64_t>(store.columns())});
  bulk(store, [&] { store.import_rows(ids.data(), rows.data(), ids.rows()); });
}

auto initial_rows(nb::handle ids_object, size_t dim, const std::string& initializer, double a, double b,
                  uint64_t seed) {
  check_dim(dim);
  const Ids ids("ids", ids_object, {kAnyLength});
  const Initializer source(initializer, a, b, seed);
  std::unique_ptr<float[]> rows(new float[ids.rows() * dim]);
  {
    nb::gil_scoped_release released;
    for (size_t i = 0; i < ids.rows(); ++i) source.fill(ids.data()[i], dim, rows.get() + i * dim);
  }
  return give<float, 2>(std::move(rows), {ids.rows(), dim});
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native row store of the parameter server";
  bind_split(m);

  bind_optimizer(m);

  nb::class_<RowStore>(m, "RowStore",
                       "Embedding rows by 64-bit id, with their optimizer's slots. One thread owns a store.")
      .def(nb::new_(&make_store), nb::arg("dim"), nb::arg("optimizer"), nb::arg("initializer"), nb::arg("a"),
           nb::arg("b"), nb::arg("seed"), nb::arg("capacity") = 0, nb::arg("max_rows") = kMaxRows,
           nb::arg("admit_after") = 0, nb::arg("aging") = false)
      .def("pull", &pull, nb::arg("ids"), nb::arg("out"), "Read rows; absent ones are born")
      .def("peek", &peek, nb::arg("ids"), nb::arg("out"), nb::arg("view") = 0,
           "Read rows of the live table (view 0) or of a pinned view; creates none")
      .def("push", &push, nb::arg("ids"), nb::arg("grads"), nb::arg("learning_rate"), nb::arg("step"),
           "Add up the gradients of each id and take one optimizer step per distinct row; returns how many there were")
      .def("push_unique", &push_unique, nb::arg("ids"), nb::arg("grads"), nb::arg("learning_rate"), nb::arg("step"),
           "push for ids that are all different")
      .def(
          "pin", [](RowStore& store) { return bulk(store, [&] { return store.pin(); }); },
          "Freeze a view of the table as it is now")
      .def(
          "release", [](RowStore& store, uint32_t view) { bulk(store, [&] { store.release(view); }); }, nb::arg("view"),
          "Give a view up")
      .def(
          "mark", [](RowStore& store) { return bulk(store, [&] { return store.mark(); }); },
          "Freeze a view that also takes which rows changed since the mark before it")
      .def(
          "unmark", [](RowStore& store, uint32_t view) { bulk(store, [&] { store.unmark(view); }); }, nb::arg("view"),
          "Give a marked view up as if it had not been made: what it took counts as changed again")
      .def(
          "changed", [](RowStore& store, uint32_t view) { return bulk(store, [&] { return store.changed(view); }); },
          nb::arg("view"), "How many rows of a marked view had changed")
      .def("removed", &removed, nb::arg("view"), "The ids removed between a mark and the one before it")
      .def("export_changed", &export_changed, nb::arg("view"), nb::arg("start"), nb::arg("limit"),
           "Ids and rows of a marked view that had changed, from row `start` on, and where to go on (-1: nowhere)")
      .def(
          "evict",
          [](RowStore& store, int64_t before_step, size_t limit) {
            return bulk(store, [&] { return store.evict(before_step, limit); });
          },
          nb::arg("before_step"), nb::arg("limit") = kMaxRows,
          "Remove rows that no push moved since; returns how many, 0 while a view is pinned")
      .def("remove", &remove, nb::arg("ids"), "Remove the rows of these ids, where they have one; returns how many")
      .def_prop_ro("candidates", &RowStore::candidates, nb::rv_policy::reference_internal,
                   "How often each id without a row was pushed: a store of one column, or None")
      .def_prop_ro("width", &RowStore::columns, "Columns of an exported row: weights, slots and, where it ages, its step")
      .def("__len__", &RowStore::size)
      .def(
          "nbytes", [](RowStore& store) { return bulk(store, [&] { return store.bytes(); }); },
          "Resident bytes: index, slabs and copies held for views")
      .def("export_rows", &export_rows, nb::arg("start"), nb::arg("limit"), nb::arg("view") = 0,
           "Ids and rows (weights, then slots) in birth order")
      .def("import_rows", &import_rows, nb::arg("ids"), nb::arg("rows"),
           "Insert or overwrite rows (weights, then slots)");

  m.def("initial_rows", &initial_rows, nb::arg("ids"), nb::arg("dim"), nb::arg("initializer"), nb::arg("a"),
        nb::arg("b"), nb::arg("seed"), "What rows are born as");
  m.def("isa", [] { return passes().name; }, "The instruction set in use");
  m.def("set_isa", &choose_passes, nb::arg("name"), "Use scalar, avx2, avx512 or the best of them");
}

}  // namespace elasticdl
