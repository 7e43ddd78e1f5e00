// Adagrad for delayed gradients: AdaptiveRevision (McMahan and Streeter, "Delay-tolerant algorithms
// for asynchronous distributed online learning", 2014).
//
// A gradient g arrives that was computed at values which did not contain the sum b of the gradients
// that arrived since, the backward gradients. Per element, with z the sum below, z' its largest
// value so far and rate(z') = learning rate / sqrt(z' + epsilon):
//
//     before = rate(z')
//     z      = z + g^2 + 2 g b
//     z'     = max(z', z)
//     value  = value - rate(z') g + (before - rate(z')) b
//
// The last term revises the steps that the backward gradients made, with a rate that was too large.
// Without delay b is 0 and z is z': the steps equal Adagrad's, to the bit. Here z' is Adagrad's
// accumulator, and the server keeps how much smaller z is, and the sum of all gradients: b is that
// sum minus its value when the worker pulled.
#ifndef TFDIST_OPS_CORE_PS_OPTIMIZERS_ADAPTIVE_REVISION_H_
#define TFDIST_OPS_CORE_PS_OPTIMIZERS_ADAPTIVE_REVISION_H_

#include <cstddef>

#include "core/math/dtype.h"
#include "core/ps/optimizers/optimizer.h"

namespace tfdist::ps {

struct RevisionRuns {
  const void* pulled_sum = nullptr;  // of all gradients when the worker pulled; null: no delay
  void* sum = nullptr;
  void* deficit = nullptr;  // z' - z
};

// Makes one step of Adagrad, whose accumulator is the first slot of `runs`. `dtype`: as
// CanOptimize.
void ReviseAdagrad(const OptimizerConfig& config, const StepValues& step, double weight_decay,
                   DType dtype, size_t count, const StepRuns& runs, const RevisionRuns& revision);

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_OPTIMIZERS_ADAPTIVE_REVISION_H_
