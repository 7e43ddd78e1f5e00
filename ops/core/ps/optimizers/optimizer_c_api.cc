// The server's optimizers for Python, through ctypes: tests compare them with Keras.
#include <cstddef>
#include <cstdint>

#include "core/ps/optimizers/optimizer.h"

extern "C" {

// Sizes of structures that Python declares too. It compares them when it loads the library.
size_t tfdist_sizeof_optimizer_config() { return sizeof(tfdist::ps::OptimizerConfig); }

// Makes one step of `config` in place, on arrays of `count` elements; `slots` has one array for
// each slot. Returns false if optimizers do not support `dtype`, or if `slot_count` is wrong.
bool tfdist_ps_optimize(const tfdist::ps::OptimizerConfig* config, double learning_rate,
                        int64_t step, double weight_decay, int dtype, size_t count,
                        const void* gradient, void* value, void* const* slots, int slot_count) {
  using tfdist::DType;
  const DType type = static_cast<DType>(dtype);
  if (!tfdist::ps::CanOptimize(type) || slot_count != tfdist::ps::SlotCount(*config)) return false;
  tfdist::ps::StepRuns runs;
  runs.gradient = gradient;
  runs.value = {value, value};
  for (int slot = 0; slot < slot_count; ++slot) runs.slots[slot] = {slots[slot], slots[slot]};
  tfdist::ps::Optimize(*config, {learning_rate, step}, weight_decay, type, count, runs);
  return true;
}

}  // extern "C"
