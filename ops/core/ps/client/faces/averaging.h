// Values that workers combine outside of pushes: elastic averaging, and sums over all workers.
#ifndef TFDIST_OPS_CORE_PS_CLIENT_FACES_AVERAGING_H_
#define TFDIST_OPS_CORE_PS_CLIENT_FACES_AVERAGING_H_

#include <cstdint>
#include <vector>

#include "core/ps/client/faces/shared.h"
#include "core/ps/client/operations/control_operations.h"
#include "core/ps/client/operations/exchange_operation.h"
#include "core/ps/client/operations/push_operation.h"

namespace tfdist::ps {

class Averaging {
 public:
  explicit Averaging(ClientState* state) : state_(state) {}

  // Elastic averaging: the servers' values c become c + alpha (x - c), with x in `values`; `moves`,
  // memory of the same sizes, receives alpha (x - c). Exchanges are carried out one after the
  // other.
  void Exchange(const std::vector<Value>& values, const std::vector<Memory>& moves, double alpha,
                Done done);

  // Adds up tensors over all active workers of a synchronous job, in place.
  void Reduce(uint64_t key, std::vector<Tensor> tensors, Done done);

 private:
  ClientState* const state_;
  ReduceCounts reduce_counts_;  // of the client's thread
  uint64_t exchanges_ = 0;      // of the client's thread
};

}  // namespace tfdist::ps

#endif  // TFDIST_OPS_CORE_PS_CLIENT_FACES_AVERAGING_H_
