// The dissemination barrier: nobody goes on before everybody has come.
//
// In step k a rank tells the rank 2^k above that it and all it has heard of are there, and waits
// for the same from the rank 2^k below. With 4 ranks, whom rank 0 knows of:
//
//     start     0
//     step 0    0 3          told by 3
//     step 1    0 3 2 1      told by 2, who had heard of 1
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
