#include "core/ps/optimizers/adaptive_revision.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/ps/optimizers/update_rules.h"

namespace tfdist::ps {
namespace {

template <typename T>
void Revise(const OptimizerConfig& config, const StepValues& at, double weight_decay, size_t count,
            const StepRuns& runs, const RevisionRuns& revision) {
  const T learning_rate = static_cast<T>(at.learning_rate);
  const T epsilon = static_cast<T>(config.epsilon), decay = Cast<T>(weight_decay);
  const auto* const gradients = static_cast<const T*>(runs.gradient);
  const auto* const values = static_cast<const T*>(runs.value.in);
  const auto* const accumulators = static_cast<const T*>(runs.slots[0].in);
  const auto* const pulled = static_cast<const T*>(revision.pulled_sum);
  auto* const new_values = static_cast<T*>(runs.value.out);
  auto* const new_accumulators = static_cast<T*>(runs.slots[0].out);
  auto* const sums = static_cast<T*>(revision.sum);
  auto* const deficits = static_cast<T*>(revision.deficit);
  for (size_t i = 0; i < count; ++i) {
    const T gradient = gradients[i], before = accumulators[i];
    const T backward = pulled == nullptr ? T{0} : sums[i] - pulled[i];
    const T z = before - deficits[i] + gradient * gradient + 2 * gradient * backward;
    const T accumulator = std::max(before, z);
    T value = values[i];
    if (weight_decay != 0) value -= value * decay * learning_rate;
    value -= learning_rate * gradient / std::sqrt(accumulator + epsilon);
    if (backward != 0) {
      value += learning_rate * backward / std::sqrt(before + epsilon) -
               learning_rate * backward / std::sqrt(accumulator + epsilon);
    }
    new_values[i] = value;
    new_accumulators[i] = accumulator;
    deficits[i] = accumulator - z;
    sums[i] += gradient;
  }
}

}  // namespace

void ReviseAdagrad(const OptimizerConfig& config, const StepValues& step, double weight_decay,
                   DType dtype, size_t count, const StepRuns& runs, const RevisionRuns& revision) {
  if (!CanOptimize(dtype) || config.kind != OptimizerKind::kAdagrad) std::abort();
  if (dtype == DType::kFloat64) {
    return Revise<double>(config, step, weight_decay, count, runs, revision);
  }
  return Revise<float>(config, step, weight_decay, count, runs, revision);
}

}  // namespace tfdist::ps
