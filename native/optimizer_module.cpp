// The optimizer and the dense update as Python sees them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <new>

#include "arrays.h"
#include "optimizer.h"
#include "passes.h"

namespace elasticdl {
namespace {

void make(Optimizer* self, const std::string& kind, const std::string& flavour, double momentum, bool nesterov,
          double initial_accumulator, double beta_1, double beta_2, double epsilon, double dampening, bool amsgrad,
          double rho, bool centered, double weight_decay, bool decoupled, bool maximize, double rate_decay,
          double power, double l1, double l2, double l2_shrinkage, double beta) {
  Constants c;
  c.momentum = momentum;
  c.dampening = dampening;
  c.nesterov = nesterov;
  c.initial_accumulator = initial_accumulator;
  c.beta_1 = beta_1;
  c.beta_2 = beta_2;
  c.epsilon = epsilon;
  c.amsgrad = amsgrad;
  c.rho = rho;
  c.centered = centered;
  c.weight_decay = weight_decay;
  c.decoupled = decoupled;
  c.maximize = maximize;
  c.rate_decay = rate_decay;
  c.power = power;
  c.l1 = l1;
  c.l2 = l2;
  c.l2_shrinkage = l2_shrinkage;
  c.beta = beta;
  new (self) Optimizer(kind, flavour, c);
}

nb::tuple slot_starts(const Optimizer& optimizer) {
  nb::list found;
  for (int slot = 0; slot < optimizer.slots; ++slot) found.append(optimizer.slot_starts[slot]);
  return nb::tuple(found);
}

void update_dense(nb::handle weights_object, nb::handle slots_object, nb::handle grads_object,
                  const Optimizer& optimizer, double learning_rate, int64_t step) {
  const Array<float> weights("weights", weights_object, {kAnyLength});
  const int64_t n = static_cast<int64_t>(weights.rows());
  const Array<float> slots("slots", slots_object, {n * optimizer.slots});
  const Array<const float> grads("grads", grads_object, {n});
  const Step numbers = optimizer.at(learning_rate, step);
  nb::gil_scoped_release released;
  passes().dense[static_cast<int>(numbers.rule)][numbers.prepared](weights.data(), slots.data(), grads.data(),
                                                                   weights.rows(), numbers);
}

}  // namespace

void bind_optimizer(nb::module_& m) {
  const Constants c;
  nb::class_<Optimizer>(m, "Optimizer", "The rule that moves weights, with its constants")
      .def("__init__", &make, nb::arg("kind"), nb::arg("flavour"), nb::arg("momentum") = c.momentum,
           nb::arg("nesterov") = c.nesterov, nb::arg("initial_accumulator") = c.initial_accumulator,
           nb::arg("beta_1") = c.beta_1, nb::arg("beta_2") = c.beta_2, nb::arg("epsilon") = c.epsilon,
           nb::arg("dampening") = c.dampening, nb::arg("amsgrad") = c.amsgrad, nb::arg("rho") = c.rho,
           nb::arg("centered") = c.centered, nb::arg("weight_decay") = c.weight_decay,
           nb::arg("decoupled") = c.decoupled, nb::arg("maximize") = c.maximize, nb::arg("rate_decay") = c.rate_decay,
           nb::arg("power") = c.power, nb::arg("l1") = c.l1, nb::arg("l2") = c.l2,
           nb::arg("l2_shrinkage") = c.l2_shrinkage, nb::arg("beta") = c.beta)
      .def_ro("slots", &Optimizer::slots, "How many floats of state each weight carries")
      .def_prop_ro("slot_starts", &slot_starts, "What each of them holds at the beginning");

  m.def("update_dense", &update_dense, nb::arg("weights"), nb::arg("slots"), nb::arg("grads"), nb::arg("optimizer"),
        nb::arg("learning_rate"), nb::arg("step"), "One optimizer step on a dense tensor; slots one after the other");
}

}  // namespace elasticdl
