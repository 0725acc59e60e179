// The client's part of elasticdl.ps._native: ids by server, each once, and rows moved to and from that order.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <vector>

#include "arrays.h"
#include "split.h"

namespace elasticdl {
namespace {

using Ids = Array<const int64_t>;
using Numbers = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;

Numbers give(std::unique_ptr<int64_t[]> data, size_t n) {
  nb::capsule owner(data.get(), [](void* p) noexcept { delete[] static_cast<int64_t*>(p); });
  return Numbers(data.release(), {n}, owner);
}

void check_servers(size_t servers) {
  if (servers < 1 || servers > kPartitions) {
    throw nb::value_error(("servers: expected 1 to 1024, got " + std::to_string(servers)).c_str());
  }
}

void check_count(size_t n) {
  if (n >= UINT32_MAX) throw nb::value_error("ids: too many for one call");
}

std::vector<size_t> bounds_of(const std::vector<size_t>& counts) {
  std::vector<size_t> bounds{0};
  for (size_t count : counts) bounds.push_back(bounds.back() + count);
  return bounds;
}

Numbers owners_of_partitions(size_t servers) {
  check_servers(servers);
  const uint16_t* const owners = partition_owners(servers);
  std::unique_ptr<int64_t[]> given(new int64_t[kPartitions]);
  std::copy(owners, owners + kPartitions, given.get());
  return give(std::move(given), kPartitions);
}

// The order is None where the ids lie grouped by server already.
std::tuple<nb::object, std::vector<size_t>> split(nb::handle ids_object, size_t servers) {
  check_servers(servers);
  const Ids ids("ids", ids_object, {kAnyLength});
  const size_t n = ids.rows();
  std::vector<size_t> counts(servers);
  std::unique_ptr<int64_t[]> order;
  {
    nb::gil_scoped_release released;
    std::unique_ptr<uint16_t[]> owner(new uint16_t[n]);
    if (!owners(ids.data(), n, servers, owner.get(), counts.data())) {
      order.reset(new int64_t[n]);
      group_order(owner.get(), n, servers, counts.data(), order.get());
    }
  }
  nb::object given = order ? nb::cast(give(std::move(order), n)) : nb::none();
  return {given, bounds_of(counts)};
}

std::tuple<Numbers, Numbers, std::vector<size_t>> unique(nb::handle ids_object, size_t servers) {
  check_servers(servers);
  const Ids ids("ids", ids_object, {kAnyLength});
  const size_t n = ids.rows();
  check_count(n);
  std::vector<size_t> counts(servers);
  std::unique_ptr<int64_t[]> found(new int64_t[n]), positions(new int64_t[n]);
  size_t kept;
  {
    nb::gil_scoped_release released;
    kept = distinct(ids.data(), n, servers, found.get(), positions.get(), counts.data());
  }
  return {give(std::move(found), kept), give(std::move(positions), n), bounds_of(counts)};
}

// `order` names rows of `whole`; `part` has as many as it names.
template <bool Scatter>
void move_rows(nb::handle order_object, nb::handle part_object, nb::handle whole_object) {
  using Part = Array<std::conditional_t<Scatter, const float, float>>;
  using Whole = Array<std::conditional_t<Scatter, float, const float>>;
  const Ids order("order", order_object, {kAnyLength});
  const Whole whole("whole", whole_object, {kAnyLength, kAnyLength});
  const int64_t n = static_cast<int64_t>(order.rows()), dim = static_cast<int64_t>(whole.columns());
  const Part part("part", part_object, {n, dim});
  nb::gil_scoped_release released;
  for (int64_t i = 0; i < n; ++i) {
    if (order.data()[i] < 0 || order.data()[i] >= static_cast<int64_t>(whole.rows())) {
      throw std::out_of_range("order: row " + std::to_string(order.data()[i]) + " of " + std::to_string(whole.rows()));
    }
  }
  const size_t bytes = static_cast<size_t>(dim) * sizeof(float);
  if constexpr (Scatter) {
    scatter_rows(order.data(), order.rows(), bytes, reinterpret_cast<const char*>(part.data()),
                 reinterpret_cast<char*>(whole.data()));
  } else {
    gather_rows(order.data(), order.rows(), bytes, reinterpret_cast<const char*>(whole.data()),
                reinterpret_cast<char*>(part.data()));
  }
}

}  // namespace

void bind_split(nb::module_& m) {
  m.def("split", &split, nb::arg("ids"), nb::arg("servers"),
        "Positions of the ids grouped by server, in their order (None: they lie so already), and the bounds of groups");
  m.def("partition_owners", &owners_of_partitions, nb::arg("servers"), "Which server holds each of the partitions");
  m.def("unique", &unique, nb::arg("ids"), nb::arg("servers"),
        "Distinct ids grouped by server, where each id went, and the bounds of groups");
  m.def("scatter_rows", &move_rows<true>, nb::arg("order"), nb::arg("part"), nb::arg("whole"),
        "whole[order] = part");
  m.def("gather_rows", &move_rows<false>, nb::arg("order"), nb::arg("part"), nb::arg("whole"),
        "part[:] = whole[order]");
}

}  // namespace elasticdl
