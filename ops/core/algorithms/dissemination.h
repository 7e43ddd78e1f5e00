// The dissemination barrier: no rank continues before all ranks have started it.
//
// In step k a rank signals the rank 2^k above, and waits for the signal of the rank 2^k below. A
// signal covers its sender and all ranks that have signalled the sender. With 4 ranks, the ranks
// that rank 0 knows to have started:
//
//     start     0
//     step 0    0 3          signal from 3
//     step 1    0 3 2 1      signal from 2, which had one from 1
//
// ceil(log2 N) steps of one byte, for any N. Hensgen, Finkel and Manber, "Two algorithms for
// barrier synchronization" (1988).
#ifndef TFDIST_OPS_CORE_ALGORITHMS_DISSEMINATION_H_
#define TFDIST_OPS_CORE_ALGORITHMS_DISSEMINATION_H_

#include "core/algorithms/plan.h"

namespace tfdist {

// Output: one byte, the token.
Plan DisseminationBarrier(int rank, int size);

}  // namespace tfdist

#endif  // TFDIST_OPS_CORE_ALGORITHMS_DISSEMINATION_H_
