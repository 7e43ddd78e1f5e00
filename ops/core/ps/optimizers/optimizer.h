// The optimizers that run on a server: one step of each, over runs of elements.
//
// They compute what Keras 3 computes, in the variable's dtype and in its order, so that training on
// servers and training in one process agree.
#ifndef TFDIST_OPS_CORE_PS_OPTIMIZERS_OPTIMIZER_H_
#define TFDIST_OPS_CORE_PS_OPTIMIZERS_OPTIMIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/base/status.h"
#include "core/math/dtype.h"

namespace tfdist::ps {

enum class OptimizerKind : uint8_t {
  kSgd = 1,      // with momentum, and Nesterov's
  kAdagrad = 2,  // Duchi et al. 2011
  kRmsprop = 3,  // Tieleman and Hinton 2012
  kAdam = 4,     // Kingma and Ba 2015; AdamW is Adam with a weight decay
  kAdamax = 5,
  kFtrl = 6,      // McMahan et al. 2013
  kLion = 7,      // Chen et al. 2023
  kAdadelta = 8,  // Zeiler 2012
  kNadam = 9,     // Dozat 2016
};

// What does not change between steps. Each kind reads its own fields, named as Keras names them.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  bool nesterov = false;
  bool centered = false;
  bool amsgrad = false;
  double momentum = 0;
  double rho = 0;
  double beta_1 = 0;
  double beta_2 = 0;
  double epsilon = 0;
  double learning_rate_power = 0;
  double l1_regularization_strength = 0;
  double l2_regularization_strength = 0;
  double l2_shrinkage_regularization_strength = 0;
  double beta = 0;
  // Of Adafactor, which only rows have.
  double beta_2_decay = 0;
  double epsilon_1 = 0;
  double epsilon_2 = 0;
  double clip_threshold = 0;
};

// What a worker says with each push.
struct StepValues {
  double learning_rate = 0;
  int64_t step = 1;  // counted from 1
};

inline constexpr int kMaxSlots = 3;

// How many slots an optimizer keeps per variable. In the order of Keras's `build`:
//   - SGD: momentum, if it has one
//   - Adagrad: accumulator
//   - RMSprop: velocity; momentum, if it has one; average gradient, if centered
//   - Adam: momentum, velocity; the largest velocity, with amsgrad
//   - Adamax: momentum, norm
//   - Ftrl: accumulator, linear
//   - Lion: momentum
//   - Adadelta: accumulated gradient, accumulated change
//   - Nadam: momentum, velocity
int SlotCount(const OptimizerConfig& config);

// A run of elements of a variable or slot, before and after. `out` is `in`, or overlaps no other
// run. Aligned to the element, as the gradient is.
struct Run {
  const void* in = nullptr;
  void* out = nullptr;
};

struct StepRuns {
  const void* gradient = nullptr;
  Run value;
  std::array<Run, kMaxSlots> slots;
};

// Whether steps of this optimizer exist for `dtype`: float32 and float64.
bool CanOptimize(DType dtype);

// Makes one step. Before it, with a `weight_decay`, the value loses value * weight_decay *
// learning_rate.
void Optimize(const OptimizerConfig& config, const StepValues& step, double weight_decay,
              DType dtype, size_t count, const StepRuns& runs);

// Whether a step with a gradient of zeros changes nothing, so that only the rows of a sparse
// gradient need be visited.
bool LeavesZeroGradientsAlone(const OptimizerConfig& config, double weight_decay);

// gradient += lambda * gradient^2 * (now - then): corrects, to first order, a gradient computed at
// `then` for use at `now` (DC-ASGD, Zheng et al. 2017).
void CompensateDelay(DType dtype, size_t count, double lambda, const void* now, const void* then,
                     void* gradient);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_OPTIMIZERS_OPTIMIZER_H_
