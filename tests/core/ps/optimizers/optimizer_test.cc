// Steps of the server's optimizers: closed forms, and references in double precision.
#include "core/ps/optimizers/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "testing.h"

namespace tfdist::testing::ps_optimizers_optimizer_test {
namespace {

using ps::OptimizerConfig;
using ps::OptimizerKind;
using ps::StepValues;

// Every kind with each of its options. Constants are exact in float32, so that references in double
// precision need not round them.
std::vector<OptimizerConfig> AllConfigs() {
  std::vector<OptimizerConfig> configs;
  const auto add = [&](OptimizerKind kind, const std::function<void(OptimizerConfig&)>& set = {}) {
    OptimizerConfig config;
    config.kind = kind;
    config.rho = 0.9375;
    config.beta_1 = 0.875;
    config.beta_2 = 0.96875;
    config.epsilon = 1.0 / 1024;
    config.learning_rate_power = -0.5;
    if (set) set(config);
    configs.push_back(config);
  };
  add(OptimizerKind::kSgd);
  add(OptimizerKind::kSgd, [](auto& c) { c.momentum = 0.75; });
  add(OptimizerKind::kSgd, [](auto& c) { c.momentum = 0.75, c.nesterov = true; });
  add(OptimizerKind::kAdagrad);
  add(OptimizerKind::kRmsprop);
  add(OptimizerKind::kRmsprop, [](auto& c) { c.momentum = 0.75; });
  add(OptimizerKind::kRmsprop, [](auto& c) { c.centered = true; });
  add(OptimizerKind::kRmsprop, [](auto& c) { c.momentum = 0.75, c.centered = true; });
  add(OptimizerKind::kAdam);
  add(OptimizerKind::kAdam, [](auto& c) { c.amsgrad = true; });
  add(OptimizerKind::kAdamax);
  add(OptimizerKind::kFtrl);
  for (const double power : {-0.5, -0.75}) {
    add(OptimizerKind::kFtrl, [&](auto& c) {
      c.learning_rate_power = power;
      c.l1_regularization_strength = 0.25;
      c.l2_regularization_strength = 0.125;
      c.l2_shrinkage_regularization_strength = 0.0625;
      c.beta = 0.5;
    });
  }
  add(OptimizerKind::kLion);
  add(OptimizerKind::kAdadelta);
  add(OptimizerKind::kNadam);
  return configs;
}

struct Element {
  double value = 0;
  double slots[ps::kMaxSlots] = {};
};

// One step, written as in the papers.
void ReferenceStep(const OptimizerConfig& c, const StepValues& at, double weight_decay, double g,
                   Element* e) {
  const double rate = at.learning_rate;
  double& value = e->value;
  double* const s = e->slots;
  value *= 1 - weight_decay * rate;
  switch (c.kind) {
    case OptimizerKind::kSgd:
      if (c.momentum == 0) {
        value -= rate * g;
      } else {
        s[0] = c.momentum * s[0] - rate * g;
        value += c.nesterov ? c.momentum * s[0] - rate * g : s[0];
      }
      return;
    case OptimizerKind::kAdagrad:
      s[0] += g * g;
      value -= rate * g / std::sqrt(s[0] + c.epsilon);
      return;
    case OptimizerKind::kRmsprop: {
      double variance = s[0] = c.rho * s[0] + (1 - c.rho) * g * g;
      if (c.centered) {
        double& mean = s[ps::SlotCount(c) - 1];
        mean = c.rho * mean + (1 - c.rho) * g;
        variance -= mean * mean;
      }
      double change = rate * g / std::sqrt(variance + c.epsilon);
      if (c.momentum > 0) change = s[1] = c.momentum * s[1] + change;
      value -= change;
      return;
    }
    case OptimizerKind::kAdam: {
      s[0] = c.beta_1 * s[0] + (1 - c.beta_1) * g;
      s[1] = c.beta_2 * s[1] + (1 - c.beta_2) * g * g;
      if (c.amsgrad) s[2] = std::max(s[2], s[1]);
      const double mean = s[0] / (1 - std::pow(c.beta_1, at.step));
      const double correction = 1 - std::pow(c.beta_2, at.step);
      const double square = (c.amsgrad ? s[2] : s[1]) / correction;
      value -= rate * mean / (std::sqrt(square) + c.epsilon / std::sqrt(correction));
      return;
    }
    case OptimizerKind::kAdamax:
      s[0] = c.beta_1 * s[0] + (1 - c.beta_1) * g;
      s[1] = std::max(c.beta_2 * s[1], std::abs(g));
      value -= rate / (1 - std::pow(c.beta_1, at.step)) * s[0] / (s[1] + c.epsilon);
      return;
    case OptimizerKind::kFtrl: {
      const double before = std::pow(s[0], -c.learning_rate_power) / rate;
      s[0] += g * g;
      const double after = std::pow(s[0], -c.learning_rate_power) / rate;
      s[1] += g + 2 * c.l2_shrinkage_regularization_strength * value - (after - before) * value;
      const double l1 = c.l1_regularization_strength;
      const double l2 = c.l2_regularization_strength + c.beta / (2 * rate);
      const double sign = s[1] < 0 ? -1 : 1;
      value = std::abs(s[1]) <= l1 ? 0 : (sign * l1 - s[1]) / (after + 2 * l2);
      return;
    }
    case OptimizerKind::kLion: {
      const double direction = c.beta_1 * s[0] + (1 - c.beta_1) * g;
      value -= rate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
      s[0] = c.beta_2 * s[0] + (1 - c.beta_2) * g;
      return;
    }
    case OptimizerKind::kAdadelta: {
      s[0] = c.rho * s[0] + (1 - c.rho) * g * g;
      const double change = std::sqrt(s[1] + c.epsilon) / std::sqrt(s[0] + c.epsilon) * g;
      s[1] = c.rho * s[1] + (1 - c.rho) * change * change;
      value -= rate * change;
      return;
    }
    case OptimizerKind::kNadam: {
      const double decay = static_cast<float>(0.96);
      const auto schedule = [&](int64_t step, double base) {
        return c.beta_1 * (1 - 0.5 * std::pow(base, step));
      };
      double product = 1;
      for (int64_t step = 1; step <= at.step; ++step) product *= schedule(step, 0.96);
      s[0] = c.beta_1 * s[0] + (1 - c.beta_1) * g;
      s[1] = c.beta_2 * s[1] + (1 - c.beta_2) * g * g;
      const double next = schedule(at.step + 1, decay);
      const double ahead =
          next * s[0] / (1 - product * next) + (1 - schedule(at.step, decay)) * g / (1 - product);
      const double square = s[1] / (1 - std::pow(c.beta_2, at.step));
      value -= rate * ahead / (std::sqrt(square) + c.epsilon);
      return;
    }
  }
}

// A variable with its slots. The element behind the end of each array must not change.
template <typename T>
struct Variable {
  static constexpr DType kDType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  static constexpr T kGuard = 77;

  explicit Variable(size_t count) : gradient(count + 1, kGuard), arrays(1 + ps::kMaxSlots) {
    for (size_t a = 0; a < arrays.size(); ++a) {
      // Slots are positive, and their squares less than themselves, as true moments are.
      for (size_t i = 0; i < count; ++i) {
        arrays[a].push_back(a == 0 ? T(i % 13) / 8 - T(0.75) : T(i % 7 + a) / 32);
      }
      arrays[a].push_back(kGuard);
    }
  }

  void SetGradient(int64_t step) {
    for (size_t i = 0; i + 1 < gradient.size(); ++i) {
      gradient[i] = static_cast<T>(std::sin(0.7 * i + 2.3 * step));
    }
  }
  Element At(size_t i) const { return {arrays[0][i], {arrays[1][i], arrays[2][i], arrays[3][i]}}; }
  void Set(const Element& element) {
    arrays[0][0] = static_cast<T>(element.value);
    for (int s = 0; s < ps::kMaxSlots; ++s) arrays[1 + s][0] = static_cast<T>(element.slots[s]);
  }

  // Steps from `from` into this state; both may be the same.
  void StepFrom(const Variable& from, const OptimizerConfig& config, const StepValues& at,
                double weight_decay = 0) {
    ps::StepRuns runs;
    runs.gradient = gradient.data();
    runs.value = {from.arrays[0].data(), arrays[0].data()};
    for (int s = 0; s < ps::SlotCount(config); ++s) {
      runs.slots[s] = {from.arrays[1 + s].data(), arrays[1 + s].data()};
    }
    ps::Optimize(config, at, weight_decay, kDType, gradient.size() - 1, runs);
    CHECK(gradient.back() == kGuard);
    for (const auto& array : arrays) CHECK(array.back() == kGuard);
  }

  std::vector<T> gradient;
  std::vector<std::vector<T>> arrays;  // value, slots
};

template <typename T>
bool Near(double found, double expected) {
  const double tolerance = std::is_same_v<T, float> ? 2e-6 : 1e-14;
  return std::abs(found - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

template <typename T>
void TestSteps(const OptimizerConfig& config, double weight_decay, size_t count) {
  Variable<T> in_place(count), source(count), target(count);
  std::vector<Element> expected;
  for (size_t i = 0; i < count; ++i) expected.push_back(in_place.At(i));
  for (int64_t step = 1; step <= 6; ++step) {
    const StepValues at = {step < 4 ? 0.125 : 0.03125, step};
    in_place.SetGradient(step);
    target.SetGradient(step);
    in_place.StepFrom(in_place, config, at, weight_decay);
    const auto untouched = source.arrays;
    target.StepFrom(source, config, at, weight_decay);
    CHECK(source.arrays == untouched);
    CHECK(in_place.arrays == target.arrays);
    std::swap(source.arrays, target.arrays);
    for (size_t i = 0; i < count; ++i) {
      ReferenceStep(config, at, weight_decay, in_place.gradient[i], &expected[i]);
      const Element found = in_place.At(i);
      CHECK(Near<T>(found.value, expected[i].value));
      for (int s = 0; s < ps::kMaxSlots; ++s) {
        CHECK(Near<T>(found.slots[s], expected[i].slots[s]));
      }
    }
  }
}

// With the same gradient g > 0 in every step, most optimizers have a closed form.
template <typename T>
void TestClosedForms() {
  constexpr double kRate = 0.25, kGradient = 0.5, kStart = 3;
  constexpr int kSteps = 10;
  const auto value_after = [](OptimizerConfig config, double start, const Element& slots = {}) {
    config.epsilon = 0;
    Variable<T> variable(1);
    Element element = slots;
    element.value = start;
    variable.Set(element);
    variable.gradient[0] = kGradient;
    for (int step = 1; step <= kSteps; ++step) variable.StepFrom(variable, config, {kRate, step});
    return variable.arrays[0][0];
  };
  double roots = 0;  // 1 + 1/sqrt(2) + 1/sqrt(3) + ...
  for (int k = 1; k <= kSteps; ++k) roots += 1 / std::sqrt(k);

  for (const OptimizerConfig& config : AllConfigs()) {
    const double value = value_after(config, kStart);
    if (config.kind == OptimizerKind::kSgd && config.momentum == 0) {
      CHECK(Near<T>(value, kStart - kSteps * kRate * kGradient));
    } else if (config.kind == OptimizerKind::kSgd && !config.nesterov) {
      const double m = config.momentum;
      const double sum = kSteps - m * (1 - std::pow(m, kSteps)) / (1 - m);
      CHECK(Near<T>(value, kStart - kRate * kGradient / (1 - m) * sum));
    } else if (config.kind == OptimizerKind::kAdagrad) {
      CHECK(Near<T>(value, kStart - kRate * roots));
    } else if (config.kind == OptimizerKind::kAdam || config.kind == OptimizerKind::kAdamax ||
               config.kind == OptimizerKind::kLion) {
      CHECK(Near<T>(value, kStart - kRate * kSteps));  // each step is as long as the rate
    } else if (config.kind == OptimizerKind::kFtrl && config.beta == 0) {
      CHECK(Near<T>(value_after(config, 0), -kRate * roots));  // from 0 it is Adagrad
    }
  }
}

TEST_CASE("zero gradients") {
  for (const OptimizerConfig& config : AllConfigs()) {
    for (const double weight_decay : {0.0, 0.5}) {
      Variable<float> variable(100), changed(100);
      std::fill_n(changed.gradient.begin(), 100, 0.0f);
      changed.StepFrom(variable, config, {0.125, 2}, weight_decay);
      CHECK((changed.arrays == variable.arrays) ==
            ps::LeavesZeroGradientsAlone(config, weight_decay));
    }
  }
}

template <typename T>
void TestDelayCompensation(size_t count) {
  std::vector<T> now(count), then(count), gradient(count);
  for (size_t i = 0; i < count; ++i) {
    now[i] = T(i % 10), then[i] = T(i % 4), gradient[i] = T(i % 3) - 1;
  }
  ps::CompensateDelay(Variable<T>::kDType, count, 0.5, now.data(), then.data(), gradient.data());
  for (size_t i = 0; i < count; ++i) {
    const double g = i % 3 - 1.0;
    CHECK(gradient[i] == g + 0.5 * g * g * (double(i % 10) - double(i % 4)));
  }
}

TEST_CASE("steps") {
  for (const size_t count : {0, 1, 7, 1000, 2500}) {
    for (const OptimizerConfig& config : AllConfigs()) {
      for (const double weight_decay : {0.0, 0.0625}) {
        TestSteps<float>(config, weight_decay, count);
        TestSteps<double>(config, weight_decay, count);
      }
    }
    TestDelayCompensation<float>(count);
    TestDelayCompensation<double>(count);
  }
}

TEST_CASE("closed forms") {
  TestClosedForms<float>();
  TestClosedForms<double>();
}

TEST_CASE("constants") {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kInt32, DType::kInt64}) {
    CHECK(!ps::CanOptimize(dtype));
  }
}

}  // namespace
}  // namespace tfdist::testing::ps_optimizers_optimizer_test
