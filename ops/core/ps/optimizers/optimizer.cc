#include "core/ps/optimizers/optimizer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "core/ps/optimizers/update_rules.h"

namespace tfdist::ps {
namespace {

// Elements that are decayed and then stepped while they are in the first-level cache.
constexpr size_t kBlock = 1024;

template <typename T>
Run From(const Run& run, size_t first) {
  return {static_cast<const T*>(run.in) + first, static_cast<T*>(run.out) + first};
}

// `step` is a copy: the compiler knows that no store through `out` changes it.
template <typename T, typename Step, size_t... slot>
void StepAll(Step step, size_t count, const StepRuns& runs, std::index_sequence<slot...>) {
  const auto* const gradient = static_cast<const T*>(runs.gradient);
  const auto* const value_in = static_cast<const T*>(runs.value.in);
  auto* const value_out = static_cast<T*>(runs.value.out);
  [[maybe_unused]] const std::array<const T*, sizeof...(slot)> in = {
      static_cast<const T*>(runs.slots[slot].in)...};
  [[maybe_unused]] const std::array<T*, sizeof...(slot)> out = {
      static_cast<T*>(runs.slots[slot].out)...};
  // Each `out` is its own `in` or overlaps nothing, so no element depends on another.
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    T value = value_in[i];
    std::array<T, sizeof...(slot)> slots = {in[slot][i]...};
    step(gradient[i], value, slots);
    value_out[i] = value;
    ((out[slot][i] = slots[slot]), ...);
  }
}

template <typename T, typename Step>
void StepAll(const Step& step, size_t count, const StepRuns& runs) {
  StepAll<T>(step, count, runs, std::make_index_sequence<Step::kSlots>());
}

template <typename T>
void Decay(T weight_decay, T learning_rate, size_t count, const Run& value) {
  const auto* const in = static_cast<const T*>(value.in);
  auto* const out = static_cast<T*>(value.out);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) out[i] = in[i] - in[i] * weight_decay * learning_rate;
}

template <typename T, typename Step>
void DecayAndStepAll(const Step& step, T weight_decay, T learning_rate, size_t count,
                     const StepRuns& runs) {
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t size = std::min(kBlock, count - first);
    StepRuns block;
    block.gradient = static_cast<const T*>(runs.gradient) + first;
    block.value = From<T>(runs.value, first);
    for (size_t slot = 0; slot < Step::kSlots; ++slot) {
      block.slots[slot] = From<T>(runs.slots[slot], first);
    }
    Decay(weight_decay, learning_rate, size, block.value);
    block.value.in = block.value.out;
    StepAll<T>(step, size, block);
  }
}

// Calls `use` with the step object of `config`.
template <typename T, typename Use>
void WithStep(const OptimizerConfig& config, const StepValues& at, const Use& use) {
  const bool has_momentum = config.momentum > 0;
  switch (config.kind) {
    case OptimizerKind::kSgd:
      if (SlotCount(config) == 0) return use(SgdStep<T>(config, at));
      if (config.nesterov) return use(MomentumStep<T, true>(config, at));
      return use(MomentumStep<T, false>(config, at));
    case OptimizerKind::kAdagrad:
      return use(AdagradStep<T>(config, at));
    case OptimizerKind::kRmsprop:
      if (has_momentum && config.centered) return use(RmspropStep<T, true, true>(config, at));
      if (has_momentum) return use(RmspropStep<T, true, false>(config, at));
      if (config.centered) return use(RmspropStep<T, false, true>(config, at));
      return use(RmspropStep<T, false, false>(config, at));
    case OptimizerKind::kAdam:
      if (config.amsgrad) return use(AdamStep<T, true>(config, at));
      return use(AdamStep<T, false>(config, at));
    case OptimizerKind::kAdamax:
      return use(AdamaxStep<T>(config, at));
    case OptimizerKind::kFtrl:
      if (config.learning_rate_power == -0.5) return use(FtrlStep<T, true>(config, at));
      return use(FtrlStep<T, false>(config, at));
    case OptimizerKind::kLion:
      return use(LionStep<T>(config, at));
    case OptimizerKind::kAdadelta:
      return use(AdadeltaStep<T>(config, at));
    case OptimizerKind::kNadam:
      return use(NadamStep<T>(config, at));
  }
  std::abort();  // unknown kinds are refused when they are decoded
}

template <typename T>
void OptimizeAs(const OptimizerConfig& config, const StepValues& at, double weight_decay,
                size_t count, const StepRuns& runs) {
  WithStep<T>(config, at, [&](const auto& step) {
    if (weight_decay == 0) return StepAll<T>(step, count, runs);
    DecayAndStepAll<T>(step, Cast<T>(weight_decay), static_cast<T>(at.learning_rate), count, runs);
  });
}

template <typename T>
void CompensateDelayAs(size_t count, T lambda, const void* now, const void* then, void* gradient) {
  const auto* const new_values = static_cast<const T*>(now);
  const auto* const old_values = static_cast<const T*>(then);
  auto* const gradients = static_cast<T*>(gradient);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const T g = gradients[i];
    gradients[i] = g + lambda * g * g * (new_values[i] - old_values[i]);
  }
}

}  // namespace

int SlotCount(const OptimizerConfig& config) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return config.momentum != 0 ? 1 : 0;
    case OptimizerKind::kRmsprop:
      return 1 + (config.momentum > 0) + config.centered;
    case OptimizerKind::kAdam:
      return config.amsgrad ? 3 : 2;
    case OptimizerKind::kAdamax:
    case OptimizerKind::kFtrl:
    case OptimizerKind::kAdadelta:
    case OptimizerKind::kNadam:
      return 2;
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kLion:
      return 1;
  }
  std::abort();
}

bool CanOptimize(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

void Optimize(const OptimizerConfig& config, const StepValues& step, double weight_decay,
              DType dtype, size_t count, const StepRuns& runs) {
  if (!CanOptimize(dtype)) std::abort();
  if (dtype == DType::kFloat64) return OptimizeAs<double>(config, step, weight_decay, count, runs);
  return OptimizeAs<float>(config, step, weight_decay, count, runs);
}

bool LeavesZeroGradientsAlone(const OptimizerConfig& config, double weight_decay) {
  if (weight_decay != 0) return false;
  return config.kind == OptimizerKind::kAdagrad ||
         (config.kind == OptimizerKind::kSgd && SlotCount(config) == 0);
}

void CompensateDelay(DType dtype, size_t count, double lambda, const void* now, const void* then,
                     void* gradient) {
  if (!CanOptimize(dtype)) std::abort();
  if (dtype == DType::kFloat64) {
    return CompensateDelayAs<double>(count, lambda, now, then, gradient);
  }
  return CompensateDelayAs<float>(count, static_cast<float>(lambda), now, then, gradient);
}

}  // namespace tfdist::ps
