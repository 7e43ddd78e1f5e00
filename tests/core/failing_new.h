// Makes a chosen allocation fail, on any thread.
#ifndef TFDIST_TESTS_CORE_FAILING_NEW_H_
#define TFDIST_TESTS_CORE_FAILING_NEW_H_

#include <cstdint>

namespace tfdist::testing {

// Makes the `nth` following allocation by operator new fail, counted over all threads that are not
// spared.
void FailAllocation(int64_t nth);
// Ends the injection. Returns whether an allocation has failed.
bool EndFailing();
// Whether the allocations of this thread succeed and are not counted.
void SpareThisThread(bool spared);

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_FAILING_NEW_H_
