// Memory that runs out when a test says so: the allocation of some thread that is to fail.
#ifndef TFDIST_TESTS_CORE_FAILING_NEW_H_
#define TFDIST_TESTS_CORE_FAILING_NEW_H_

#include <cstdint>

namespace tfdist::testing {

// Has the `nth` allocation from now on fail, by operator new, of all threads that are not spared.
void FailAllocation(int64_t nth);
// None fails any more. Returns whether one did.
bool EndFailing();
// Whether allocations of this thread always succeed, and are not counted.
void SpareThisThread(bool spared);

}  // namespace tfdist::testing

#endif  // TFDIST_TESTS_CORE_FAILING_NEW_H_
